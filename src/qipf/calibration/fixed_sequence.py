r"""Thresholds that keep an error rate: exact tests of all of them, in a fixed sequence.

Sort the held-out predictions by uncertainty, ties in random order. Let :math:`R(t)` be the error
rate, in their population, among predictions with an uncertainty of at most :math:`t`, and
:math:`S_k` the number of errors among the first :math:`k`. The hypothesis of rank :math:`k` is

.. math:: H_k:\ R(t) > \alpha \text{ for some } t \in [u_{(k)}, u_{(k+1)}), \qquad
          p_k = P(\mathrm{Bin}(k, \alpha) \le S_k).

Every true :math:`H_k` has a valid :math:`p_k`, whatever the shape of :math:`R`; docs/decisions.md
has the proof. So any multiple test whose order and shares of :math:`\delta` depend on neither
labels nor uncertainties keeps its level.

Ranks are tested from the least uncertain on, while :math:`p_k` is at most the level, up to the
first failure (fixed-sequence testing, as in Learn then Test; Angelopoulos et al., 2021). There are
three starts, each with :math:`\delta/3`, because one error near a single start would end the test.
A sequence that reaches the next start keeps its share (the fallback procedure; Wiens, 2003).
"""

from bisect import bisect_left
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

#: Numbers of errors that are just allowed at the starts. Of the designs that
#: benchmarks/accept_designs.py compares, this one keeps most coverage (results/accept-designs.csv).
FORGIVEN = (1, 4, 16)


def certified_ranks(
    wrong: NDArray[np.int64],  # (n,) least uncertain first, ties in random order
    max_risk: float,
    level: float,
    forgiven: tuple[int, ...] = FORGIVEN,
) -> NDArray[np.bool_]:  # (n,) entry k - 1 for rank k
    """For each rank, whether thresholds from its uncertainty to the next keep to `max_risk`.

    All answers "yes" hold together with probability 1 - `level` or more.

    >>> certified_ranks(np.zeros(320, int), 0.01, 0.05).nonzero()[0][:3] + 1
    array([299, 300, 301])
    """
    errors, count = wrong.cumsum(), np.arange(1, len(wrong) + 1)
    certified = np.zeros(len(wrong), bool)
    starts = _starts(len(wrong), max_risk, level, forgiven)
    carried = 0.0
    for number, (start, share) in enumerate(starts):
        end = starts[number + 1][0] if number + 1 < len(starts) else len(wrong) + 1
        part = slice(start - 1, end - 1)
        carried += share
        failed = np.flatnonzero(tail(errors[part], count[part], max_risk) > carried)
        passed = failed[0] if len(failed) else end - start
        certified[start - 1 : start - 1 + passed] = True
        if len(failed):
            carried = 0.0
    return certified


def tail(errors: ArrayLike, count: ArrayLike, risk: float) -> NDArray[np.float64]:
    r"""The chance of so few errors: :math:`P(\mathrm{Bin}(n, r) \le s) = I_{1-r}(n - s, s + 1)`.

    By the incomplete beta function, since SciPy's binomial ends at samples of 2³¹.

    >>> tail([0, 1, 2], 2, 0.1).round(2).tolist()
    [0.81, 0.99, 1.0]
    """
    right = np.asarray(count, float) - np.asarray(errors, float)
    return np.where(right > 0, betainc(np.maximum(right, 1), np.add(errors, 1.0), 1 - risk), 1.0)


@lru_cache(maxsize=4096)
def fewest(errors: int, max_risk: float, level: float) -> int:
    """The smallest sample in which so many errors still reject a higher risk.

    >>> fewest(0, 0.01, 0.05), fewest(1, 0.01, 0.05)
    (299, 473)
    """
    high = errors + 1
    while tail(errors, high, max_risk) > level:
        high *= 2
    sizes = range(max(errors, high // 2) + 1, high)
    return sizes.start + bisect_left(
        sizes, True, key=lambda size: bool(tail(errors, size, max_risk) <= level)
    )


def _starts(
    count: int, max_risk: float, level: float, forgiven: tuple[int, ...]
) -> list[tuple[int, float]]:
    """Ranks and their shares of the level, by the size of the sample alone."""
    for number in range(len(forgiven), 0, -1):
        share = level / number
        ranks = [fewest(errors, max_risk, share) for errors in forgiven[:number]]
        if ranks[-1] <= count:
            return [(rank, share) for rank in ranks]
    rank = fewest(0, max_risk, level)
    return [(rank, level)] if rank <= count else []
