"""PyTorch's fused attention, which also returns its logsumexp: on the CPU and on CUDA."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qipf.field.engines.fused import Averages, FusedEngine
from qipf.field.engines.online import LOG2_E, online_step


class AttentionEngine(FusedEngine):
    """One attention head whose keys and values are the centres.

    Scores are ``[q, 1, 0]·[k, bias, |k|²]``, padded to a width for which the kernels are fast. The
    average of the same rows holds every moment, so the caches hold one array instead of two. CPU:
    float32 and float64. CUDA: float32; the reference engine computes float64 there.
    """

    def supports(self, dtype: torch.dtype) -> bool:
        """Float32 on every device, float64 on the CPU."""
        return dtype == torch.float32 or self.centers.device.type == "cpu"

    def pack(self, keys: Tensor, bias: Tensor) -> Tensor:
        """Keys of the head, also its values: ``[k, bias, |k|², 0...]``, (1, 1, N, width)."""
        count, dimension = keys.shape
        centers = keys.new_zeros(count, head_width(keys))
        centers[:, :dimension] = keys
        centers[:, dimension] = bias
        centers[:, dimension + 1] = torch.linalg.vecdot(keys, keys)
        return centers[None, None]

    def average(self, queries: Tensor, packed: Tensor) -> Averages:
        """One fused call over a block of queries and a block of centres."""
        count, dimension = queries.shape
        heads, rows = layout(queries)
        padded = queries.new_zeros(heads * rows, packed.shape[-1])
        padded[:count, :dimension] = queries
        padded[:, dimension] = 1.0
        centers = packed.expand(heads, -1, -1, -1)
        output, lse = _fused(padded.view(heads, 1, rows, -1), centers, centers)
        output, lse = output.reshape(heads * rows, -1)[:count], lse.reshape(-1)[:count]
        return Averages(lse, output[:, :dimension], output[:, dimension + 1])


def _fused(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Output and logsumexp of unscaled attention; all tensors are (heads, 1, rows, width)."""
    if queries.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(queries, keys, values, scale=1.0)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    output, lse, _, _ = kernel(queries, keys, values, None, compute_log_sumexp=True, scale=1.0)
    return output, lse


def layout(queries: Tensor) -> tuple[int, int]:
    """Number of heads, and of queries in each, for which the CPU kernel is accurate and fast.

    It takes 32 queries or more at a time. Its matrix products sum one to three rows in another
    order, with several times the error of four and more. With a multiple of four, a row's result
    does not depend on its batch. Few queries are split into two heads, so that threads share them
    once instead of in each small product.

    >>> [layout(torch.zeros(count, 1)) for count in (1, 7, 32, 33)]
    [(2, 4), (2, 4), (2, 16), (1, 36)]
    """
    count = queries.shape[0]
    if queries.device.type != "cpu":
        return 1, count
    heads = 2 if count <= 32 else 1
    return heads, -(-count // (4 * heads)) * 4


def head_width(keys: Tensor) -> int:
    """Number of columns, at least d + 2, for which the kernels are fastest.

    CUDA needs a multiple of four, and the CPU is up to twice as fast with one. In float32 its
    matrix products take less time for 16 columns than for 4, 8 or 12; in float64 they do not.

    >>> head_width(torch.zeros(1, 10)), head_width(torch.zeros(1, 10).double())
    (16, 12)
    """
    least = 16 if keys.device.type == "cpu" and keys.dtype == torch.float32 else 4
    return max(least, -(-(keys.shape[1] + 2) // 4) * 4)


def differentiable_averages(
    queries: Tensor,  # (n, d)
    keys: Tensor,  # (m, d)
    bias: Tensor,  # (m,)
    values: Tensor,  # (m, d)
    squares: Tensor,  # (m,)
    memory: Tensor | None = None,  # (2, at least n·m) to work in
) -> Averages:
    """Logsumexp of q·k + bias, and the softmax averages of the values and of the squares.

    Differentiable in all arguments but the queries. `memory` is reused, because allocating it takes
    as long as the computation; take gradients before the next call with it.

    >>> key, one = torch.zeros(1, 2, requires_grad=True), torch.ones(1)
    >>> found = differentiable_averages(torch.ones(3, 2), key, one, key + 5, one)
    >>> found.logsumexp.tolist(), found.mean[0].tolist()
    ([1.0, 1.0, 1.0], [5.0, 5.0])
    """
    count, dimension = queries.shape
    if memory is None:
        memory = queries.new_empty(2, count * len(keys))
    padding = head_width(keys) - dimension - 2
    one = torch.ones_like(bias)[:, None]
    lse, output = _Attention.apply(
        functional.pad(functional.pad(queries, (0, 1), value=1.0), (0, padding + 1)),
        functional.pad(torch.cat([keys, bias[:, None]], 1), (0, padding + 1)),
        torch.cat([values, functional.pad(squares[:, None], (0, padding)), one], 1),
        memory[:, : count * len(keys)].unflatten(1, (len(keys), count)),
    )
    return Averages(lse, output[:, :dimension], output[:, dimension])


class _Attention(torch.autograd.Function):
    """Attention that keeps its exponentials, with gradients of its logsumexp too.

    The gradient of a score is ``w (g·v - g·o + h)``, with g the gradient of the output o and h that
    of the logsumexp. The last value of every key is one: one product gives the output and the sum
    of the exponentials, and another all of the bracket.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        scores = torch.mm(keys * LOG2_E, queries.T, out=memory[0])
        kernel, _, top = online_step(scores, queries.new_full((len(queries),), -math.inf))
        sums = values.T @ kernel  # (w, n)
        total = sums[-1]
        output = (sums / total).T
        ctx.save_for_backward(queries, values, output, total)
        ctx.memory = memory
        return top / LOG2_E + total.log(), output

    @staticmethod
    def backward(ctx: Any, lse_grad: Tensor, output_grad: Tensor) -> tuple[Any, ...]:
        queries, values, output, total = ctx.saved_tensors
        kernel, held = ctx.memory
        grad = output_grad / total[:, None]
        bracket = grad.clone()
        bracket[:, -1] = lse_grad / total - torch.linalg.vecdot(grad, output)
        scores_grad = torch.mm(values, bracket.T, out=held).mul_(kernel)
        return None, scores_grad @ queries, kernel @ grad, None
