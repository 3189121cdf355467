r"""A fused CUDA kernel: scores, online softmax and averages in one pass, on the tensor cores.

The pair matrix never leaves the registers. What makes it fast is half precision, what keeps it
exact is that every number enters as two of them: :math:`x = x_h + x_l`, 22 bits in all, after a
power of two has brought the largest to :math:`[2^{14}, 2^{15})`. A score then is

.. math:: q\cdot k \approx q_h\cdot k_h + q_h\cdot k_l + q_l\cdot k_h,

summed in float32. Up to ten dimensions the three products and the bias lie side by side in the 32
entries that one tensor-core step takes anyway (`packed_kernel`); beyond, they are three products
(`wide_kernel`). The weights :math:`p = 2^{s - r}` are split the same way before they multiply the
centres, so they too carry 22 bits, and each block's sums are added up outside the tensor cores,
whose own adder truncates.

Error of one score: at most :math:`2^{-20}\sum_c|q_c k_c|`, seen around a tenth of that; weights
and values are off by a relative :math:`2^{-22}`. Both stay within the float32 loss for which the
shared code checks. Rows that overflow come out as NaN, which it recomputes.
"""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from qipf.errors import QIPFInputError
from qipf.field.engines.fused import Averages, FusedEngine
from qipf.field.engines.triton_kernels import INSTALLED, packed_kernel, wide_kernel

#: Largest dimension whose tiles fit the chip's registers and shared memory.
MAX_DIMENSION = 128

#: Up to here three products and the two halves of the bias fill 32 entries.
PACKED_DIMENSION = 10

#: Triton's interpreter runs the kernels on the CPU: for tests, not for use.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

#: Programs one multiprocessor holds; fewer blocks of queries than that share out the centres.
PROGRAMS_PER_PROCESSOR = 4


class Tiling(NamedTuple):
    """How a kernel cuts its work, and what it may take of the chip."""

    rows: int  # queries per program
    columns: int  # centres per step
    warps: int
    stages: int  # steps whose centres are loaded ahead
    registers: int  # per thread: 128 let four programs share a multiprocessor


#: Neither spills registers, and both fit the shared memory of smaller chips too.
PACKED_TILING = Tiling(rows=64, columns=128, warps=4, stages=3, registers=128)
WIDE_TILING = Tiling(rows=64, columns=64, warps=4, stages=2, registers=255)


class PackedCenters(NamedTuple):
    """Centres in half-precision pairs, as their kernel reads them."""

    kernel: Any
    tiling: Tiling
    tiles: tuple[Tensor, ...]  # N' rows each, N rounded up to whole blocks
    limit: int
    exponents: tuple[int, int]  # of keys and bias
    units: tuple[float, float]  # of the stored keys and squares
    widths: dict[str, int]


def pack_centers(
    keys: Tensor,  # (N, d)
    bias: Tensor,  # (N,)
) -> PackedCenters:
    """Keys and their bias, scaled, split and laid out for the kernel of their dimension.

    The last block is filled up with copies of the last centre that weigh 2^-200 of it: they change
    neither the largest score nor any sum, and the kernel needs no mask.
    """
    dimension = keys.shape[1]
    packed = dimension <= PACKED_DIMENSION
    tiling = PACKED_TILING if packed else WIDE_TILING
    spare = -keys.shape[0] % tiling.columns
    k_j = torch.cat([keys, keys[-1:].expand(spare, -1)]).double()
    square = torch.linalg.vecdot(k_j, k_j)
    # base 2 from here on: folded into the data, it costs nothing per pair
    bias = torch.cat([bias, bias[-1:].expand(spare)]).double() / math.log(2)
    bias[keys.shape[0] :] -= 200
    k_j /= math.log(2)
    key_exponent, bias_exponent = _exponent(k_j), _exponent(bias)
    k_j *= 2.0**key_exponent
    # neither a row's largest entry nor the bias may leave half precision's range
    limit = min(14 - key_exponent + bias_exponent, 100)
    key_unit, square_unit = math.log(2) * 2.0**-key_exponent, 1.0
    tiles: tuple[Tensor, ...]
    if packed:
        square_exponent = _exponent(square)
        square_unit = 2.0**-square_exponent
        tiles, widths = _packed_tiles(k_j, bias * 2.0**bias_exponent, square * 2.0**square_exponent)
    else:
        width = max(16, 1 << (dimension - 1).bit_length())
        tiles = (*_split(pad(k_j, (0, width - dimension))), bias.float(), square.float())
        widths = {"VALUES": width}
    exponents, units = (key_exponent, bias_exponent), (key_unit, square_unit)
    kernel = packed_kernel if packed else wide_kernel
    return PackedCenters(kernel, tiling, tiles, limit, exponents, units, widths)


