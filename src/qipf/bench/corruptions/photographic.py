"""Corruptions by camera and compression, after CIFAR-10-C (Hendrycks & Dietterich, 2019).

All have five severities; 0 leaves the images as they are. What is random is drawn from a fixed
seed, so that the same images are always corrupted alike.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample, interpolate, pad

from qipf.bench.corruptions.registry import register
from qipf.errors import QIPFInputError

#: Seed of everything random here.
SEED = 0

#: Levels of a corruption with five severities.
SEVERITIES = (1, 2, 3, 4, 5)


def strength(name: str, severity: float, strengths: tuple[float, ...]) -> float:
    """The strength of a severity from 1 to 5."""
    if severity not in SEVERITIES:
        raise QIPFInputError(
            f"{name} level must be a severity of 1, 2, 3, 4 or 5; got {severity:g}."
        )
    return strengths[int(severity) - 1]


@register("jpeg", levels=SEVERITIES, unit="severity")
def jpeg(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """JPEG at quality 60, 40, 25, 15 or 8, with halved colour resolution."""
    quality = strength("jpeg", severity, (60, 40, 25, 15, 8))
    height, width = images.shape[2:]
    padded = pad(images.float(), (0, -width % 16, 0, -height % 16), mode="replicate") * 255
    planes = padded if len(_channels(images)) == 1 else _mix(padded, _YCBCR)
    coded = [_coded(planes[:, :1] - 128, _LUMINANCE, quality) + 128]
    for k in range(1, planes.shape[1]):
        small = _coded(avg_pool2d(planes[:, k : k + 1], 2), _CHROMINANCE, quality)
        coded.append(interpolate(small, scale_factor=2, mode="bilinear"))
    decoded = torch.cat(coded, dim=1)
    decoded = decoded if decoded.shape[1] == 1 else _mix(decoded, _YCBCR.inverse())
    return finished(decoded[:, :, :height, :width].round() / 255, images)


@register("hue", levels=SEVERITIES, unit="severity")
def hue(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """Colours turned by 36, 72, 108, 144 or 180 degrees; grey stays."""
    angle = math.radians(strength("hue", severity, (36, 72, 108, 144, 180)))
    cos, sin = math.cos(angle), math.sin(angle)
    return _recoloured(images, torch.tensor([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]))


@register("saturation", levels=SEVERITIES, unit="severity")
def saturation(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """Distance of colours from grey multiplied by 0.3, 0, 2, 4 or 8."""
    factor = strength("saturation", severity, (0.3, 0, 2, 4, 8))
    return _recoloured(images, torch.diag(torch.tensor([1, factor, factor])))


@register("posterise", levels=SEVERITIES, unit="severity")
def posterise(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """Values rounded to 8, 6, 4, 3 or 2 even steps."""
    steps = strength("posterise", severity, (8, 6, 4, 3, 2)) - 1
    return finished((images.float() * steps).round() / steps, images)


@register("motion_blur", levels=SEVERITIES, unit="severity")
def motion_blur(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """Mean along a line of 0.1 to 0.4 of the image's size, in a random direction for each."""
    length = strength("motion_blur", severity, (0.1, 0.16, 0.22, 0.3, 0.4))
    angle = 2 * math.pi * torch.rand(len(images), generator=generator())
    direction = torch.stack([angle.cos(), angle.sin()], dim=1)  # (N, 2)
    steps = 9
    parts = [
        moved(images, 2 * length * (step / (steps - 1) - 0.5) * direction) for step in range(steps)
    ]
    return finished(torch.stack(parts).mean(dim=0), images)


