"""The risk-coverage curve: error rate among accepted predictions, with confidence intervals."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from qipf.display import percent
from qipf.metrics.error_detection import ranked
from qipf.plots.risk_coverage import draw_risk_coverage
from qipf.validation.scores import checked_share


@dataclass(frozen=True, repr=False)
class RiskCoverage:
    """Coverage and error rate of the accepted predictions at every threshold.

    `low` and `high` bound the true error rate at one threshold that was chosen without looking at
    the errors; they do not hold at all thresholds at once. To choose a threshold by the data, use
    `qipf.accept_rule`.
    """

    thresholds: NDArray[np.float64]  # (G,) the distinct uncertainties, rising; tied ones together
    coverage: NDArray[np.float64]  # (G,) share of the predictions at or below the threshold
    risk: NDArray[np.float64]  # (G,) error rate among these
    low: NDArray[np.float64]  # (G,)
    high: NDArray[np.float64]  # (G,)
    confidence: float

    def __repr__(self) -> str:
        count, rate = len(self.thresholds), percent(float(self.risk[-1]))
        return f"RiskCoverage({count:,} thresholds, {rate} wrong at full coverage)"

    def plot(self, ax: Any = None, *, name: str = "uncertainty", **style: Any) -> Any:
        """Draw the curve with its band; needs matplotlib.

        Parameters
        ----------
        ax : matplotlib axes to draw on; by default those of a new figure.
        name : name of the curve in the legend.
        style : further arguments of matplotlib's `plot` for the curve.

        Returns the axes.
        """
        return draw_risk_coverage(self, ax, name, **style)


def risk_coverage(
    uncertainty: Any,  # (n,)
    wrong: Any,  # (n,)
    confidence: float = 0.95,
) -> RiskCoverage:
    r"""The risk-coverage curve of held-out predictions, with exact pointwise confidence bands.

    At a threshold t fixed beforehand, given that :math:`k` predictions lie at or below it, the
    errors :math:`s` among them are binomial; the band is the two-sided interval of Clopper and
    Pearson. It holds for data like the held-out ones.

    >>> curve = risk_coverage([0.1, 0.2, 0.2, 0.9], [False, False, True, True])
    >>> curve.coverage.tolist(), curve.risk.round(3).tolist()
    ([0.25, 0.75, 1.0], [0.0, 0.333, 0.5])
    """
    confidence = checked_share(confidence, "confidence", 0.95)
    ranking = ranked(uncertainty, wrong)
    accepted, errors = ranking.accepted, ranking.errors
    tail = (1 - confidence) / 2
    return RiskCoverage(
        ranking.values,
        accepted / accepted[-1],
        errors / accepted,
        1 - upper_bound(accepted - errors, accepted, tail),
        upper_bound(errors, accepted, tail),
        confidence,
    )


def upper_bound(errors: ArrayLike, count: ArrayLike, level: float) -> NDArray[np.float64]:
    r"""The largest error rate under which so few errors have a chance above `level`.

    .. math:: \sup\{r : P(\mathrm{Bin}(n, r) \le s) > \delta\}
              = I^{-1}_{1-\delta}(s + 1,\, n - s)

    with the inverse incomplete beta function (Clopper and Pearson, 1934); 1 where all are wrong.

    >>> upper_bound([0, 3, 5], [299, 299, 5], 0.05).round(4).tolist()
    [0.01, 0.0257, 1.0]
    """
    errors, count = np.broadcast_arrays(np.asarray(errors, float), np.asarray(count, float))
    bound = np.ones(errors.shape)
    some = errors < count
    bound[some] = betaincinv(errors[some] + 1, count[some] - errors[some], 1 - level)
    return bound
