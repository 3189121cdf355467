"""Rounding of scores, so that equal predictions have equal scores in batches of any size.

The uncertainties of the same input differ by a few millionths with the size of the batch, because
float32 sums are taken in another order. Without rounding, equal predictions would get different
ranks, and predictions scored one by one would seem shifted from a calibration in batches. So every
comparison of scores (p-values, accept rules, outlier limits, the shift monitor) rounds them first.
The differences are relative to the number that was computed. A large constant that was added to it,
as a field's energies may be near a pole, is subtracted before rounding: the `origin` of the scores.
Rounded exchangeable scores are exchangeable. Two close scores on either side of a boundary between
steps still differ; rounding makes that rare, not impossible.
"""

import numpy as np
from numpy.typing import NDArray

#: Binary digits that are kept: steps of 1/16,000 to 1/8,000 of the score. That is ten to thirty
#: times the differences measured, and finer than ranks among a few thousand predictions.
DIGITS = 14

_HALF = np.uint64(1 << (52 - DIGITS))  # of a step, in units of the last bit
_KEPT = ~np.uint64(2 * int(_HALF) - 1)

#: The largest finite step; larger scores are rounded down to it, not up to infinity.
_LARGEST = float((np.array([np.finfo(float).max]).view(np.uint64) & _KEPT).view(np.float64)[0])


def rounded(scores: NDArray[np.float64], origin: float = 0.0) -> NDArray[np.float64]:
    """Scores minus `origin`, to 14 binary digits; NaN becomes infinity, the highest rank.

    >>> rounded(np.array([1.0, 1.00001, 1.001])).tolist()
    [1.0, 1.0, 1.0009765625]
    """
    scores = scores - origin if origin else scores
    bits = np.where(np.isnan(scores), np.inf, scores).view(np.uint64)
    steps = ((bits + _HALF) & _KEPT).view(np.float64)
    return np.where(np.isfinite(scores), steps.clip(-_LARGEST, _LARGEST), steps)


def below(step: float) -> float:
    """The largest score that is rounded to less than `step`.

    >>> at = below(1.0)
    >>> rounded(np.array([at, np.nextafter(at, 2)])).tolist()
    [0.99993896484375, 1.0]
    """
    bits = np.abs(np.array([step])).view(np.uint64)
    if step > 0:
        return float((bits - _HALF - np.uint64(1)).view(np.float64)[0])
    return -float((bits + _HALF).view(np.float64)[0])


def highest(step: float, origin: float = 0.0) -> float:
    """The largest score that is rounded to `step`, up to the last digit of `origin`.

    >>> at = highest(1.0)
    >>> rounded(np.array([at, np.nextafter(at, 2)])).tolist()
    [1.0, 1.0001220703125]
    """
    if origin:
        return min(origin + highest(step), float(np.finfo(float).max))
    bits = np.abs(np.array([step])).view(np.uint64)
    if step >= _LARGEST:
        return float(np.finfo(float).max)
    if step < 0:
        return -float((bits - _HALF).view(np.float64)[0])
    return float((bits + _HALF - np.uint64(1)).view(np.float64)[0])
