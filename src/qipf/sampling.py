"""A uniform sample of a stream, in bounded memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Reservoir:
    """Keeps `capacity` rows of a stream, each with the same chance.

    Every row draws a number as it passes; the rows with the smallest numbers stay. What stays
    therefore does not depend on how the stream was cut into batches.

    >>> reservoir = Reservoir(capacity=2, random=np.random.RandomState(0))
    >>> for start in range(0, 100, 10):
    ...     reservoir.add(torch.arange(start, start + 10)[:, None])
    >>> reservoir.seen, tuple(reservoir.rows.shape)
    (100, (2, 1))
    """

    def __init__(self, capacity: int, random: np.random.RandomState) -> None:
        self.capacity = capacity
        self.seen = 0
        self._random = random
        self._keys = torch.empty(0, dtype=torch.float64)
        self._rows: Tensor | None = None

    def add(self, rows: Tensor) -> None:  # (n, d)
        """Let the next rows of the stream pass."""
        keys = torch.from_numpy(self._random.random_sample(rows.shape[0]))
        self.seen += rows.shape[0]
        if self._rows is not None and self._keys.shape[0] == self.capacity:
            admitted = keys < self._keys.max()
            keys, rows = keys[admitted], rows[admitted.to(rows.device)]
        rows = rows.detach().cpu()
        if self._rows is not None:
            keys = torch.cat([self._keys, keys])
            rows = torch.cat([self._rows, rows])
        if keys.shape[0] > self.capacity:
            keys, kept = torch.topk(keys, self.capacity, largest=False)
            rows = rows[kept]
        self._keys, self._rows = keys, rows.clone()

    @property
    def rows(self) -> Tensor:  # (min(seen, capacity), d)
        """The sample, in the order of its draws: any leading part is a uniform sample too."""
        if self._rows is None:
            return torch.empty(0, 0)
        return self._rows[torch.argsort(self._keys)]