def _packed_tiles(
    k_j: Tensor, bias: Tensor, square: Tensor
) -> tuple[tuple[Tensor, Tensor], dict[str, int]]:
    key_high, key_low = _split(k_j)
    keys = torch.cat([key_high, key_low, key_high, *_split(bias[:, None])], dim=1)
    values = torch.cat([k_j, square[:, None], torch.ones_like(square)[:, None]], dim=1)
    widths = {
        "KEYS": max(16, 1 << (keys.shape[1] - 1).bit_length()),
        "VALUES": max(8, 1 << (values.shape[1] - 1).bit_length()),
    }
    keys = pad(keys, (0, widths["KEYS"] - keys.shape[1]))
    values = pad(values, (0, widths["VALUES"] - values.shape[1]))
    return (keys, torch.stack(_split(values), dim=2).flatten(1)), widths


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    high = x.to(torch.float16)
    return high, (x - high).to(torch.float16)


def _exponent(x: Tensor) -> int:
    """What brings the largest entry to [2^14, 2^15), within reason.

    >>> _exponent(torch.tensor([0.0, -1.0])), _exponent(torch.tensor([32767.0]))
    (14, 0)
    """
    return min(max(15 - math.frexp(float(x.abs().max()))[1], -100), 100)


def fused_averages(
    queries: Tensor,  # (Q, d) float32, contiguous
    centers: PackedCenters,
) -> Averages:
    """Softmax averages of the centres at each query: logsumexp, mean and mean square."""
    count, dimension = queries.shape
    tiling, tiles = centers.tiling, centers.tiles
    programs = -(-count // tiling.rows)
    if not programs:
        return Averages(queries.new_empty(0), queries.new_empty(0, dimension), queries.new_empty(0))
    span = _span(programs, tiles[0].shape[0], tiling.columns, queries.device)
    splits = -(-tiles[0].shape[0] // span)
    lse = queries.new_empty(splits, count, dtype=torch.float64)
    mean, square = queries.new_empty(splits, count, dimension), queries.new_empty(splits, count)
    sizes = (count, tiles[0].shape[0], span, dimension)
    with torch.cuda.device(queries.device) if queries.is_cuda else nullcontext():
        centers.kernel[(programs, splits)](
            *(queries.contiguous(), *tiles, lse, mean, square),
            *(*sizes, centers.limit, *centers.exponents, *centers.units),
            **centers.widths,
            ROWS=tiling.rows,
            COLUMNS=tiling.columns,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            maxnreg=tiling.registers,
            enable_fp_fusion=True,
        )
    if splits == 1:
        return Averages(lse[0], mean[0], square[0])
    joint = torch.logsumexp(lse, dim=0)
    share = torch.exp(lse - joint)
    return Averages(joint, (share[:, :, None] * mean).sum(0), (share * square).sum(0))


def _span(programs: int, count: int, columns: int, device: torch.device) -> int:
    """Centres per program: all, unless too few queries would leave the chip idle."""
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 1
    )
    # at least four blocks each: starting and joining a program is not free
    splits = min(PROGRAMS_PER_PROCESSOR * processors // programs, count // (4 * columns))
    return -(-count // (max(splits, 1) * columns)) * columns


def obstacle(centers: Tensor) -> str | None:
    """Why the kernel cannot run over these centres, and the way out; None if it can."""
    if not INSTALLED:
        return (
            "engine='triton' needs the package triton, which is not installed. "
            "Install it (pip install triton), or use engine='attention'."
        )
    if not INTERPRETED and (not centers.is_cuda or torch.version.cuda is None):
        return (
            f"engine='triton' needs centers on an NVIDIA GPU, got {centers.device}. "
            "Move them there, or use engine='attention'."
        )
    if centers.shape[1] > MAX_DIMENSION:
        return (
            f"engine='triton' takes up to {MAX_DIMENSION} dimensions, got {centers.shape[1]}. "
            "Use engine='attention'."
        )
    return None


class TritonEngine(FusedEngine):
    """The fused kernel, in float32 accuracy; what needs float64, the reference computes."""

    def __init__(
        self, centers: Tensor, bandwidth: float, log_weights: Tensor | None = None
    ) -> None:
        super().__init__(centers, bandwidth, log_weights)
        reason = obstacle(centers)
        if reason is not None:
            raise QIPFInputError(reason)

    def pack(self, keys: Tensor, bias: Tensor) -> PackedCenters:
        """See `pack_centers`."""
        return pack_centers(keys, bias)

    def average(self, queries: Tensor, packed: PackedCenters) -> Averages:
        """See `fused_averages`."""
        return fused_averages(queries, packed)
