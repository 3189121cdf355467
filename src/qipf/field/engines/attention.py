"""PyTorch's fused attention, which also returns its logsumexp: on the CPU and on CUDA."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qipf.field.engines.fused import Averages, FusedEngine


class Head(NamedTuple):
    """A block of centres as the keys of one attention head, which are its values too."""

    centers: Tensor  # (1, 1, N, width)  [k, bias, |k|², 0...]
    blank: Tensor  # (1, width)  [0..., 1, 0, 0...], a query at the origin


class AttentionEngine(FusedEngine):
    """One attention head whose keys and values are the centres.

    Scores are ``[q, 1, 0]·[k, bias, |k|²]``, padded to a width the kernels like, and the average of
    the same rows holds every moment: one array in the caches instead of two. CPU: float32 and
    float64. CUDA: float32; what needs float64 there, the reference computes.
    """

    def supports(self, dtype: torch.dtype) -> bool:
        """Float32 everywhere, float64 on the CPU."""
        return dtype == torch.float32 or self.centers.device.type == "cpu"

    def pack(self, keys: Tensor, bias: Tensor) -> Head:
        """The head's keys, and the form of a query."""
        count, dimension = keys.shape
        width = head_width(keys)
        centers = keys.new_zeros(count, width)
        centers[:, :dimension] = keys
        centers[:, dimension] = bias
        centers[:, dimension + 1] = torch.linalg.vecdot(keys, keys)
        blank = keys.new_zeros(1, width)
        blank[0, dimension] = 1.0
        return Head(centers[None, None], blank)

    def average(self, queries: Tensor, packed: Head) -> Averages:
        """One fused call over a block of queries and a block of centres."""
        count, dimension = queries.shape
        centers, blank = packed
        heads, rows = layout(queries)
        asking = blank.repeat(heads * rows, 1)
        asking[:count, :dimension] = queries
        asking = asking.view(heads, 1, rows, -1)
        if queries.device.type == "cpu":
            centers = centers.expand(heads, -1, -1, -1)
            output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                asking, centers, centers, scale=1.0
            )
        else:
            output, lse, _, _ = torch.ops.aten._scaled_dot_product_efficient_attention(
                asking, centers, centers, None, compute_log_sumexp=True, scale=1.0
            )
        output, lse = output.reshape(heads * rows, -1)[:count], lse.reshape(-1)[:count]
        return Averages(lse, output[:, :dimension], output[:, dimension + 1])


def layout(queries: Tensor) -> tuple[int, int]:
    """Heads, and queries in each: what the CPU kernel is accurate and quick with.

    It takes 32 queries or more at a time, and its matrix products add up one to three rows in
    another order and with several times the error of four and more. In whole fours a row's result
    does not depend on its batch. Of few queries it would leave the sharing out among threads to
    each small product: two heads do that once.

    >>> [layout(torch.zeros(count, 1)) for count in (1, 7, 32, 33)]
    [(2, 4), (2, 4), (2, 16), (1, 36)]
    """
    count = queries.shape[0]
    if queries.device.type != "cpu":
        return 1, count
    heads = 2 if count <= 32 else 1
    return heads, -(-count // (4 * heads)) * 4


def head_width(keys: Tensor) -> int:
    """Columns for a key and two numbers more that the kernels are fastest with.

    CUDA asks for a multiple of four, and the CPU is up to twice as fast with one. In float32 its
    matrix products take less time for 16 columns than for 4, 8 or 12; in float64 they do not.

    >>> head_width(torch.zeros(1, 10)), head_width(torch.zeros(1, 10).double())
    (16, 12)
    """
    least = 16 if keys.device.type == "cpu" and keys.dtype == torch.float32 else 4
    return max(least, -(-(keys.shape[1] + 2) // 4) * 4)
