"""One of the predictions of each input, drawn at random: they are exchangeable, all are not."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def one_per_input(
    shape: Sequence[int],  # (n, ...)
    first: int,
    known: Tensor | None = None,  # (n, ...) booleans
) -> Tensor:  # (≤ n,)
    """Indices into the flattened predictions, one drawn at random from each input.

    Pixels of one image, or labels of one input, depend on each other. A guarantee about a random
    prediction of a new input therefore needs one prediction of each input that it is compared
    with. The draw depends only on the input's place in the stream, which starts at `first`, not on
    the batches. Predictions that are not `known` are never drawn.

    >>> one_per_input((3, 100), 0).tolist() == one_per_input((2, 100), 0).tolist() + (
    ...     200 + one_per_input((1, 100), 2)
    ... ).tolist()
    True
    """
    count, each = shape[0], int(np.prod(shape[1:], dtype=np.int64))
    uniform = torch.from_numpy(_uniform(np.arange(first, first + count, dtype=np.uint64)))
    rows = torch.arange(count)
    if known is None:
        return rows * each + (uniform * each).long()
    places = known.reshape(count, each).cpu().long().cumsum(1)
    wanted = (uniform * places[:, -1]).long()[:, None]  # how many known ones come before
    return (rows * each + (places <= wanted).sum(1))[places[:, -1] > 0]


def _uniform(keys: np.ndarray) -> np.ndarray:  # (n,) integers -> (n,) in [0, 1)
    """Hash of each key (splitmix64), as a number."""
    with np.errstate(over="ignore"):
        z = (keys + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
