"""Fog, frost and snow, made of noise instead of photographs, after CIFAR-10-C."""

import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from qipf.bench.corruptions.photographic import SEVERITIES, finished, generator, moved, strength
from qipf.bench.corruptions.registry import register


@register("fog", levels=SEVERITIES, unit="severity")
def fog(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """White veils of varying thickness, on average 0.2, 0.35, 0.5, 0.6 or 0.7 of the light."""
    share = strength("fog", severity, (0.2, 0.35, 0.5, 0.6, 0.7))
    veil = (2 * share * smooth_noise(images, (2, 4, 8))).clamp(max=0.95)
    return finished(images * (1 - veil) + 0.95 * veil, images)


@register("frost", levels=SEVERITIES, unit="severity")
def frost(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """Pale crystals along the ridges of noise over a darkened image."""
    share = strength("frost", severity, (0.35, 0.5, 0.65, 0.8, 0.95))
    ridges = 1 - (2 * smooth_noise(images, (4, 8, 16)) - 1).abs()
    crystals = ridges**4
    pale = torch.full((1, images.shape[1], 1, 1), 0.92)
    if images.shape[1] == 3:
        pale = torch.tensor([0.82, 0.92, 1.0]).view(1, 3, 1, 1)
    dark, covered = (1 - 0.4 * share) * images, share * crystals
    return finished(dark * (1 - covered) + pale.to(images) * covered, images)


@register("snow", levels=SEVERITIES, unit="severity")
def snow(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """Falling flakes over a whitened image."""
    share = strength("snow", severity, (0.008, 0.016, 0.026, 0.04, 0.06))
    whitened = strength("snow", severity, (0.1, 0.18, 0.25, 0.32, 0.4))
    height, width = images.shape[2:]
    random = generator()
    flakes = (torch.rand(len(images), 1, height, width, generator=random) < share).float()
    angle = math.pi * (0.25 + 0.5 * torch.rand(len(images), generator=random))  # mostly downwards
    direction = torch.stack([angle.cos(), angle.sin()], dim=1)
    flakes = flakes.to(images.device)
    fallen = sum(moved(flakes, 0.06 * step * direction) for step in range(-2, 3)) * 0.45
    grey = images.mean(dim=1, keepdim=True)
    base = (1 - whitened) * images + whitened * torch.maximum(images, 1.5 * grey + 0.3)
    return finished(base + fallen, images)


def smooth_noise(images: Tensor, sizes: tuple[int, ...]) -> Tensor:  # (N, 1, H, W) in [0, 1]
    """Noise of several scales, a field of its own for each image; half of the values below 1/2."""
    random, found = generator(), torch.zeros(1)
    for octave, size in enumerate(sizes):
        drawn = torch.rand(len(images), 1, size + 1, size + 1, generator=random)
        wide = interpolate(drawn, size=images.shape[2:], mode="bicubic", align_corners=True)
        found = found + (wide - 0.5) / 2**octave
    return (0.5 + found.to(images.device)).clamp(0, 1)