@register("zoom_blur", levels=SEVERITIES, unit="severity")
def zoom_blur(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """Mean over magnifications from 1 up to 1.15, 1.25, 1.4, 1.6 or 1.9."""
    largest = strength("zoom_blur", severity, (1.15, 1.25, 1.4, 1.6, 1.9))
    none = torch.zeros(len(images), 2)
    parts = [moved(images, none, 1 + (largest - 1) * step / 7) for step in range(8)]
    return finished(torch.stack(parts).mean(dim=0), images)


@register("impulse_noise", levels=SEVERITIES, unit="severity")
def impulse_noise(images: Tensor, severity: float) -> Tensor:  # (N, C, H, W)
    """A share of 0.02 to 0.25 of all values set to 0 or 1."""
    share = strength("impulse_noise", severity, (0.02, 0.05, 0.09, 0.15, 0.25))
    drawn = torch.rand(images.shape, generator=generator()).to(images.device)
    salted = torch.where(drawn < share / 2, torch.ones_like(images), images)
    return torch.where(drawn > 1 - share / 2, torch.zeros_like(images), salted)


def generator() -> torch.Generator:
    """The source of everything random, from its beginning."""
    return torch.Generator().manual_seed(SEED)


def moved(
    images: Tensor,  # (N, C, H, W)
    offset: Tensor,  # (N, 2) to the right and down, in half widths and heights
    factor: float = 1.0,
) -> Tensor:  # (N, C, H, W) float32
    """Images shifted and magnified about their centre; edge pixels continue outside."""
    height, width = images.shape[2:]
    x = (torch.arange(width) + 0.5) * 2 / width - 1
    y = (torch.arange(height) + 0.5) * 2 / height - 1
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1) / factor  # (H, W, 2)
    places = (grid - offset[:, None, None]).to(images.device)
    return grid_sample(images.float(), places, padding_mode="border", align_corners=False)


def finished(changed: Tensor, images: Tensor) -> Tensor:
    """Changed images within the range and in the type of the given ones."""
    return changed.clamp(0, 1).to(images.dtype)


def _channels(images: Tensor) -> range:
    if images.shape[1] not in (1, 3):
        raise QIPFInputError(
            f"Corruptions of colour need images with 1 or 3 channels; got {images.shape[1]}."
        )
    return range(images.shape[1])


#: Brightness and two colour axes (YIQ) of red, green and blue.
_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])

#: The same in JPEG, without its offset.
_YCBCR = torch.tensor(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
)


def _mix(images: Tensor, matrix: Tensor) -> Tensor:
    """Every pixel's channels multiplied by a matrix."""
    return torch.einsum("ij,njhw->nihw", matrix.to(images), images)


def _recoloured(images: Tensor, change: Tensor) -> Tensor:
    """Images changed in brightness and colour axes; grey images have no colour to change."""
    if len(_channels(images)) == 1:
        return images.clone()
    matrix = (_YIQ.double().inverse() @ change.double() @ _YIQ.double()).float()
    return finished(_mix(images.float(), matrix), images)


#: The tables of the JPEG standard (Annex K).
_LUMINANCE = torch.tensor([
    [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55],
    [14, 13, 16, 24, 40, 57, 69, 56], [14, 17, 22, 29, 51, 87, 80, 62],
    [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
])  # fmt: skip
_CHROMINANCE = torch.full((8, 8), 99)
_CHROMINANCE[:4, :4] = torch.tensor(
    [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]
)


def _coded(plane: Tensor, table: Tensor, quality: float) -> Tensor:  # (N, 1, H, W) about 0
    """A plane after its 8×8 cosine coefficients were rounded to multiples of the table's steps."""
    percent = 5000 / quality if quality < 50 else 200 - 2 * quality
    steps = ((table * percent + 50) / 100).floor().clamp(1, 255).to(plane)
    line = np.arange(8)
    cosines = np.cos((2 * line + 1) * line[:, None] * np.pi / 16) / 2
    cosines[0] /= np.sqrt(2)
    basis = torch.from_numpy(cosines).to(plane)  # (8, 8), orthonormal rows
    n, _, height, width = plane.shape
    blocks = plane.reshape(n, height // 8, 8, width // 8, 8).transpose(2, 3)
    coefficients = basis @ blocks @ basis.T
    rounded = (coefficients / steps).round() * steps
    return (basis.T @ rounded @ basis).transpose(2, 3).reshape(plane.shape)
