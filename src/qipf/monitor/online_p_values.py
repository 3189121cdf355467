"""Online conformal p-values: rank each prediction among held-out scores and the stream's past.

If all predictions are ranked against a fixed held-out set, their p-values are uniform one by one
but not independent: they share the sampling error of that set, which a long enough test mistakes
for a shift. Here every prediction is added to the set that later ones are ranked in, which makes
the p-values independent and uniform for any size of the held-out set.
"""

import copy

import numpy as np
from numpy.typing import NDArray

from qipf.calibration.conformal import Calibration

#: Maximum number of bins; bounds the memory.
MOST_BINS = 1024

#: Predictions ranked at a time; they are compared in pairs.
CHUNK = 128

_EARLIER = np.tri(CHUNK, k=-1, dtype=bool)  # (prediction, earlier predictions)

#: Independent random streams of one seed.
_HELD_OUT, _STREAM = 0, 1


class OnlinePValues:
    r"""Independent, uniform p-values of a stream, in bounded memory.

    The :math:`n` held-out scores leave :math:`n + 1` gaps, grouped into :math:`K` bins; bin
    :math:`k` has :math:`a_k` of the gaps and, after :math:`t` predictions, :math:`c_k` of the
    predictions. If stream and held-out scores are exchangeable, the next prediction falls into each
    gap between all :math:`n + t` scores with the same probability, whatever came before, hence into
    bin :math:`k` with probability :math:`N_k/N`, :math:`N_k = a_k + c_k`, :math:`N = n + 1 + t` (a
    Pólya urn). So, with :math:`u` uniform on (0, 1) and :math:`b` the bin it falls into,

    .. math:: p = \Big(\sum_{k > b} N_k + u N_b\Big) / N

    is uniform given the whole past: the p-values are independent and uniform. This holds over the
    draw of the held-out set and of the stream, for any :math:`n`; only the counts are stored. Ties
    are broken by one random number per score; the bins depend on ranks alone, so they are the same
    for every set of :math:`n` scores. Scores are quantized first (`qipf.calibration.quantization`),
    so that equal predictions stay equal whatever the last bits of their scores.

    Random numbers depend on the seed and the position in the stream, not on the batches.
    """

    def __init__(self, calibration: Calibration, seed: int) -> None:
        self.seed = seed
        n = len(calibration)
        ranks = _edge_ranks(n)
        tie_breaks = _uniforms(seed, _HELD_OUT, 0, n)[:, 0]
        scores, self._rounded = calibration.rounded_scores, calibration.rounded
        order = np.lexsort((tie_breaks, scores))[ranks - 1]
        self._edges = scores[order]
        # sort key within equal edges: index of the first of them plus the tie break
        self._keys = np.searchsorted(self._edges, self._edges, side="left") + tie_breaks[order]
        self.gaps = np.diff(np.concatenate([[0], ranks, [n + 1]]))
        self.counts = np.zeros(len(self.gaps), np.int64)

    def copy(self) -> "OnlinePValues":
        """Return a copy with counts of its own."""
        copied = copy.copy(self)
        copied.counts = self.counts.copy()
        return copied

    @property
    def seen(self) -> int:
        """Number of predictions so far."""
        return int(self.counts.sum())

    def add(
        self,
        scores: NDArray[np.float64],  # (n,)
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Add predictions; return p and, without cancellation, 1 - p, both strictly in (0, 1).

        NaN ranks highest.
        """
        seen = self.seen
        u, tie_breaks = _uniforms(self.seed, _STREAM, seen, len(scores)).T
        bins = self._bins(self._rounded(scores), tie_breaks)
        above, own = np.empty(len(scores)), np.empty(len(scores))
        for start in range(0, len(scores), CHUNK):
            part = slice(start, start + CHUNK)
            above[part], own[part] = self._gaps_at(bins[part])
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

    def _gaps_at(self, bins: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Number of gaps above and in the bin of each prediction, when it arrives."""
        gaps = self.gaps + self.counts
        higher = gaps[::-1].cumsum()[::-1] - gaps
        earlier = _EARLIER[: len(bins), : len(bins)]
        above = ((bins[None, :] > bins[:, None]) & earlier).sum(axis=1)
        same = ((bins[None, :] == bins[:, None]) & earlier).sum(axis=1)
        return higher[bins] + above, gaps[bins] + same


def _edge_ranks(n: int) -> NDArray[np.int64]:
    """Ranks 1..n that bound the bins: all, or evenly spaced ones with more in the tails."""
    if n < MOST_BINS:
        return np.arange(1, n + 1)
    even = np.linspace(1, n, 3 * MOST_BINS // 4)
    tail = np.geomspace(1, n / 2, MOST_BINS // 8 - 1)
    return np.unique(np.concatenate([even, tail, n + 1 - tail]).astype(np.int64))


def _uniforms(seed: int, stream: int, start: int, count: int) -> NDArray[np.float64]:  # (count, 2)
    """Two uniform numbers in (0, 1) per position, from a counter-based generator (no state)."""
    # one Philox block of four words per position
    generator = np.random.Philox(key=[seed, stream], counter=start)
    words = generator.random_raw(4 * count).reshape(count, 4)[:, :2]
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
