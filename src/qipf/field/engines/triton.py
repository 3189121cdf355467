r"""A fused CUDA kernel: scores, online softmax and averages in one pass, on the tensor cores.

The pair matrix stays in the registers. Products are in half precision, which is fast. For float32
accuracy, every number enters as the sum of two halves, :math:`x = x_h + x_l`, 22 bits together,
scaled by a power of two that brings the largest to :math:`[2^{14}, 2^{15})`. A score then is

.. math:: q\cdot k \approx q_h\cdot k_h + q_h\cdot k_l + q_l\cdot k_h,

summed in float32. Up to ten dimensions the three products and the bias fit side by side in the 32
entries of one tensor-core step (`packed_kernel`); beyond, they are three products (`wide_kernel`).
The weights :math:`p = 2^{s - r}` are split the same way before they multiply the centres, so they
too have 22 bits. Each block's sums are added outside the tensor cores, whose adder truncates.

The error of a score is at most :math:`2^{-20}\sum_c|q_c k_c|`, and was about a tenth of that when
measured; the relative error of weights and values is :math:`2^{-22}`. Both are within the float32
error for which `FusedEngine` checks. Rows that overflow become NaN, and `FusedEngine` recomputes
them.
"""

import math
import os
from contextlib import AbstractContextManager, nullcontext
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

#: Programs that one multiprocessor holds; if queries make fewer, the centres are split among them.
PROGRAMS_PER_PROCESSOR = 4


#: Launch options: queries per program, centres per step, warps, steps whose centres are loaded
#: ahead, and registers per thread (with 128, four programs share a multiprocessor). Neither kernel
#: spills registers, and both fit the shared memory of smaller chips too.
PACKED = {"ROWS": 64, "COLUMNS": 128, "num_warps": 4, "num_stages": 3, "maxnreg": 128}
WIDE = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 2, "maxnreg": 255}


class PackedCenters(NamedTuple):
    """Centres in half-precision pairs, as their kernel reads them."""

    kernel: Any
    tiles: tuple[Tensor, ...]  # N' rows each, N rounded up to whole blocks
    scales: tuple[float, ...]  # limit, exponents of keys and bias, units of stored keys and squares
    options: dict[str, int]  # of the launch, and the widths of the tiles


def pack_centers(
    keys: Tensor,  # (N, d)
    bias: Tensor,  # (N,)
) -> PackedCenters:
    """Keys and their bias, scaled, split and laid out for the kernel of their dimension.

    The last block is padded with copies of the last centre with 2^-200 of its weight: they change
    neither the largest score nor any sum, and the kernel needs no mask.
    """
    dimension = keys.shape[1]
    packed = dimension <= PACKED_DIMENSION
    kernel, options = (packed_kernel, PACKED) if packed else (wide_kernel, WIDE)
    spare = -keys.shape[0] % options["COLUMNS"]
    k_j = torch.cat([keys, keys[-1:].expand(spare, -1)]).double()
    square = torch.linalg.vecdot(k_j, k_j)
    # base 2 from here on: a factor in the data costs nothing per pair
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
        width = max(16, power_of_two(dimension))
        tiles = (*_split(pad(k_j, (0, width - dimension))), bias.float(), square.float())
        widths = {"VALUES": width}
    scales = (limit, key_exponent, bias_exponent, key_unit, square_unit)
    return PackedCenters(kernel, tiles, scales, {**options, **widths})


def _packed_tiles(
    k_j: Tensor, bias: Tensor, square: Tensor
) -> tuple[tuple[Tensor, Tensor], dict[str, int]]:
    key_high, key_low = _split(k_j)
    keys = torch.cat([key_high, key_low, key_high, *_split(bias[:, None])], dim=1)
    values = torch.cat([k_j, square[:, None], torch.ones_like(square)[:, None]], dim=1)
    widths = {
        "KEYS": max(16, power_of_two(keys.shape[1])),
        "VALUES": max(8, power_of_two(values.shape[1])),
    }
    keys = pad(keys, (0, widths["KEYS"] - keys.shape[1]))
    values = pad(values, (0, widths["VALUES"] - values.shape[1]))
    return (keys, torch.stack(_split(values), dim=2).flatten(1)), widths


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    high = x.to(torch.float16)
    return high, (x - high).to(torch.float16)


