"""Ranks of a stream among held-out scores and its own past: p-values that are exactly independent.

Ranked against a fixed held-out set, all predictions of a stream share that set's luck: their
p-values are uniform one by one, but not independent, and a test that runs longer than the set is
large takes that luck for a shift. Here every prediction joins those that later ones are ranked
among, which makes the p-values independent and uniform, whatever the size of the set.
"""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from qipf.calibration.conformal import Calibration
from qipf.calibration.quantization import rounded

#: Bins, at most, that the held-out scores are cut into: what bounds the memory.
MOST_BINS = 1024

#: Predictions ranked at a time, fewer than 256: their ranks among one another take its square.
CHUNK = 128

_EARLIER = np.tri(CHUNK, k=-1, dtype=bool)  # (prediction, those before it)

#: Streams of random numbers under one seed.
_HELD_OUT, _STREAM = 0, 1


class StreamRanks:
    r"""Exact p-values of a stream, in bounded memory.

    The :math:`n` held-out scores leave :math:`n + 1` gaps, which stand in :math:`K` bins; bin
    :math:`k` has :math:`a_k` of them and, after :math:`t` predictions, :math:`c_k` of the stream.
    If stream and held-out scores are exchangeable, the next prediction falls into any gap between
    all :math:`n + t` scores with the same probability, whatever came before, hence into bin
    :math:`k` with probability :math:`N_k/N`, :math:`N_k = a_k + c_k`, :math:`N = n + 1 + t` (a
    Pólya urn). So, with :math:`u` uniform on (0, 1) and :math:`b` the bin it falls into,

    .. math:: p = \Big(\sum_{k > b} N_k + u N_b\Big) / N

    is uniform given the whole past: the p-values are independent and uniform. This holds over the
    draw of the held-out set and of the stream, for any :math:`n`, and takes no more memory than
    the counts. Equal scores are told apart by a random number that belongs to each; the bins are
    chosen by rank alone, the same for every set of :math:`n` scores. Scores are ranked as
    `qipf.calibration.quantization` leaves them, so that equal predictions stay equal whatever the last bits of
    their scores.

    Random numbers depend on the seed and the prediction's place in the stream, not on how the
    stream was cut into batches.
    """

    def __init__(self, calibration: Calibration, seed: int) -> None:
        self.seed = seed
        n = len(calibration)
        ranks = _edge_ranks(n)
        tie_breaks = _uniforms(seed, _HELD_OUT, 0, n)[:, 0]
        scores = calibration.rounded_scores
        order = np.lexsort((tie_breaks, scores))[ranks - 1]
        self._edges = scores[order]
        # equal edges are told apart by their tie breaks, within the place of the first of them
        self._keys = np.searchsorted(self._edges, self._edges, side="left") + tie_breaks[order]
        self.gaps = np.diff(np.concatenate([[0], ranks, [n + 1]]))
        self.counts = np.zeros(len(self.gaps), np.int64)

    def copied(self) -> StreamRanks:
        """The same, to be counted on independently."""
        twin = copy.copy(self)
        twin.counts = self.counts.copy()
        return twin

    @property
    def seen(self) -> int:
        """Predictions of the stream so far."""
        return int(self.counts.sum())

    def add(
        self,
        scores: NDArray[np.float64],  # (n,)
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rank the next predictions: p-values and, without cancellation, 1 - p. NaN ranks highest.

        Both lie strictly between 0 and 1.
        """
        seen = self.seen
        u, tie_breaks = _uniforms(self.seed, _STREAM, seen, len(scores)).T
        bins = self._bins(rounded(scores), tie_breaks)
        above, own = np.empty(len(scores)), np.empty(len(scores))
        for start in range(0, len(scores), CHUNK):
            part = slice(start, start + CHUNK)
            above[part], own[part] = self._masses(bins[part])
            self.counts += np.bincount(bins[part], minlength=len(self.counts))
        total = self.gaps.sum() + seen + np.arange(len(scores), dtype=np.float64)
        # numerators are at least 2⁻⁵³, so that neither side rounds to zero
        return (above + u * own) / total, (total - above - own + (1.0 - u) * own) / total

    def _bins(
        self, scores: NDArray[np.float64], tie_breaks: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        first = np.searchsorted(self._edges, scores, side="left")
        tied = np.searchsorted(self._edges, scores, side="right") > first
        if tied.any():
            first[tied] = np.searchsorted(self._keys, first[tied] + tie_breaks[tied])
        return first

    def _masses(self, bins: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Gaps above the bin of each prediction and gaps in it, at the time it came."""
        mass = self.gaps + self.counts
        higher = mass[::-1].cumsum()[::-1] - mass
        earlier = _EARLIER[: len(bins), : len(bins)]
        narrow = bins.astype(np.int16)  # compared four times as fast
        above = _counted((narrow[None, :] > narrow[:, None]) & earlier)
        same = _counted((narrow[None, :] == narrow[:, None]) & earlier)
        return higher[bins] + above, mass[bins] + same


def _counted(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:  # (n, n) -> (n,)
    """How many are true in each row; fewer than 256, so that bytes will do."""
    return mask.view(np.uint8).sum(axis=1, dtype=np.uint8)


def _edge_ranks(n: int) -> NDArray[np.int64]:
    """Which order statistics, of 1..n, bound the bins: all, or even ones and more in the tails."""
    if n < MOST_BINS:
        return np.arange(1, n + 1)
    even = np.linspace(1, n, 3 * MOST_BINS // 4)
    tail = np.geomspace(1, n / 2, MOST_BINS // 8 - 1)
    return np.unique(np.concatenate([even, tail, n + 1 - tail]).astype(np.int64))


def _uniforms(seed: int, stream: int, start: int, count: int) -> NDArray[np.float64]:  # (count, 2)
    """Two numbers in (0, 1) for each place in a stream, by counter: no state to keep."""
    # one block of Philox, four words, per place
    generator = np.random.Philox(key=[seed, stream], counter=start)
    words = generator.random_raw(4 * count).reshape(count, 4)[:, :2]
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
