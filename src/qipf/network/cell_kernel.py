"""Means over the cells of maps on a GPU, which reads each map once."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from __future__ import annotations  # without Triton its types have no names

import torch
from torch import Tensor

from qipf.field.engines.triton import INTERPRETED, launching_on, power_of_two
from qipf.field.engines.triton_kernels import INSTALLED, jit

if INSTALLED:
    import triton.language as tl

#: Finest grid, whose cells are summed one after the other.
FINEST = 4

#: Numbers that a program holds.
HELD = 4096

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

#: Whether the kernel can be compiled, as far as known; it needs a C compiler.
_works = INSTALLED


@jit
def cell_kernel(
    map_ptr,  # (bands, length) numbers: a band is as high as a cell and as wide as the map
    mean_ptr,  # (bands, GRID) float32, written
    bands,
    length,
    width,
    GRID: tl.constexpr,
    BANDS: tl.constexpr,
    LENGTH: tl.constexpr,
):
    """Means over the cells of each band."""
    band = tl.program_id(0).to(tl.int64) * BANDS + tl.arange(0, BANDS)
    place = tl.arange(0, LENGTH)
    live, inside = band < bands, place < length
    at = band[:, None] * length + place[None, :]
    x = tl.load(map_ptr + at, mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
    cell = place % width // (width // GRID)
    for number in tl.static_range(GRID):
        total = tl.sum(tl.where((cell == number)[None, :], x, 0.0), 1)
        tl.store(mean_ptr + band * GRID + number, total / (length // GRID), mask=live)


def usable(maps: Tensor, grid: int) -> bool:
    """Whether the kernel takes these maps, whose sides the grid divides."""
    return (
        _works
        and (maps.is_cuda or INTERPRETED)
        and torch.version.hip is None
        and grid <= FINEST
        and maps.dtype in DTYPES
        and maps.is_contiguous()
        and 0 < maps.shape[2] * maps.shape[3] <= HELD * grid
    )


def cell_means(maps: Tensor, grid: int) -> Tensor | None:  # (n, C, H, W) -> (n, C, grid, grid)
    """Means in float32 over the cells of a grid that divides both sides; None if that fails."""
    global _works
    count, channels, height, width = maps.shape
    means = torch.empty(count, channels, grid, grid, device=maps.device)
    bands, length = count * channels * grid, height * width // grid
    held = power_of_two(length)
    several = HELD // held
    try:
        with launching_on(maps.device):
            cell_kernel[(max(1, -(-bands // several)),)](
                maps, means, bands, length, width, GRID=grid, BANDS=several, LENGTH=held,
                num_warps=4,
            )  # fmt: skip
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # whatever Triton raises: PyTorch computes the same
        _works = False
        return None
    return means
