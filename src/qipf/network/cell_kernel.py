"""Means over the cells of maps on a GPU, which reads each map once."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations  # without Triton its types have no names

from contextlib import nullcontext

import torch
from torch import Tensor

from qipf.field.engines.triton import INTERPRETED
from qipf.field.engines.triton_kernels import INSTALLED, jit

if INSTALLED:
    import triton.language as tl

#: Finest grid, whose cells are summed one after the other, and most numbers of a map.
FINEST, LARGEST = 4, 4096

#: Numbers that a program holds.
HELD = 4096

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

#: Whether the kernel can be compiled, as far as known; it needs a C compiler.
_works = INSTALLED


@jit
def cell_kernel(
    map_ptr,  # (planes, height * width)
    mean_ptr,  # (planes, grid * grid) float32, written
    planes,
    height,
    width,
    GRID: tl.constexpr,
    PLANES: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Means over the cells of a grid that divides height and width."""
    plane = tl.program_id(0).to(tl.int64) * PLANES + tl.arange(0, PLANES)
    place = tl.arange(0, SIZE)
    live, inside = plane < planes, place < height * width
    at = plane[:, None] * (height * width) + place[None, :]
    x = tl.load(map_ptr + at, mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
    cell_height, cell_width = height // GRID, width // GRID
    cell = (place // width // cell_height) * GRID + place % width // cell_width
    for number in tl.static_range(GRID * GRID):
        total = tl.sum(tl.where((inside & (cell == number))[None, :], x, 0.0), 1)
        mean = total / (cell_height * cell_width)
        tl.store(mean_ptr + plane * (GRID * GRID) + number, mean, mask=live)


def usable(maps: Tensor, grid: int) -> bool:
    """Whether the kernel takes these maps, whose sides the grid divides."""
    return (
        _works
        and not torch.compiler.is_compiling()
        and (maps.is_cuda or INTERPRETED)
        and torch.version.hip is None
        and 1 < grid <= FINEST
        and maps.dtype in DTYPES
        and maps.is_contiguous()
        and 0 < maps.shape[2] * maps.shape[3] <= LARGEST
    )


def cell_means(maps: Tensor, grid: int) -> Tensor | None:  # (n, C, H, W) -> (n, C, grid, grid)
    """Means in float32 over the cells of a grid that divides both sides; None if that fails."""
    global _works
    count, channels, height, width = maps.shape
    means = torch.empty(count, channels, grid, grid, device=maps.device)
    size = 1 << (height * width - 1).bit_length()
    several = max(1, HELD // size)
    try:
        with torch.cuda.device(maps.device) if maps.is_cuda else nullcontext():
            cell_kernel[(max(1, -(-count * channels // several)),)](
                maps, means, count * channels, height, width, GRID=grid, PLANES=several, SIZE=size,
                num_warps=4,
            )  # fmt: skip
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # whatever Triton raises: PyTorch computes the same
        _works = False
        return None
    return means
