"""Inputs made from training inputs whose labels need not survive, and inputs from nowhere.

Pseudo-outliers are parts of several training inputs put together, or one taken apart: images
(n, C, H, W), tables (n, d) and tokens (n, tokens). Far inputs are for evaluation alone: drawn
shapes, gratings, noise, scikit-learn's digits and photographs, and words drawn at random.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor
from torch.nn import functional

from qipf.layered.outliers import join_features, join_halves, join_tiles, shuffle_tiles

#: Inputs, those of other classes in their order, random numbers -> outliers.
Outlier = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def blend(inputs: Tensor, others: Tensor, _random: torch.Generator) -> Tensor:
    """The mean of two inputs."""
    return (inputs + others) / 2


def negative(inputs: Tensor, _others: Tensor, _random: torch.Generator) -> Tensor:
    """Light and dark exchanged, within the range of all images, or of each feature."""
    if inputs.ndim == 2:
        return inputs.amin(0) + inputs.amax(0) - inputs
    return inputs.min() + inputs.max() - inputs


def phases(images: Tensor, _others: Tensor, random: torch.Generator) -> Tensor:
    """The spectrum of each image, with random phases, alike in all channels."""
    drawn = torch.randn(len(images), 1, *images.shape[2:], generator=random).to(images)
    turned = torch.fft.rfft2(drawn)
    turned = turned / turned.abs().clamp(min=1e-12)
    turned[:, :, 0, 0] = 1
    found = torch.fft.irfft2(torch.fft.rfft2(images) * turned, s=images.shape[2:])
    return found.clamp(images.min(), images.max())


def spectra(images: Tensor, others: Tensor, _random: torch.Generator) -> Tensor:
    """The phases of an image with the amplitudes of another one."""
    own, other = torch.fft.rfft2(images), torch.fft.rfft2(others)
    changed = other.abs() * own / own.abs().clamp(min=1e-12)
    return torch.fft.irfft2(changed, s=images.shape[2:]).clamp(images.min(), images.max())


def turned(images: Tensor, _others: Tensor, random: torch.Generator) -> Tensor:
    """Upside down, or on one of its sides."""
    which = torch.randint(1, 4, (len(images),), generator=random).to(images.device)
    found = images.clone()
    for quarter in (1, 2, 3):
        found[which == quarter] = torch.rot90(images[which == quarter], quarter, (2, 3))
    return found


def mixed_features(rows: Tensor, _others: Tensor, random: torch.Generator) -> Tensor:
    """Every feature from a row of its own."""
    order = torch.rand(rows.shape, generator=random).argsort(0).to(rows.device)
    return rows.gather(0, order)


def texts(
    ids: Tensor, build: Callable[[list[int], list[int]], list[int]], others: Tensor
) -> Tensor:
    """Texts that `build` makes of two, without padding, the token 0."""
    rows = []
    for one, two in zip(ids.tolist(), others.tolist(), strict=True):
        new = build([t for t in one if t], [t for t in two if t])[: ids.shape[1]]
        rows.append(new + [0] * (ids.shape[1] - len(new)))
    return torch.tensor(rows, dtype=ids.dtype, device=ids.device)


def joined_halves(ids: Tensor, others: Tensor, _random: torch.Generator) -> Tensor:
    """The first half of a text, then the second half of another one."""
    return texts(ids, lambda a, b: a[: (len(a) + 1) // 2] + b[len(b) // 2 :], others)


def interleaved(ids: Tensor, others: Tensor, _random: torch.Generator) -> Tensor:
    """Every second token of each of two texts, by turns."""

    def build(a: list[int], b: list[int]) -> list[int]:
        longer = range(max(len(a), len(b)))
        return [part[i] for i in longer for part in ((a, b)[i % 2],) if i < len(part)]

    return texts(ids, build, others)


def joined(ids: Tensor, others: Tensor, _random: torch.Generator) -> Tensor:
    """One text after the other, as far as there is place."""
    return texts(ids, lambda a, b: a + b, others)


def shuffled_tokens(ids: Tensor, _others: Tensor, random: torch.Generator) -> Tensor:
    """Tokens drawn from all texts, as many as each text has."""
    pool = ids[ids != 0]
    drawn = pool[torch.randint(len(pool), ids.shape, generator=random).to(pool.device)]
    return torch.where(ids != 0, drawn, ids)


FOR_IMAGES: dict[str, Outlier] = {
    "jigsaw2": shuffle_tiles,
    "jigsaw4": partial(shuffle_tiles, tiles=4),
    "blend": blend,
    "halves": join_halves,
    "patches": join_tiles,
    "negative": negative,
    "phases": phases,
    "spectra": spectra,
    "turned": turned,
}
FOR_TABLES: dict[str, Outlier] = {
    "blend": blend,
    "mixed features": mixed_features,
    "half features": join_features,
    "negative": negative,
}
FOR_TEXTS: dict[str, Outlier] = {
    "joined halves": joined_halves,
    "interleaved": interleaved,
    "joined": joined,
    "shuffled tokens": shuffled_tokens,
}


def outliers(inputs: Tensor) -> dict[str, Outlier]:
    """The kinds that fit these inputs."""
    if not inputs.is_floating_point():
        return FOR_TEXTS
    return FOR_IMAGES if inputs.ndim == 4 else FOR_TABLES


def far_inputs(inputs: Tensor, largest: int, seed: int) -> dict[str, Tensor]:
    """Sets that resemble no data set of the benchmark, each as long as `inputs`, on the CPU.

    `largest` is the largest token of the network's vocabulary.
    """
    random = torch.Generator().manual_seed(seed)
    inputs = inputs.cpu()
    if not inputs.is_floating_point():
        drawn = torch.randint(2, largest + 1, inputs.shape, generator=random)
        one = drawn[:, :1].expand_as(drawn)
        return {
            "random words": torch.where(inputs != 0, drawn, inputs),
            "one word": torch.where(inputs != 0, one, inputs),
        }
    low, high = inputs.amin(0), inputs.amax(0)
    if inputs.ndim == 2:
        drawn = torch.rand(inputs.shape, generator=random)
        return {"uniform": low + (high - low) * drawn, "outside": inputs + 2 * (high - low) * drawn}
    n, channels, height, width = inputs.shape
    found = {
        "uniform noise": torch.rand(inputs.shape, generator=random),
        "gratings": _gratings(inputs.shape, random),
        "shapes": _shapes(inputs.shape, random),
    }
    if channels == 3:
        digits = torch.from_numpy(load_digits().images)[:, None].float() / 16
        chosen = digits[torch.randperm(len(digits), generator=random)[:n]]
        wide = functional.interpolate(chosen, size=(height, width), mode="bilinear")
        found["digits"] = wide.expand(-1, 3, -1, -1).contiguous()
    with contextlib.suppress(ImportError):  # without Pillow
        found["photographs"] = _photographs(inputs.shape, random)
    return found


def _gratings(shape: torch.Size, random: torch.Generator) -> Tensor:
    n, channels, height, width = shape
    angle, frequency, phase = torch.rand(3, n, 1, 1, generator=random).unbind()
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    along = rows * (torch.pi * angle).sin() + columns * (torch.pi * angle).cos()
    wave = 0.5 + 0.5 * torch.sin(along * (0.1 + 1.5 * frequency) + 2 * torch.pi * phase)
    one, two = torch.rand(2, n, channels, 1, 1, generator=random).unbind()
    return one + (two - one) * wave[:, None]


def _shapes(shape: torch.Size, random: torch.Generator) -> Tensor:
    """Three discs or rectangles of one colour each before another one."""
    n, channels, height, width = shape
    image = torch.rand(n, channels, 1, 1, generator=random).repeat(1, 1, height, width)
    rows, columns = torch.meshgrid(
        torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij"
    )
    for _ in range(3):
        y, x, size, kind = torch.rand(4, n, 1, 1, generator=random).unbind()
        dy, dx, size = (rows - y).abs(), (columns - x).abs(), 0.1 + 0.25 * size
        disc = dy**2 + dx**2 < size**2
        box = (dy < size) & (dx < 0.7 * size)
        colour = torch.rand(n, channels, 1, 1, generator=random)
        image = torch.where(torch.where(kind < 0.5, disc, box)[:, None], colour, image)
    return image


def _photographs(shape: torch.Size, random: torch.Generator) -> Tensor:
    """Crops of scikit-learn's two photographs, at several scales."""
    n, channels, height, width = shape
    whole = [
        torch.from_numpy(np.array(i)).permute(2, 0, 1) / 255 for i in load_sample_images().images
    ]
    crops = []
    for number in range(n):
        image = whole[number % len(whole)]
        side = int(torch.randint(height, min(image.shape[1:]) // 2, (), generator=random))
        top = int(torch.randint(image.shape[1] - side, (), generator=random))
        left = int(torch.randint(image.shape[2] - side, (), generator=random))
        crop = image[None, :, top : top + side, left : left + side]
        crops.append(functional.interpolate(crop, size=(height, width), mode="area"))
    found = torch.cat(crops)
    return found if channels == 3 else found.mean(1, keepdim=True)
