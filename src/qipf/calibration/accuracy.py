"""Accuracy of unlabelled predictions, estimated from their uncertainties."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.isotonic import isotonic_regression

from qipf.calibration.conformal import Calibration, calibration_of
from qipf.errors import QIPFInputError, unknown_name
from qipf.validation.scores import checked_scores, checked_share

#: Names of the estimators.
METHODS = ("threshold", "isotonic")


@dataclass(frozen=True)
class AccuracyEstimate:
    """Estimated accuracy of a window of predictions, with an interval.

    The interval is for data like the held-out set: in 240 simulated settings, 95 % intervals held
    the accuracy in 95 % of the draws (`benchmarks/accuracy_intervals.py`). A shift that makes
    predictions wrong without raising their uncertainty (a new class taken for a known one, labels
    whose meaning changed, adversarial inputs) does not change the estimate.
    """

    accuracy: float
    low: float
    high: float
    confidence: float
    count: int  # predictions in the window
    held_out: int  # labelled predictions that the estimate rests on


class Steps(NamedTuple):
    """A step function from uncertainty to error rate."""

    edges: NDArray[np.float64]  # (k - 1,) where the next step begins
    rates: NDArray[np.float64]  # (k,) share of a step that is counted as wrong
    variances: NDArray[np.float64]  # (k,) of one prediction about it
    counts: NDArray[np.float64]  # (k,) held-out predictions of the step


class AccuracyEstimator:
    r"""Estimates the accuracy of unlabelled predictions from held-out ones with known errors.

    ``"threshold"`` counts predictions above a threshold as wrong; as many held-out predictions
    exceed it as are wrong (average thresholded confidence, Garg et al. 2022). ``"isotonic"``
    averages :math:`P(\text{wrong} \mid u)`, an increasing step function fitted to groups of
    :math:`\sqrt n` held-out predictions and constant beyond them. On data like the held-out set
    both are unbiased. On shifted data the first reacts more, so it is the default.

    The interval for the window's true accuracy extends :math:`z\sqrt V + z^2/2n + 1/2m` to both
    sides, V being the variance of the estimate's error on the window and from the held-out set. The
    second term is that of bounds on small counts, such as Wilson's: where few held-out predictions
    are misjudged, the normal interval alone is too short. If a share :math:`q` of the :math:`m`
    predictions of the window is counted as wrong, and among the :math:`n` held-out ones a share
    :math:`a` of those counted as wrong was correct and a share :math:`b` of the others wrong,
    :math:`V = (qa + (1-q)b)(1/m + 1/n)`. For isotonic steps with error rates :math:`r_k`, held-out
    counts :math:`n_k` and shares :math:`v_k` of the window,
    :math:`V = \sum_k v_k r_k (1-r_k)/m + \sum_k v_k^2 r_k(1-r_k)/n_k`. Half an error and half a
    success are added to all rates in the variance.

    Parameters
    ----------
    uncertainty : (n,) uncertainties of held-out predictions.
    wrong : (n,) booleans, where the model erred on them.
    method : ``"threshold"`` or ``"isotonic"``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> uncertainty = rng.uniform(size=2000)
    >>> estimator = AccuracyEstimator(uncertainty, rng.uniform(size=2000) < uncertainty**3)
    >>> found = estimator.estimate(rng.uniform(size=500))
    >>> found.low < 0.75 < found.high
    True
    """

    def __init__(self, uncertainty: Any, wrong: Any, method: str = "threshold") -> None:
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        if wrong is None:
            raise QIPFInputError(
                "The held-out predictions have no known errors, so accuracy cannot be estimated. "
                "Calibrate with labels."
            )
        held_out = Calibration(uncertainty, wrong)
        self.method = method
        self.held_out = len(held_out)
        assert held_out.wrong is not None
        steps = _threshold if method == "threshold" else _isotonic
        self._steps = steps(held_out.scores, held_out.wrong)

    @classmethod
    def of(cls, calibration: Calibration, method: str = "threshold") -> "AccuracyEstimator":
        """The estimator of a calibration set: ``AccuracyEstimator.of(model.calibration_)``."""
        return cls(calibration.scores, calibration.wrong, method)

    def estimate(self, uncertainty: Any, confidence: float = 0.95) -> AccuracyEstimate:
        """Estimate the accuracy of predictions; an uncertainty of NaN counts as the highest."""
        values = checked_scores(uncertainty, "uncertainty")
        if len(values) == 0:
            raise QIPFInputError("uncertainty is empty: there is no accuracy of no predictions.")
        confidence = checked_share(confidence, "confidence", 0.95)
        m, steps = len(values), self._steps
        step = np.searchsorted(steps.edges, np.where(np.isnan(values), np.inf, values), "right")
        share = np.bincount(step, minlength=len(steps.rates)) / m
        accuracy = 1.0 - float(share @ steps.rates)
        if self.method == "threshold":
            from_held_out = float(share @ steps.variances) / self.held_out
        else:
            from_held_out = float((share**2) @ (steps.variances / steps.counts))
        variance = float(share @ steps.variances) / m + from_held_out
        # half a prediction: the true accuracy is a whole number of them
        z = float(ndtri(0.5 + confidence / 2))
        margin = z * math.sqrt(variance) + z * z / (2 * self.held_out) + 0.5 / m
        return AccuracyEstimate(
            accuracy=accuracy,
            low=max(0.0, accuracy - margin),
            high=min(1.0, accuracy + margin),
            confidence=confidence,
            count=m,
            held_out=self.held_out,
        )


def estimate_accuracy(
    uncertainty: Any, held_out: Any, confidence: float = 0.95, method: str = "threshold"
) -> AccuracyEstimate:
    """Estimate the accuracy of a window of unlabelled predictions.

    The interval does not cover shifts that leave the uncertainty as it was; see
    `AccuracyEstimate`, and compare with `ShiftMonitor`.

    Parameters
    ----------
    uncertainty : (m,) uncertainties of the window's predictions.
    held_out : a model that was calibrated with labels, or a `Calibration` with `wrong`.
    confidence : of the interval.
    method : ``"threshold"`` or ``"isotonic"``, see `AccuracyEstimator`.
    """
    calibration = calibration_of(held_out)
    return AccuracyEstimator.of(calibration, method).estimate(uncertainty, confidence)


def _threshold(scores: NDArray[np.float64], wrong: NDArray[np.bool_]) -> Steps:
    errors = int(wrong.sum())
    edge = scores[len(scores) - max(errors, 1)]
    edges = np.array([edge, np.nextafter(edge, np.inf)])
    step = np.searchsorted(edges, scores, side="right")  # below, at, above the threshold
    counts = np.bincount(step, minlength=3).astype(np.float64)
    wrongs = np.bincount(step, weights=wrong, minlength=3)
    # of equal scores at the threshold only so many are counted as wrong that the sum is right
    rates = np.array([0.0, (errors - counts[2]) / counts[1], 1.0])
    missed, false = wrongs + 0.5, counts - wrongs + 0.5
    variances = (missed * (1.0 - rates) ** 2 + false * rates**2) / (counts + 1.0)
    return Steps(edges, rates, variances, counts)


def _isotonic(scores: NDArray[np.float64], wrong: NDArray[np.bool_]) -> Steps:
    size = math.isqrt(len(scores))
    group = np.searchsorted(scores, scores, side="left") // size  # equal scores stay together
    first = np.flatnonzero(np.diff(group, prepend=-1))
    errors = np.add.reduceat(wrong.astype(np.float64), first)
    counts = np.diff(np.append(first, len(scores))).astype(np.float64)
    fitted = isotonic_regression(errors / counts, sample_weight=counts)
    steps = np.flatnonzero(np.diff(fitted, prepend=-1.0))
    errors, counts = np.add.reduceat(errors, steps), np.add.reduceat(counts, steps)
    smooth = (errors + 0.5) / (counts + 1.0)
    return Steps(scores[first[steps[1:]]], errors / counts, smooth * (1.0 - smooth), counts)
