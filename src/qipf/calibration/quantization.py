"""Scores rounded so far that equal predictions have equal scores, whatever batch they came in.

The same logits get uncertainties that differ by a few millionths, by the size of the batch (float32
sums in another order). Ranked as they are, such differences tell equal predictions apart, and held
out in one batch but met one by one they would seem to have shifted. Rounding is a fixed function of
the score, the same for held-out predictions and all others, so what holds for exchangeable scores
holds for rounded ones as it stands. Two scores on both sides of a limit between two steps are still
told apart, however near they are: rounding makes that rare, not impossible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Binary digits that are kept: steps of 1/16,000 to 1/8,000 of the score, ten to thirty times
#: the differences measured, and finer than ranks among a few thousand predictions resolve.
DIGITS = 14

_HALF = np.uint64(1 << (52 - DIGITS))  # of a step, in units of the last bit
_KEPT = ~np.uint64(2 * int(_HALF) - 1)


def rounded(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest number of 14 binary digits; NaN, which nobody can rank, becomes the highest.

    >>> rounded(np.array([1.0, 1.00001, 1.001])).tolist()
    [1.0, 1.0, 1.0009765625]
    """
    bits = np.where(np.isnan(scores), np.inf, scores).view(np.uint64)
    return ((bits + _HALF) & _KEPT).view(np.float64)


def highest(step: float) -> float:
    """The highest number that is rounded to this one: up to it is up to `step`, once rounded.

    >>> at = highest(1.0)
    >>> rounded(np.array([at, np.nextafter(at, 2)])).tolist()
    [1.0, 1.0001220703125]
    """
    bits = np.abs(np.array([step])).view(np.uint64)
    if step < 0:
        return -float((bits - _HALF).view(np.float64)[0])
    return float((bits + _HALF - np.uint64(1)).view(np.float64)[0])
