"""Fused attention whose logsumexp has gradients too: what fitting the centres of a field needs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

#: Queries are computed in so many blocks, each by one thread.
BLOCKS = 8


def averages(
    queries: Tensor,  # (n, d)
    keys: Tensor,  # (m, d)
    bias: Tensor,  # (m,)
    values: Tensor,  # (m, d)
    squares: Tensor,  # (m,)
) -> tuple[Tensor, Tensor, Tensor]:  # (n,), (n, d), (n,)
    """Logsumexp of q·k + bias, and the softmax averages of the values and their squares.

    Gradients flow to all but the queries. On the CPU only.

    >>> key = torch.zeros(1, 2, requires_grad=True)
    >>> lse, mean, _ = averages(torch.ones(3, 2), key, torch.ones(1), key + 5, torch.ones(1))
    >>> lse.tolist(), mean[0].tolist()
    ([1.0, 1.0, 1.0], [5.0, 5.0])
    """
    one, zero = queries.new_ones(queries.shape[0], 1), queries.new_zeros(queries.shape[0], 1)
    asking = torch.cat([queries, one, zero], 1)
    offering = torch.cat([keys, bias[:, None], torch.zeros_like(bias)[:, None]], 1)
    giving = torch.cat([values, squares[:, None], torch.ones_like(bias)[:, None]], 1)
    lse, output = _Attention.apply(asking, offering, giving)
    return lse, output[:, :-2], output[:, -2]


class _Attention(torch.autograd.Function):
    """PyTorch's fused attention on the CPU, with gradients for its logsumexp too.

    The fused kernel's own gradient of a score is ``w (g·v - g·o)``, g that of the output o. The
    last value of every key is one: with the gradient of the logsumexp as its g, and a zero in the
    place of its o, the kernel adds ``w g`` for it.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        blocks = math.gcd(queries.shape[0], BLOCKS)
        split = queries.reshape(blocks, 1, -1, queries.shape[1])
        shared = [part.expand(blocks, 1, *part.shape) for part in (keys, values)]
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            split, *shared, scale=1.0
        )
        ctx.save_for_backward(split, *shared, output, lse)
        return lse.reshape(-1), output.reshape(-1, values.shape[1])

    @staticmethod
    def backward(ctx: Any, lse_grad: Tensor, output_grad: Tensor) -> tuple[Any, ...]:
        split, keys, values, output, lse = ctx.saved_tensors
        grad = output_grad.reshape(output.shape).clone()
        grad[..., -1] = lse_grad.reshape(lse.shape)
        output = output.clone()
        output[..., -1] = 0.0
        _, keys_grad, values_grad = (
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, split, keys, values, output, lse, 0.0, False, scale=1.0
            )
        )
        return None, keys_grad.sum((0, 1)), values_grad.sum((0, 1))
