"""Disturbed copies of clean images, none of them by the benchmark's own corruptions.

The trials' own copy of what became `qipf.layered.disturbing`, kept as it was when the results were
made. Each family has a strength t in [0, 1]; `strengths` finds those at which the network keeps
given shares of its clean accuracy above chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Disturb = Callable[[Tensor, float, torch.Generator], Tensor]


def noise(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Gaussian noise, up to twice the images' own deviation."""
    drawn = torch.randn(images.shape, generator=random).to(images.device)
    return images + 2 * t * images.std() * drawn


def blur(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A Gaussian blur of up to a quarter of the image."""
    width = max(0.25 * t * images.shape[-1], 1e-3)
    reach = torch.arange(-images.shape[-1] + 1, images.shape[-1], device=images.device)
    line = torch.softmax(-(reach.float() ** 2) / (2 * width**2), 0)
    size = images.shape[-1]
    matrix = torch.stack([line[size - 1 - i : 2 * size - 1 - i] for i in range(size)])
    matrix = matrix / matrix.sum(1, keepdim=True)
    return matrix @ images @ matrix.T


def hole(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A square of side t at a random place, filled with the images' mean."""
    n, _, height, width = images.shape
    inside = torch.ones(n, 1, height, width, dtype=torch.bool, device=images.device)
    for axis, size in ((2, height), (3, width)):
        start = torch.rand(n, generator=random).to(images.device) * (1 - t) * size
        line = torch.arange(size, device=images.device)
        within = (line >= start[:, None]) & (line < start[:, None] + t * size)
        inside &= within[:, None, :, None] if axis == 2 else within[:, None, None, :]
    return torch.where(inside, images.mean((0, 2, 3), keepdim=True), images)


def drop(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of the pixels, replaced by the images' mean."""
    lost = torch.rand(len(images), 1, *images.shape[2:], generator=random).to(images.device) < t
    return torch.where(lost, images.mean((0, 2, 3), keepdim=True), images)


def shift(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Moved by up to half the image in a random direction, wrapped around."""
    n, _, height, width = images.shape
    angle = 2 * torch.pi * torch.rand(n, generator=random)
    moves = (t / 2 * torch.stack([angle.sin() * height, angle.cos() * width], 1)).round().long()
    rows = (torch.arange(height)[None] + moves[:, :1]) % height
    columns = (torch.arange(width)[None] + moves[:, 1:]) % width
    rows, columns = rows.to(images.device), columns.to(images.device)
    picture = torch.arange(n, device=images.device)[:, None, None]
    moved = images.permute(0, 2, 3, 1)[picture, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


FAMILIES: dict[str, Disturb] = {f.__name__: f for f in (noise, blur, hole, drop, shift)}


def disturbed(images: Tensor, family: str, t: float, seed: int) -> Tensor:
    """Images disturbed by one family, the same ones for the same seed, within their range."""
    random = torch.Generator().manual_seed(seed)
    return FAMILIES[family](images, t, random).clamp(images.min(), images.max())


def strengths(
    accuracy: Callable[[Tensor], float], images: Tensor, family: str, kept: Sequence[float]
) -> list[float]:
    """For each share of `kept`, the strength at which accuracy above chance falls to it."""
    clean = accuracy(images)
    found = []
    for share in kept:
        low, high = 0.0, 1.0
        for _ in range(7):
            middle = (low + high) / 2
            enough = accuracy(disturbed(images, family, middle, 5)) >= 0.1 + share * (clean - 0.1)
            low, high = (middle, high) if enough else (low, middle)
        found.append((low + high) / 2)
    return found
