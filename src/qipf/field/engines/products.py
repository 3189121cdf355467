"""Products of rows with rows in float32, by the library that computes them fastest.

On a CPU torch multiplies matrices with MKL, which uses 512-bit vectors on Intel's processors alone.
oneDNN, with which torch computes convolutions, uses them on all that have them.
"""

from functools import cache

import torch
from torch import Tensor

#: Fewest multiplications, and fewest of the other rows, for which oneDNN is used: a call takes
#: longer than the product of less, and reading the rows takes longer than a product with fewer.
FEWEST, NARROWEST = 2**21, 8


def product(
    rows: Tensor,  # (n, d)
    others: Tensor,  # (m, d)
    bias: Tensor | None = None,  # (m,)
) -> Tensor:  # (n, m)
    """``rows @ others.T + bias``.

    About twice as fast as by MKL on AMD's processors with 512-bit vectors.

    >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[11., 17.]])
    """
    if _usable(rows, others):
        return _by_onednn(rows, others, bias)
    return rows @ others.T if bias is None else torch.addmm(bias, rows, others.T)


def _usable(rows: Tensor, others: Tensor) -> bool:
    """Whether oneDNN can compute the product, and is expected to be faster."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    if others.shape[0] < NARROWEST or rows.numel() * others.shape[0] < FEWEST:
        return False
    if rows.device.type != "cpu" or rows.dtype != torch.float32 or others.dtype != torch.float32:
        return False
    if torch.is_grad_enabled() and (rows.requires_grad or others.requires_grad):
        return False
    return _installed() and bool(torch.backends.mkldnn.enabled)


@cache
def _installed() -> bool:
    """Whether the processor has 512-bit vectors, and torch the product of oneDNN as it is here."""
    if not torch.backends.mkldnn.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    rows = torch.arange(6, dtype=torch.float32, device="cpu").view(3, 2)
    try:
        return bool(torch.equal(_by_onednn(rows, rows), rows @ rows.T))
    except (AttributeError, RuntimeError, TypeError):  # it is no public part of torch
        return False


def _by_onednn(rows: Tensor, others: Tensor, bias: Tensor | None = None) -> Tensor:
    if not others.is_contiguous() and not others.T.is_contiguous():
        others = others.contiguous()  # oneDNN takes a thousand times as long for a part of a matrix
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, others, bias, "none", [], "")
    return found
