"""Corruptions of test images: rotation, shear, zoom, brightness, and a user's own.

Images are floats in [0, 1] of shape (N, C, H, W), on any device. The geometric corruptions move
the image about its centre, in pixels, so that they mean the same on any height and width; they
interpolate bilinearly and fill with zeros. Nothing here is random.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from qipf.errors import QIPFInputError, unknown_name

Apply = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Corruption:
    """A corruption by name: `apply(images, level)`, and the levels of a benchmark."""

    name: str
    apply: Apply
    levels: tuple[float, ...]
    unit: str


#: All known corruptions by name; `register` adds to it.
CORRUPTIONS: dict[str, Corruption] = {}


def corrupt(
    images: Tensor,  # (N, C, H, W) in [0, 1]
    name: str,
    level: float,
) -> Tensor:  # (N, C, H, W) in [0, 1]
    """Images corrupted by the corruption called `name`.

    >>> corrupt(torch.full((1, 1, 2, 2), 0.25), "brightness", 2).unique()
    tensor([0.5000])
    """
    if name not in CORRUPTIONS:
        raise unknown_name("corruption", name, CORRUPTIONS)
    return CORRUPTIONS[name].apply(images, level)


def register(name: str, levels: Sequence[float], unit: str) -> Callable[[Apply], Apply]:
    """Register a function of images and a level as a corruption.

    The decorated function checks its images and level, and that the result has the same shape,
    type and range.

    >>> @register("fog", levels=[0.2, 0.5], unit="share")
    ... def fog(images, share):
    ...     return images + share * (1 - images)
    >>> corrupt(torch.zeros(1, 1, 2, 2), "fog", 0.5).unique()
    tensor([0.5000])
    >>> del CORRUPTIONS["fog"]
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


@register("rotation", levels=(15, 30, 45, 60, 90, 120, 150, 180, 225, 270), unit="degrees")
def rotation(
    images: Tensor,  # (N, C, H, W)
    degrees: float,
) -> Tensor:  # (N, C, H, W)
    """Turn counter-clockwise by an angle.

    With x to the right and y up: (x, y) goes to (x cos t - y sin t, x sin t + y cos t).
    """
    angle = math.radians(degrees % 360)
    cos, sin = math.cos(angle), math.sin(angle)
    return _resample(images, x_from=(cos, -sin), row_from=(sin, cos))


@register("shear", levels=(10, 20, 30, 40, 50, 60, 70), unit="degrees")
def shear(
    images: Tensor,  # (N, C, H, W)
    degrees: float,
) -> Tensor:  # (N, C, H, W)
    """Shift rows sideways: with x to the right and y up, (x, y) goes to (x + y tan t, y).

    A positive angle pushes the upper half to the right.
    """
    if not -90 < degrees < 90:
        raise QIPFInputError(
            f"shear level must lie strictly between -90 and 90 degrees; got {degrees:g}."
        )
    return _resample(images, x_from=(1.0, math.tan(math.radians(degrees))), row_from=(0.0, 1.0))


@register("zoom", levels=(0.4, 0.5, 0.6, 0.8, 1.25, 1.5, 2, 2.5), unit="factor")
def zoom(
    images: Tensor,  # (N, C, H, W)
    factor: float,
) -> Tensor:  # (N, C, H, W)
    """Magnify about the centre: (x, y) goes to (factor x, factor y)."""
    if factor <= 0:
        raise QIPFInputError(f"zoom level must be a positive factor; got {factor:g}.")
    return _resample(images, x_from=(1 / factor, 0.0), row_from=(0.0, 1 / factor))


@register("brightness", levels=(0.2, 0.4, 0.6, 0.8, 1.5, 2, 3, 4), unit="factor")
def brightness(
    images: Tensor,  # (N, C, H, W)
    factor: float,
) -> Tensor:  # (N, C, H, W)
    """Multiply every value by a factor and clip to [0, 1]."""
    if factor < 0:
        raise QIPFInputError(f"brightness level must be a factor of at least 0; got {factor:g}.")
    return (images * factor).clamp(0, 1)


def _resample(
    images: Tensor,  # (N, C, H, W)
    x_from: tuple[float, float],
    row_from: tuple[float, float],
) -> Tensor:  # (N, C, H, W)
    """Sample every pixel at a linear function of its position relative to the centre.

    The pixel at (x, row), in pixels from the centre with rows counted downwards, takes the value
    at (x_from · (x, row), row_from · (x, row)): the inverse of the visible motion.
    """
    if (x_from, row_from) == ((1, 0), (0, 1)):
        return images.clone()  # interpolation would be off by a rounding error
    height, width = images.shape[-2:]
    # on the CPU in float64, so that every device gets the same grid
    x = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    row = (torch.arange(height, dtype=torch.float64) - (height - 1) / 2)[:, None]
    source_x = 2 / width * (x_from[0] * x + x_from[1] * row)
    source_row = 2 / height * (row_from[0] * x + row_from[1] * row)
    grid = torch.stack([source_x, source_row], dim=-1)  # (H, W, 2), edges at -1 and 1
    grid = grid.clamp(-4, 4)  # as far outside as any place beyond, and safe to make an index
    # half precision cannot tell neighbouring places apart
    working = torch.promote_types(images.dtype, torch.float32)
    sampled = grid_sample(
        images.to(working),
        grid.to(images.device, working).expand(len(images), -1, -1, -1),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    )
    return sampled.clamp(0, 1).to(images.dtype)  # weights may sum to a rounding error above 1


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
