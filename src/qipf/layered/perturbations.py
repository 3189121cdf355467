"""Perturbed copies of training inputs, to learn from a network's errors on unseen inputs.

A network rarely errs on its training inputs. It has not seen their perturbed copies, whose labels
are known. Each family of perturbations has a strength t between 0 and 1. `strengths` finds those at
which the network keeps given shares of its accuracy, so that the same shares suit every network.
None of the families is one of the benchmark's corruptions.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

#: Shares of the accuracy above chance that the network keeps when perturbed.
KEPT = (0.9, 0.7, 0.5)

#: Bisection steps in the search for a strength.
HALVINGS = 7

Perturbation = Callable[[Tensor, float, torch.Generator], Tensor]


def noise(inputs: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Gaussian noise, up to twice the deviation of the images, or of each feature of a table."""
    drawn = torch.randn(inputs.shape, generator=random).to(inputs)
    deviation = inputs.std(0, correction=0) if inputs.ndim == 2 else inputs.std()
    return inputs + 2 * t * deviation * drawn


def drop(inputs: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of the features, or of an image's pixels, replaced by their mean."""
    pixels = (len(inputs), 1, *inputs.shape[2:]) if inputs.ndim > 2 else inputs.shape
    lost = torch.rand(pixels, generator=random).to(inputs) < t
    return torch.where(lost, _mean(inputs), inputs)


def blur(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A Gaussian blur, as wide as a quarter of the image at most."""
    for axis in (2, 3):
        images = images.movedim(axis, -1) @ _smoothing(images.shape[axis], t).to(images)
        images = images.movedim(-1, axis)
    return images


def hole(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A square of side t at a random place, filled with the mean."""
    inside = torch.ones(1, dtype=torch.bool, device=images.device)
    for axis in (2, 3):
        size = images.shape[axis]
        start = torch.rand(len(images), 1, generator=random) * (1 - t) * size
        line = torch.arange(size)
        within = ((line >= start) & (line < start + t * size)).to(images.device)
        inside = inside & within.view(len(images), 1, *((-1, 1) if axis == 2 else (1, -1)))
    return torch.where(inside, _mean(images), images)


def shift(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Moved by t/2 of the image in a random direction; pixels wrap around."""
    n, _, height, width = images.shape
    angle = 2 * torch.pi * torch.rand(n, 1, generator=random)
    rows = (torch.arange(height) + (t / 2 * height * angle.sin()).round().long()) % height
    columns = (torch.arange(width) + (t / 2 * width * angle.cos()).round().long()) % width
    which = torch.arange(n)[:, None, None]
    moved = images.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


def fade(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of each image's contrast lost."""
    grey = images.mean((1, 2, 3), keepdim=True)
    return grey + (1 - t) * (images - grey)


def tone(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Middle tones up to six powers lighter or darker; the lightest and the darkest stay."""
    darkest, lightest = images.min(), images.max()
    power = torch.full((len(images), 1, 1, 1), 1 + 5 * t)
    power = torch.where(torch.rand(power.shape, generator=random) < 0.5, power, 1 / power)
    spread = (lightest - darkest).clamp(min=torch.finfo(images.dtype).tiny)
    return darkest + spread * ((images - darkest) / spread) ** power.to(images)


def warp(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Smooth random displacements, of at most about a quarter of the image."""
    drawn = torch.randn(len(images), 2, 4, 4, generator=random).to(images)
    pulled = functional.interpolate(
        drawn, size=images.shape[2:], mode="bicubic", align_corners=True
    )
    same = torch.eye(2, 3).to(images).expand(len(images), 2, 3)
    places = functional.affine_grid(same, list(images.shape), align_corners=False)
    places = places + t / 2 * pulled.movedim(1, 3)
    return functional.grid_sample(images, places, padding_mode="border", align_corners=False)


def coarsen(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of the resolution lost; at least two by two pixels are left."""
    height, width = (max(2, round((1 - t) * side)) for side in images.shape[2:])
    few = functional.adaptive_avg_pool2d(images, (height, width))
    return functional.interpolate(few, size=images.shape[2:], mode="nearest")


#: Families by name: for inputs of any shape, and for images (n, C, H, W) too.
FOR_ALL: dict[str, Perturbation] = {"noise": noise, "drop": drop}
ONLY_IMAGES = (blur, hole, shift, fade, tone, warp, coarsen)
FOR_IMAGES = {**FOR_ALL, **{perturb.__name__: perturb for perturb in ONLY_IMAGES}}


def families(inputs: Tensor) -> dict[str, Perturbation]:
    """The families that fit these inputs."""
    return FOR_IMAGES if inputs.ndim == 4 else FOR_ALL


def perturbed(inputs: Tensor, perturb: Perturbation, t: float, seed: int) -> Tensor:
    """Inputs perturbed by one family, the same for the same seed, within the inputs' range.

    The range is that of all images, or of each feature of a table.
    """
    random = torch.Generator().manual_seed(seed)
    wide = inputs if inputs.dtype == torch.float64 else inputs.float()  # half is not enough
    lowest, highest = (wide.amin(0), wide.amax(0)) if wide.ndim == 2 else (wide.min(), wide.max())
    return perturb(wide, t, random).clamp(lowest, highest).to(inputs.dtype)


def strengths(
    accuracy: Callable[[Tensor], float],
    inputs: Tensor,
    perturb: Perturbation,
    chance: float,
    seed: int,
    kept: Sequence[float] = KEPT,
) -> list[float]:
    """For each share in `kept`, the strength at which the accuracy above chance falls to it."""
    clean = accuracy(inputs)
    found = []
    for share in kept:
        wanted = chance + share * (clean - chance)
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough = accuracy(perturbed(inputs, perturb, middle, seed)) >= wanted
            low, high = (middle, high) if enough else (low, middle)
        found.append((low + high) / 2)
    return found


def _mean(inputs: Tensor) -> Tensor:
    """The mean of each channel, or of each feature."""
    axes = (0, *range(2, inputs.ndim))
    return inputs.mean(axes, keepdim=True)


def _smoothing(size: int, t: float) -> Tensor:  # (size, size), columns sum to one
    line = torch.arange(size, dtype=torch.float64)
    width = max(t * size / 4, 1e-3)
    return torch.softmax(-((line[:, None] - line) ** 2) / (2 * width * width), dim=0)
