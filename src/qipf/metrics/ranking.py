"""Predictions sorted by uncertainty, with tied predictions grouped.

Every metric of error detection depends on the data only through these groups, so the result does
not depend on the order of tied rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.validation.scores import checked_outcomes


@dataclass(frozen=True)
class Ranking:
    """Counts of right and wrong predictions at each distinct uncertainty, in rising order."""

    values: NDArray[np.float64]  # (G,) rising
    right: NDArray[np.int64]  # (G,)
    wrong: NDArray[np.int64]  # (G,)

    @property
    def one_sided(self) -> bool:
        """Whether all predictions are right, or all are wrong."""
        return not self.right.any() or not self.wrong.any()

    @property
    def accepted(self) -> NDArray[np.int64]:  # (G,)
        """Number of predictions at or below each uncertainty."""
        return (self.right + self.wrong).cumsum()

    @property
    def errors(self) -> NDArray[np.int64]:  # (G,)
        """Number of wrong predictions at or below each uncertainty."""
        return self.wrong.cumsum()

    @property
    def expected_risk(self) -> NDArray[np.float64]:  # (n,)
        """Error rate of the k least uncertain predictions, k = 1..n, ties in random order.

        Among tied predictions each is wrong with the same probability, so the expected number of
        errors grows evenly with k.

        >>> ranked([0.1, 0.5, 0.5], [0, 1, 0]).expected_risk.round(3).tolist()
        [0.0, 0.25, 0.333]
        """
        size = self.right + self.wrong
        errors = np.repeat(self.wrong / size, size).cumsum()
        return errors / np.arange(1, len(errors) + 1)


def ranked(
    uncertainty: Any,  # (n,)
    wrong: Any,  # (n,)
) -> Ranking:
    """The distinct uncertainties, and how many right and wrong predictions share each.

    >>> ranked([0.2, 0.1, 0.2], [True, False, False]).right.tolist()
    [1, 1]
    """
    scores, errors = checked_outcomes(uncertainty, wrong)
    order = scores.argsort()
    scores, errors = scores[order], errors[order]
    starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])
    size = np.diff(starts, append=len(scores))
    wrong_g = np.add.reduceat(errors, starts)
    return Ranking(scores[starts], size - wrong_g, wrong_g)
