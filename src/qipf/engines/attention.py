"""PyTorch's fused attention, which also returns its logsumexp: on the CPU and on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from qipf.engines.fused import Averages, FusedEngine


class AttentionEngine(FusedEngine):
    """One attention head whose keys are the centres.

    Scores are ``[q, 1]·[k, bias]``, values ``[k, |k|²]``, both padded to a width the kernels like.
    CPU: float32 and float64. CUDA: float32; what needs float64 there, the reference computes.
    """

    def supports(self, dtype: torch.dtype) -> bool:
        """Float32 everywhere, float64 on the CPU."""
        return dtype == torch.float32 or self.centers.device.type == "cpu"

    def pack(self, keys: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The head's keys and values, (1, 1, N, width) each."""
        square = torch.linalg.vecdot(keys, keys)
        scoring = _widened(torch.cat([keys, bias[:, None]], dim=1))
        values = _widened(torch.cat([keys, square[:, None]], dim=1))
        return scoring[None, None], values[None, None]

    def average(self, queries: Tensor, packed: tuple[Tensor, Tensor]) -> Averages:
        """One fused call over a block of queries and a block of centres."""
        keys, values = packed
        dimension = queries.shape[1]
        queries = _widened(pad(queries, (0, 1), value=1.0))[None, None]
        if queries.device.type == "cpu":
            output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                queries, keys, values, scale=1.0
            )
        else:
            output, lse, _, _ = torch.ops.aten._scaled_dot_product_efficient_attention(
                queries, keys, values, None, compute_log_sumexp=True, scale=1.0
            )
        output, lse = output[0, 0], lse[0, 0, : queries.shape[2]]
        return Averages(lse, output[:, :dimension], output[:, dimension])


def _widened(matrix: Tensor) -> Tensor:
    """Zero columns up to a multiple of four: twice as fast on the CPU, and CUDA asks for it."""
    return pad(matrix, (0, -matrix.shape[1] % 4)).contiguous()
