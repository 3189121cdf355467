"""Accuracy without labels: how many of a window's predictions are right, judged by their doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from qipf.calibration.conformal import Calibration, calibration_of
from qipf.errors import QIPFInputError, unknown_name
from qipf.validation.scores import checked_scores, checked_share

#: Ways to get from uncertainties to an accuracy.
METHODS = ("threshold", "isotonic")


@dataclass(frozen=True)
class AccuracyEstimate:
    """The accuracy of a window of predictions, and between what bounds it lies.

    The bounds are a normal approximation: for data like the held-out set they hold about as often
    as `confidence` says, the nearer the larger window and held-out set are. A shift that turns
    right predictions wrong without raising their uncertainty (a class the model never saw that it
    takes for one it knows, labels whose meaning changed, inputs made to deceive it) leaves the
    estimate where it was.
    """

    accuracy: float
    low: float
    high: float
    confidence: float
    count: int  # predictions in the window
    held_out: int  # labelled predictions that the estimate rests on


class AccuracyEstimator:
    r"""The accuracy of unlabelled predictions, learned from held-out ones with known errors.

    ``"threshold"`` takes the threshold that as many held-out predictions exceed as are wrong, and
    calls wrong what exceeds it (average thresholded confidence, Garg et al. 2022). ``"isotonic"``
    averages :math:`P(\text{wrong} \mid u)`, a rising step function fitted to groups of
    :math:`\sqrt n` held-out predictions; beyond the last step it stays where it is. On data like
    the held-out set both are right on average; as predictions leave its range the first follows
    them further, which is why it is the default.

    The interval is normal, for the window's true accuracy, with the variance of what the estimate
    gets wrong on data like the held-out set, both on the window and in the learning of it.
    Where the estimate calls a share :math:`q` of the window wrong, and of such predictions
    :math:`a` were right and of the others :math:`b` wrong among the :math:`n` held out,
    :math:`V = (qa + (1-q)b)(1/m + 1/n)` for a window of :math:`m`; for the isotonic steps, with
    error rates :math:`r_k`, held-out counts :math:`n_k` and shares :math:`v_k` of the window,
    :math:`V = \sum_k v_k r_k (1-r_k)/m + \sum_k v_k^2 r_k(1-r_k)/n_k`. All rates in the variance
    have half an error and half a success added: none seen does not mean none possible.

    Parameters
    ----------
    uncertainty : (n,) uncertainties of held-out predictions.
    wrong : (n,) booleans, where the model erred on them.
    method : ``"threshold"`` or ``"isotonic"``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> doubt = rng.uniform(size=2000)
    >>> estimator = AccuracyEstimator(doubt, rng.uniform(size=2000) < doubt**3)
    >>> window = rng.uniform(size=500)
    >>> told = estimator.estimate(window)
    >>> told.low < 0.75 < told.high
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
        self._edges, self._rates, self._doubts, self._counts = steps(
            held_out.scores, held_out.wrong
        )

    @classmethod
    def of(cls, calibration: Calibration, method: str = "threshold") -> AccuracyEstimator:
        """The estimator of a calibrated field: ``AccuracyEstimator.of(field.calibration_)``."""
        return cls(calibration.scores, calibration.wrong, method)

    def estimate(self, uncertainty: Any, confidence: float = 0.95) -> AccuracyEstimate:
        """The accuracy of the predictions with these uncertainties; NaN counts as the highest."""
        values = checked_scores(uncertainty, "uncertainty")
        if len(values) == 0:
            raise QIPFInputError("uncertainty is empty: there is no accuracy of no predictions.")
        confidence = checked_share(confidence, "confidence", 0.95)
        m = len(values)
        steps = np.searchsorted(self._edges, np.where(np.isnan(values), np.inf, values), "right")
        share = np.bincount(steps, minlength=len(self._rates)) / m
        accuracy = 1.0 - float(share @ self._rates)
        variance = float(share @ self._doubts) / m + self._learning_variance(share)
        # half a prediction: the true accuracy is a whole number of them
        margin = float(ndtri(0.5 + confidence / 2)) * math.sqrt(variance) + 0.5 / m
        return AccuracyEstimate(
            accuracy=accuracy,
            low=max(0.0, accuracy - margin),
            high=min(1.0, accuracy + margin),
            confidence=confidence,
            count=m,
            held_out=self.held_out,
        )

    def _learning_variance(self, share: NDArray[np.float64]) -> float:
        if self.method == "threshold":
            return float(share @ self._doubts) / self.held_out
        return float((share**2) @ (self._doubts / self._counts))


def estimate_accuracy(
    uncertainty: Any, held_out: Any, confidence: float = 0.95, method: str = "threshold"
) -> AccuracyEstimate:
    """The accuracy of a window of unlabelled predictions.

    Fails, with bounds that look as sure as ever, where the model errs without doubt: see
    `AccuracyEstimate`. Look at `ShiftMonitor`'s verdict beside it.

    Parameters
    ----------
    uncertainty : (m,) uncertainties of the window's predictions.
    held_out : what they are compared with: a field calibrated with labels
        (``field.calibrate(logits, labels)``), or a `Calibration` with its `wrong`.
    confidence : of the interval.
    method : ``"threshold"`` or ``"isotonic"``, see `AccuracyEstimator`.
    """
    calibration = calibration_of(held_out)
    return AccuracyEstimator.of(calibration, method).estimate(uncertainty, confidence)


Steps = tuple[
    NDArray[np.float64],  # edges (k - 1,): where the next step begins
    NDArray[np.float64],  # rates (k,): the share called wrong
    NDArray[np.float64],  # doubts (k,): variance of one prediction about it
    NDArray[np.float64],  # counts (k,): held-out predictions on the step
]


def _threshold(scores: NDArray[np.float64], wrong: NDArray[np.bool_]) -> Steps:
    errors = int(wrong.sum())
    edge = scores[len(scores) - max(errors, 1)]
    edges = np.array([edge, np.nextafter(edge, np.inf)])
    step = np.searchsorted(edges, scores, side="right")  # below, at, above the threshold
    counts = np.bincount(step, minlength=3).astype(np.float64)
    wrongs = np.bincount(step, weights=wrong, minlength=3)
    # of equal scores at the threshold only so many are called wrong that the sum is right
    rates = np.array([0.0, (errors - counts[2]) / counts[1], 1.0])
    missed, false = wrongs + 0.5, counts - wrongs + 0.5
    doubts = (missed * (1.0 - rates) ** 2 + false * rates**2) / (counts + 1.0)
    return edges, rates, doubts, counts


def _isotonic(scores: NDArray[np.float64], wrong: NDArray[np.bool_]) -> Steps:
    from sklearn.isotonic import isotonic_regression

    size = math.isqrt(len(scores))
    group = np.searchsorted(scores, scores, side="left") // size  # equal scores stay together
    first = np.flatnonzero(np.diff(group, prepend=-1))
    errors = np.add.reduceat(wrong.astype(np.float64), first)
    counts = np.diff(np.append(first, len(scores))).astype(np.float64)
    fitted = isotonic_regression(errors / counts, sample_weight=counts)
    steps = np.flatnonzero(np.diff(fitted, prepend=-1.0))
    errors, counts = np.add.reduceat(errors, steps), np.add.reduceat(counts, steps)
    smooth = (errors + 0.5) / (counts + 1.0)
    return scores[first[steps[1:]]], errors / counts, smooth * (1.0 - smooth), counts
