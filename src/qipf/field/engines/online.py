r"""Sums of kernels over tiles of centres, as in an online softmax: what all such sums share.

Scores are in base 2, :math:`a \log_2 e`: torch computes powers of two in a third of the time of
exponentials, a GPU in fewer instructions, and the factor in the data costs nothing per pair. A tile
has a column for each row, so that its largest scores are found, and subtracted, in whole vectors.
`qipf.field.engines.triton_kernels.online_step` is the same on a GPU.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

LOG2_E = math.log2(math.e)


def online_step(
    scores: Tensor,  # (t, n) of a tile of centres, overwritten
    top: Tensor,  # (n,) largest score of the tiles before, or -inf
) -> tuple[Tensor, Tensor, Tensor]:  # (t, n), (n,), (n,)
    """Kernels of a tile, the factor for the sums of earlier tiles, and the new largest scores.

    >>> kernel, lowered, top = online_step(torch.tensor([[3.0], [5.0]]), torch.tensor([4.0]))
    >>> kernel.tolist(), lowered.tolist(), top.tolist()
    ([[0.25], [1.0]], [0.5], [5.0])
    """
    higher = torch.maximum(top, highest(scores))
    return scores.sub_(higher).exp2_(), (top - higher).exp2_(), higher


def highest(scores: Tensor) -> Tensor:  # (t, n) -> (n,)
    """The largest score of every column.

    64 centres side by side first: torch vectorises a maximum over the outer axis only if the
    length of the inner one is a multiple of 32.
    """
    whole = len(scores) // 64 * 64
    if whole == 0:
        return scores.amax(0)
    beside = scores[:whole].view(-1, 64 * scores.shape[1]).amax(0)
    return torch.cat([beside.view(64, -1), scores[whole:]]).amax(0)


def padded(rows: Tensor) -> Tensor:  # (n, d) -> (n', d)
    """Rows of zeros added, to a multiple of 4 or 16: products are twice as fast then.

    >>> [len(padded(torch.zeros(count, 1))) for count in (0, 5, 9)]
    [4, 8, 16]
    """
    count = max(1, len(rows))
    whole = -(-count // 4) * 4 if count <= 8 else -(-count // 16) * 16
    return functional.pad(rows, (0, 0, 0, whole - len(rows)))