def _exponent(x: Tensor) -> int:
    """Exponent of two that scales the largest entry to [2^14, 2^15), between -100 and 100.

    >>> _exponent(torch.tensor([0.0, -1.0])), _exponent(torch.tensor([32767.0]))
    (14, 0)
    """
    return min(max(15 - math.frexp(float(x.abs().max()))[1], -100), 100)


def fused_averages(
    queries: Tensor,  # (Q, d) float32
    packed: PackedCenters,
) -> Averages:
    """Softmax averages of the centres at each query: logsumexp, mean and mean square."""
    count, dimension = queries.shape
    centers, options = packed.tiles[0].shape[0], packed.options
    programs = -(-count // options["ROWS"])
    if not programs:
        return Averages(queries.new_empty(0), queries.new_empty(0, dimension), queries.new_empty(0))
    span = _span(programs, centers, options["COLUMNS"], queries.device)
    splits = -(-centers // span)
    lse = queries.new_empty(splits, count, dtype=torch.float64)
    mean, square = queries.new_empty(splits, count, dimension), queries.new_empty(splits, count)
    arrays = (queries.contiguous(), *packed.tiles, lse, mean, square)
    sizes = (count, centers, span, dimension)
    with launching_on(queries.device):
        packed.kernel[(programs, splits)](
            *arrays, *sizes, *packed.scales, **options, enable_fp_fusion=True
        )
    if splits == 1:
        return Averages(lse[0], mean[0], square[0])
    joint = torch.logsumexp(lse, dim=0)
    share = torch.exp(lse - joint)
    return Averages(joint, (share[:, :, None] * mean).sum(0), (share * square).sum(0))


def _span(programs: int, count: int, columns: int, device: torch.device) -> int:
    """Centres per program: all, unless too few queries would leave multiprocessors idle."""
    processors = 1
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    # at least four blocks each: starting a program and joining its results take time
    splits = min(PROGRAMS_PER_PROCESSOR * processors // programs, count // (4 * columns))
    return -(-count // (max(splits, 1) * columns)) * columns


def no_triton(device: torch.device) -> str | None:
    """Why no kernel can run on this device; None if one can."""
    if not INSTALLED:
        return "needs the package triton, which is not installed (pip install triton)"
    if not INTERPRETED and (device.type != "cuda" or torch.version.cuda is None):
        return f"needs centers on an NVIDIA GPU, got {device}"
    return None


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Context in which kernels are launched on this device, or by Triton's interpreter."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`.

    >>> [power_of_two(size) for size in (1, 5, 16)]
    [1, 8, 16]
    """
    return 1 << (size - 1).bit_length()


def obstacle(centers: Tensor) -> str | None:
    """Why the kernel cannot run over these centres; None if it can."""
    if reason := no_triton(centers.device):
        return reason
    if centers.shape[1] > MAX_DIMENSION:
        return f"takes up to {MAX_DIMENSION} dimensions, got {centers.shape[1]}"
    return None


class TritonEngine(FusedEngine):
    """The fused kernel, in float32 accuracy; the reference engine computes float64."""

    pack = staticmethod(pack_centers)
    average = staticmethod(fused_averages)

    def __init__(
        self, centers: Tensor, bandwidth: float, log_weights: Tensor | None = None
    ) -> None:
        super().__init__(centers, bandwidth, log_weights)
        reason = obstacle(centers)
        if reason is not None:
            raise QIPFInputError(f"engine='triton' {reason}. Use engine='attention' instead.")
