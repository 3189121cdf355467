"""Two-sample statistics of a window of predictions against the held-out scores."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import kolmogorov

from qipf.calibration.conformal import Calibration


@dataclass(frozen=True)
class WindowStatistics:
    """Difference between a window of predictions and the held-out scores.

    The p-value is valid for a single test of a window chosen beforehand. A monitor of two scores
    reports the one that differs most, with twice its p-value. To watch a stream, use the monitor's
    evidence instead.
    """

    count: int  # predictions in the window
    ks: float  # Kolmogorov-Smirnov: the largest difference of the two distribution functions
    ks_p_value: float  # asymptotic
    superiority: float  # P(a prediction of the window has a higher score than a held-out one)
    mean_p: float  # of the conformal p-values; about 1/2 for data like the held-out set
    abstained: int  # predictions of the window that were not accepted
    score: str = "uncertainty"  # what was compared

    def __str__(self) -> str:
        return (
            f"{self.score} above a held-out one with probability {self.superiority:.3f}; "
            f"Kolmogorov-Smirnov {self.ks:.3f}, p-value {self.ks_p_value:.3g}; "
            f"{self.abstained:,} abstained"
        )


def window_statistics(
    calibration: Calibration,
    scores: NDArray[np.float64],  # (n,)
    abstained: int,
    score: str = "uncertainty",
) -> WindowStatistics:
    r"""Compare the scores of a window with the held-out scores; NaN counts as the highest.

    .. math:: D = \sup_s |F_{\text{window}}(s) - F_{\text{held out}}(s)|, \qquad
              A = P(W > H) + \tfrac12 P(W = H)

    :math:`D` is the Kolmogorov-Smirnov statistic, :math:`A` the Mann-Whitney statistic divided by
    the number of pairs: 1/2 without a difference, 1 when every prediction of the window has a
    higher score. Scores are quantized first (`qipf.calibration.quantization`).

    SciPy's `ks_2samp` and `mannwhitneyu` give the same statistics but sort the whole calibration
    set on every call; here its sorted scores are searched.
    """
    m, n = len(scores), len(calibration)
    if m == 0:
        return WindowStatistics(0, 0.0, 1.0, 0.5, 0.5, 0, score)
    ordered, held_out = np.sort(calibration.rounded(scores)), calibration.rounded_scores
    below = np.searchsorted(held_out, ordered, side="left")
    up_to = np.searchsorted(held_out, ordered, side="right")
    # the supremum is reached just before or at a score of the window
    before = np.searchsorted(ordered, ordered, side="left") / m - below / n
    at = np.searchsorted(ordered, ordered, side="right") / m - up_to / n
    ks = float(max(np.abs(before).max(), np.abs(at).max()))
    return WindowStatistics(
        count=m,
        ks=ks,
        ks_p_value=float(kolmogorov(math.sqrt(m * n / (m + n)) * ks)),
        superiority=float((below + up_to).mean() / (2 * n)),
        mean_p=float((1 + n - below).mean() / (n + 1)),
        abstained=abstained,
        score=score,
    )
