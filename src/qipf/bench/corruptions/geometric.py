"""The paper's corruptions: rotation, shear, zoom, brightness.

The geometric ones move the image about its centre, in pixels, so that they mean the same on any
height and width; they interpolate bilinearly and fill with zeros. Nothing here is random.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from qipf.bench.corruptions.registry import register
from qipf.errors import QIPFInputError


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
