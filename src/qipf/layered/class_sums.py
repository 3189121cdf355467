r"""Kernels summed by class, in tiles of centres, in memory that does not grow with the classes.

.. math:: s_c = \sum_{y_i = c} m_i\, e^{a_i - a^*}, \qquad
          a_i = \frac{u \cdot u_i}{\sigma^2}, \qquad a^* = \max_i a_i

for unit vectors u, and centres :math:`u_i` of class :math:`y_i` and count :math:`m_i`. The centres
are sorted by class, so that every class is a segment of them. For each tile of centres the scores
are computed, exponentiated in place and summed by segment. The maximum is that of the tiles so far:
where it rises, the sums are scaled down (`qipf.field.engines.online`). A kernel of half the squared
bandwidth is the square of the other, which is faster than another exponential.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from qipf.field.engines.base import blocks, by_device
from qipf.field.engines.online import LOG2_E, online_step, padded
from qipf.field.engines.products import product

#: Scores in a tile, by kind of device. 4 MB fit in a CPU's shared cache. Smaller tiles were 5%
#: faster alone, and several times slower when other programs compete for the cores: threads
#: synchronise after each step.
TILE = {"cpu": 2**20, "cuda": 2**24}

#: Largest number of rows at once, by kind of device.
ROWS = {"cpu": 256, "cuda": 2048}

#: Most centres of a segment: sums are shorter, so their rounding errors are smaller, and more of
#: them are computed at the same time. A tile has one or several such chunks.
CHUNK = 128

#: Most successive squarings: each doubles the rounding error of a kernel.
SQUARINGS = 4


class Sums(NamedTuple):
    """Kernels of some rows at one width."""

    by_class: Tensor  # (n, classes)  s
    nearest: Tensor  # (n,)  a* - 1/σ², the logarithm of the nearest centre's kernel


class ClassSums:
    """Sums over given centres by class.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> sums = ClassSums(embeddings, torch.tensor([0, 1, 0]), torch.ones(3), 2)
    >>> sums(embeddings[:1], [1.0])[0].by_class
    tensor([[2.0000, 0.3679]])
    """

    def __init__(
        self,
        embeddings: Tensor,  # (N, d)
        labels: Tensor,  # (N,)
        counts: Tensor,  # (N,)
        classes: int,
    ) -> None:
        if bool((labels[1:] < labels[:-1]).any()):
            order = labels.argsort(stable=True)
            embeddings, labels, counts = embeddings[order], labels[order], counts[order]
        self.embeddings, self.classes = embeddings, classes
        self._counts = None if bool((counts == 1).all()) else counts
        places = torch.arange(len(labels), device=labels.device)
        first = places % CHUNK == 0  # of a segment: a chunk starts, or a class
        first[1:] |= labels[1:] != labels[:-1]
        self._starts = places[first]  # (S,)
        self._labels = labels[first].long()  # (S,) ascending
        self._places = places
        # of every chunk, on the CPU: which segments a tile has is known without waiting for a GPU
        self._before = [*(first.cumsum(0)[::CHUNK] - 1).tolist(), len(self._starts)]

    def __call__(
        self,
        rows: Tensor,  # (n, d) at most `ROWS` unit vectors
        bandwidths: list[float],
    ) -> list[Sums]:
        """The sums at each bandwidth, in one pass over the centres for each of the `chains`."""
        found: dict[int, Sums] = {}
        for chain in chains(bandwidths):
            widest = bandwidths[chain[0][0]]
            sums = self._chained(rows, 1 / (widest * widest), [steps for _, steps in chain])
            found |= {place: own for (place, _), own in zip(chain, sums, strict=True)}
        return [found[place] for place in range(len(bandwidths))]

    def _chained(self, rows: Tensor, inverse: float, squarings: list[int]) -> list[Sums]:
        """The sums at the bandwidth 1/√inverse, and then after the given squarings each."""
        scaled = padded(rows * (inverse * LOG2_E))  # (n', d)
        wide = len(scaled)
        top = rows.new_full((wide,), -math.inf)
        sums = [rows.new_zeros(self.classes, wide) for _ in squarings]
        size = max(1, by_device(TILE, rows) // wide // CHUNK) * CHUNK
        for tile in blocks(len(self.embeddings), size):
            kernel, lowered, top = online_step(product(self.embeddings[tile], scaled), top)
            segments = slice(
                self._before[tile.start // CHUNK], self._before[-(-tile.stop // CHUNK)]
            )
            labels = self._labels[segments]
            for whole, steps in zip(sums, squarings, strict=True):
                for _ in range(steps):
                    kernel, lowered = kernel.square_(), lowered.square_()
                whole.mul_(lowered).index_add_(0, labels, self._by_segment(kernel, tile, segments))
            del kernel  # before the memory of the next tile is taken
        nearest, found = (top[: len(rows)].double() / LOG2_E - inverse).to(rows), []
        for whole, steps in zip(sums, squarings, strict=True):
            nearest = nearest * 2**steps
            found.append(Sums(whole[:, : len(rows)].T, nearest))
        return found

    def _by_segment(self, kernel: Tensor, tile: slice, segments: slice) -> Tensor:  # (s, n')
        return functional.embedding_bag(
            self._places[: len(kernel)],
            kernel,
            self._starts[segments] - tile.start,
            mode="sum",
            per_sample_weights=None if self._counts is None else self._counts[tile],
        )


def chains(bandwidths: list[float]) -> list[list[tuple[int, int]]]:
    """Indices of the bandwidths, widest first, with the squarings from the one before to each.

    A bandwidth that squarings of the first one in a chain do not reach starts a new chain.

    >>> chains([0.5, 1.0, 2**0.5, 3.0])
    [[(3, 0)], [(2, 0), (1, 1), (0, 2)]]
    """
    found: list[list[tuple[int, int]]] = []
    first, done = math.inf, 0
    for place in sorted(range(len(bandwidths)), key=lambda place: -bandwidths[place]):
        times = min(2 * math.log2(first / bandwidths[place]), SQUARINGS + 1)
        squarings = round(times)
        if abs(times - squarings) > 1e-9 or squarings > SQUARINGS:
            found.append([])
            first, done, squarings = bandwidths[place], 0, 0
        found[-1].append((place, squarings - done))
        done = squarings
    return found
