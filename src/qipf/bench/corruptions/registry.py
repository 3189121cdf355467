"""Corruptions by name, and the checks of what they take and give."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from qipf.errors import QIPFInputError, unknown_name

Apply = Callable[[Any, float], Any]


@dataclass(frozen=True)
class Corruption:
    """A corruption by name: `apply(images, level)`, and the levels of a benchmark."""

    name: str
    apply: Apply
    levels: tuple[float, ...]
    unit: str
    kind: str = "images"  # or "text": sentences


#: Images, or sentences.
Inputs = TypeVar("Inputs", Tensor, Sequence[str])

#: All known corruptions by name; `register` adds to it.
CORRUPTIONS: dict[str, Corruption] = {}


def corrupt(
    images: Inputs,  # (N, C, H, W) in [0, 1], or sentences
    name: str,
    level: float,
) -> Inputs:
    """Images or sentences corrupted by the corruption called `name`.

    >>> corrupt(torch.full((1, 1, 2, 2), 0.25), "brightness", 2).unique()
    tensor([0.5000])
    """
    if name not in CORRUPTIONS:
        raise unknown_name("corruption", name, CORRUPTIONS)
    corrupted: Inputs = CORRUPTIONS[name].apply(images, level)
    return corrupted


def register(name: str, levels: Sequence[float], unit: str) -> Callable[[Apply], Apply]:
    """Register a function of images and a level as a corruption.

    The decorated function checks its images and level, and that the result has the same shape,
    type and range.

    >>> @register("haze", levels=[0.2, 0.5], unit="share")
    ... def haze(images, share):
    ...     return images + share * (1 - images)
    >>> corrupt(torch.zeros(1, 1, 2, 2), "haze", 0.5).unique()
    tensor([0.5000])
    >>> del CORRUPTIONS["haze"]
    """
    if name in CORRUPTIONS:
        raise QIPFInputError(
            f"A corruption called {name!r} exists already. Choose another name, "
            f"or remove that one first: del CORRUPTIONS[{name!r}]."
        )
    if not levels or not all(map(math.isfinite, levels)):
        raise QIPFInputError(f"levels must be one or more finite numbers; got {levels!r}.")

    def registered(apply: Apply) -> Apply:
        @functools.wraps(apply)
        def checked(images: Tensor, level: float) -> Tensor:
            _check_images(images)
            if not isinstance(level, Real) or not math.isfinite(level):
                raise QIPFInputError(f"{name} level must be a finite number; got {level!r}.")
            corrupted = apply(images, float(level))
            _check_result(name, images, corrupted)
            return corrupted

        CORRUPTIONS[name] = Corruption(name, checked, tuple(map(float, levels)), unit)
        return checked

    return registered


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise QIPFInputError(
            f"images must be a floating-point tensor in [0, 1]; got {kind}. "
            "Turn 8-bit images into images.float() / 255, arrays into torch.from_numpy(images)."
        )
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise QIPFInputError(
            f"images must have shape (N, C, H, W); got {tuple(images.shape)}. "
            "A single image needs a leading axis: images[None]."
        )
    outside = _outside_unit(images)
    if outside:
        raise QIPFInputError(
            f"images must hold values in [0, 1]; got {outside}. "
            "Scale them first; corrupt before any normalisation."
        )


def _check_result(name: str, images: Tensor, corrupted: Tensor) -> None:
    if corrupted.shape != images.shape or corrupted.dtype != images.dtype:
        raise QIPFInputError(
            f"{name} must return images as it gets them, {tuple(images.shape)} {images.dtype}; "
            f"it returned {tuple(corrupted.shape)} {corrupted.dtype}."
        )
    outside = _outside_unit(corrupted)
    if outside:
        raise QIPFInputError(
            f"{name} must return values in [0, 1]; it returned {outside}. Clip them."
        )


def _outside_unit(images: Tensor) -> str:
    """The range of values if it leaves [0, 1], else nothing; NaN lies outside."""
    if not images.numel():
        return ""
    low, high = (extreme.item() for extreme in torch.aminmax(images))
    return "" if low >= 0 and high <= 1 else f"{low:g} to {high:g}"
