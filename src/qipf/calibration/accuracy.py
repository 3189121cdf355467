"""Accuracy of unlabelled predictions, estimated from their uncertainties."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, ndtri
from sklearn.isotonic import isotonic_regression

from qipf.calibration.conformal import Calibration, calibration_of
from qipf.calibration.prediction import Prediction, require_same_model
from qipf.display import Shown, counted, percent
from qipf.errors import QIPFInputError, unknown_name
from qipf.validation.scores import checked_scores, checked_share

#: Names of the estimators.
METHODS = ("threshold", "isotonic", "log_odds")

#: Share of held-out inputs that count as novel, and the largest shares of a window that are novel
#: and in surplus at which an estimate is called reliable.
NOVEL, RELIABLE, LARGEST_SURPLUS = 0.05, 0.15, 0.1

#: Standard deviations up to which a surplus counts as chance.
BY_CHANCE = 2.0

#: Predictions that are added to the count of each class, where chance is estimated.
RARE = 0.5

#: Largest constant that is added to log-odds.
LARGEST = 20.0


@dataclass(frozen=True, repr=False)
class AccuracyEstimate:
    """Estimated accuracy of a window of predictions, with an interval.

    The interval is for data like the held-out set: in simulated settings, 95 % intervals held the
    accuracy in 95 % of the draws (`benchmarks/accuracy_intervals.py`). A shift that makes
    predictions wrong without raising their uncertainty (a new class taken for a known one, labels
    whose meaning changed, adversarial inputs) does not change the estimate.
    """

    accuracy: float
    low: float
    high: float
    confidence: float
    count: int  # predictions in the window
    held_out: int  # labelled predictions that the estimate rests on
    #: Share of the window that is more novel than 95 % of the held-out inputs; None if unknown.
    novel: float | None = None
    #: Share of the window by which predicted classes exceed their held-out shares, beyond chance;
    #: None if unknown.
    surplus: float | None = None

    def __str__(self) -> str:
        novel = "" if self.novel is None else f"; {percent(self.novel)} of them novel"
        surplus = ""
        if self.surplus:
            surplus = f"; {percent(self.surplus)} more of some classes than expected"
        return (
            f"{percent(self.accuracy)} ({percent(self.confidence)} interval {percent(self.low)} to "
            f"{percent(self.high)}) of {counted(self.count, 'prediction')}, from {self.held_out:,} "
            f"held-out {'one' if self.held_out == 1 else 'ones'}{novel}{surplus}{self._doubt}"
        )

    @property
    def _doubt(self) -> str:
        if self.reliable is not False:
            return ""
        found = ", so the estimate may be far off"
        if (self.surplus or 0.0) > LARGEST_SURPLUS:
            found += "; if classes may occur in other shares than there, pass label_shift=True"
        return found

    def __repr__(self) -> str:
        return f"AccuracyEstimate({self})"

    def _repr_html_(self) -> str:
        return Shown("AccuracyEstimate", {"accuracy": str(self)}).html()

    @property
    def reliable(self) -> bool | None:
        """Whether at most 15 % of the window is novel, and 10 % in surplus; None if unknown.

        Beyond these the estimate can be far off, in either direction: by shifts unlike those that
        the uncertainty was fitted on, or because the classes occur in other shares.
        """
        if (self.surplus or 0.0) > LARGEST_SURPLUS:
            return False
        return None if self.novel is None else self.novel <= RELIABLE


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
    ``"log_odds"`` is for uncertainties that are log-odds of errors, as those of `LayeredQIPF`: it
    averages their probabilities, after a constant is added to all log-odds, so that the average is
    right on the held-out set. The constant is left out where many inputs of the window are novel.

    Under strong shift a network predicts few classes for everything. If the classes of the window
    occur in the same shares as in the held-out set, then as many predictions are wrong as exceed
    these shares: the *surplus* s, half the sum of the differences between the shares of predicted
    classes, less what chance explains. The others are right at the estimated rate, so the estimate
    is multiplied by 1 - s. Without predicted classes it is not.

    The interval for the window's true accuracy extends :math:`z\sqrt V + z^2/2n + 1/2m` to both
    sides, V being the variance of the estimate's error on the window and from the held-out set. The
    second term is that of bounds on small counts, such as Wilson's: where few held-out predictions
    are misclassified, the normal interval alone is too short. If a share :math:`q` of the :math:`m`
    predictions of the window is counted as wrong, and among the :math:`n` held-out ones a share
    :math:`a` of those counted as wrong was correct and a share :math:`b` of the others wrong,
    :math:`V = (qa + (1-q)b)(1/m + 1/n)`. For isotonic steps with error rates :math:`r_k`, held-out
    counts :math:`n_k` and shares :math:`v_k` of the window,
    :math:`V = \sum_k v_k r_k (1-r_k)/m + \sum_k v_k^2 r_k(1-r_k)/n_k`. Half an error and half a
    success are added to all rates in the variance. For log-odds with probabilities :math:`p_i`,
    :math:`V = \max(\overline{p_i (1-p_i)}, R)/m + \max(e(1-e), R)/n` with the held-out error rate e
    and the mean square R of what the probabilities missed on the held-out set.

    Parameters
    ----------
    uncertainty : (n,) uncertainties of held-out predictions.
    wrong : (n,) booleans, where the model erred on them.
    method : ``"threshold"``, ``"isotonic"`` or ``"log_odds"``.
    novelty : (n,) novelties of the held-out inputs; optional.
    class_counts : (classes,) held-out predictions of each class; optional.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> uncertainty = rng.uniform(size=2000)
    >>> estimator = AccuracyEstimator(uncertainty, rng.uniform(size=2000) < uncertainty**3)
    >>> found = estimator.estimate(rng.uniform(size=500))
    >>> found.low < 0.75 < found.high
    True
    """

    def __init__(
        self,
        uncertainty: Any,
        wrong: Any,
        method: str = "threshold",
        novelty: Any = None,
        class_counts: Any = None,
    ) -> None:
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        if wrong is None:
            raise QIPFInputError(
                "The held-out predictions have no known errors, so accuracy cannot be estimated. "
                "Calibrate with labels."
            )
        held_out = Calibration(uncertainty, wrong, novelty=novelty, class_counts=class_counts)
        self.method = method
        self.held_out = len(held_out)
        assert held_out.wrong is not None
        self._class_counts = held_out.class_counts
        self._novel_limit = None
        if held_out.novelty is not None:
            self._novel_limit = float(np.quantile(held_out.novelty, 1 - NOVEL, method="higher"))
        self._steps: Steps | None = None
        if method == "log_odds":
            self._rate = (float(held_out.wrong.sum()) + 0.5) / (self.held_out + 1)
            self._constant = _likeliest_constant(held_out.scores, self._rate)
            p = expit(held_out.scores + self._constant)
            self._residual = float(np.square(p - held_out.wrong).mean())
        else:
            steps = _threshold if method == "threshold" else _isotonic
            self._steps = steps(held_out.scores, held_out.wrong)

    @classmethod
    def of(cls, calibration: Calibration, method: str = "threshold") -> "AccuracyEstimator":
        """The estimator of a calibration set: ``AccuracyEstimator.of(model.calibration_)``."""
        return cls(
            calibration.scores,
            calibration.wrong,
            method,
            calibration.novelty,
            calibration.class_counts,
        )

    def estimate(
        self, uncertainty: Any, confidence: float = 0.95, novelty: Any = None, predicted: Any = None
    ) -> AccuracyEstimate:
        """Estimate the accuracy of predictions; an uncertainty of NaN counts as the highest.

        With the novelties of the same inputs, the estimate tells how many of them are novel. With
        the predicted classes, those in surplus are counted as wrong; -1 is of no class.
        """
        values = checked_scores(uncertainty, "uncertainty")
        if len(values) == 0:
            raise QIPFInputError("uncertainty is empty: there is no accuracy of no predictions.")
        values = np.where(np.isnan(values), np.inf, values)
        confidence = checked_share(confidence, "confidence", 0.95)
        m = len(values)
        novel = self._novel(None if novelty is None else checked_scores(novelty, "novelty"))
        if novel is not None and novel.shape != values.shape:
            raise QIPFInputError(
                f"novelty must have shape {values.shape}, one per prediction, got {novel.shape}."
            )
        share = None if novel is None else float(novel.mean())
        accuracy, variance = self._by_steps(values) if self._steps else self._by_odds(values, share)
        surplus = None
        if predicted is not None and self._class_counts is not None:
            counts = _counts(predicted, m, len(self._class_counts))
            surplus = _surplus(counts, self._class_counts)
            accuracy *= 1.0 - surplus
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
            novel=share,
            surplus=surplus,
        )

    def _by_steps(self, values: NDArray[np.float64]) -> tuple[float, float]:
        """Accuracy, and the variance of its error."""
        assert self._steps is not None
        m, steps = len(values), self._steps
        step = np.searchsorted(steps.edges, values, "right")
        share = np.bincount(step, minlength=len(steps.rates)) / m
        if self.method == "threshold":
            from_held_out = float(share @ steps.variances) / self.held_out
        else:
            from_held_out = float((share**2) @ (steps.variances / steps.counts))
        variance = float(share @ steps.variances) / m + from_held_out
        return 1.0 - float(share @ steps.rates), variance

    def _by_odds(self, values: NDArray[np.float64], novel: float | None) -> tuple[float, float]:
        usual = novel is None or novel <= RELIABLE
        p = expit(values + (self._constant if usual else 0.0))
        # poor probabilities add variance: their mean squared error on the held-out set
        from_held_out = max(self._rate * (1.0 - self._rate), self._residual) / self.held_out
        on_window = max(float((p * (1.0 - p)).mean()), self._residual) / len(p)
        return 1.0 - float(p.mean()), on_window + from_held_out

    def _novel(self, novelty: NDArray[np.float64] | None) -> NDArray[np.bool_] | None:
        """Which inputs are more novel than most held-out ones; NaN is novel."""
        if novelty is None or self._novel_limit is None:
            return None
        return ~(novelty <= self._novel_limit)


def estimate_accuracy(
    predictions: Any,
    held_out: Any,
    confidence: float = 0.95,
    method: str | None = None,
    *,
    label_shift: bool = False,
) -> AccuracyEstimate:
    """Estimate the accuracy of a window of unlabelled predictions.

    >>> import qipf
    >>> rng = np.random.default_rng(0)
    >>> held_out = qipf.Calibration(rng.uniform(size=900), wrong=np.arange(900) % 9 == 0)
    >>> round(qipf.estimate_accuracy(rng.uniform(size=500), held_out).accuracy, 1)
    0.9

    The interval does not cover shifts that leave the uncertainty as it was; see
    `AccuracyEstimate`, and compare with `ShiftMonitor`.

    Parameters
    ----------
    predictions : the `Prediction` of the window, ``model(inputs)``, or (m,) uncertainties.
    held_out : a model that was calibrated with labels, or a `Calibration` with `wrong`.
    confidence : of the interval.
    method : see `AccuracyEstimator`; by default ``"log_odds"`` for predictions with a ``p_error``,
        ``"threshold"`` for others.
    label_shift : whether classes may occur in other shares than in the calibration set. By default
        a class that is predicted more often than there is a sign of errors.
    """
    calibration = calibration_of(held_out)
    if isinstance(predictions, Prediction) and held_out is not calibration:
        require_same_model(predictions, calibration, "held_out's")
    estimator = AccuracyEstimator.of(
        calibration,
        method or ("threshold" if getattr(predictions, "p_error", None) is None else "log_odds"),
    )
    uncertainty = getattr(predictions, "uncertainty", predictions)
    if uncertainty is predictions and np.ndim(predictions) > 1:
        raise QIPFInputError(
            "predictions must be a Prediction or one uncertainty per prediction, got shape "
            f"{tuple(np.shape(predictions))}. Pass model(inputs)."
        )
    predicted = None if label_shift else getattr(predictions, "predicted", None)
    if predicted is not None and np.shape(predicted) != np.shape(uncertainty):  # of each pixel
        predicted = None
    novelty = getattr(predictions, "novelty", None)
    return estimator.estimate(uncertainty, confidence, novelty, predicted)


def _counts(predicted: Any, length: int, classes: int) -> NDArray[np.int64]:  # (classes,)
    """How many predictions are of each class."""
    values = checked_scores(predicted, "predicted")
    if len(values) != length or not np.isin(values, np.arange(-1, classes)).all():
        raise QIPFInputError(
            f"predicted must hold a class from 0 to {classes - 1}, or -1, for each of {length} "
            f"predictions; got {len(values)}, the highest {values.max(initial=-1):g}."
        )
    return np.bincount(values[values >= 0].astype(np.int64), minlength=classes)


def _surplus(
    window: NDArray[np.int64],  # (classes,)
    held_out: NDArray[np.int64],  # (classes,)
) -> float:
    """Share of a window's predictions that exceed the held-out shares, less what chance explains.

    >>> round(_surplus(np.array([900, 100]), np.array([5000, 5000])), 2)
    0.37
    >>> _surplus(np.array([510, 490]), np.array([5000, 5000]))
    0.0
    """
    m, n = int(window.sum()), int(held_out.sum())
    if m == 0:
        return 0.0
    # shares of both together: rare classes are missing in one of them, and vary all the same
    share = (window + held_out + RARE) / (m + n + RARE * len(held_out))
    variance = share * (1.0 - share)
    # |X|, |Y| of two normal numbers have about the correlation ρ², here p_c p_d / (1-p_c)(1-p_d)
    with_others = share**1.5 / np.sqrt(np.maximum(1.0 - share, 1 / n))
    covariance = with_others.sum() ** 2 - np.square(with_others).sum()
    mean = math.sqrt(2 / math.pi) * np.sqrt(variance).sum()
    deviation = math.sqrt((1 - 2 / math.pi) * (variance.sum() + covariance))
    chance = (mean + BY_CHANCE * deviation) * math.sqrt(1 / m + 1 / n)
    difference = np.abs(window / m - held_out / n).sum()
    return max(0.0, float(difference - chance) / 2)


def _likeliest_constant(scores: NDArray[np.float64], rate: float) -> float:
    """What makes the mean probability of the held-out predictions the error rate, within ±20."""

    def excess(constant: float) -> float:
        return float(expit(scores + constant).mean()) - rate

    if excess(-LARGEST) >= 0:
        return -LARGEST
    return LARGEST if excess(LARGEST) <= 0 else float(brentq(excess, -LARGEST, LARGEST))


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
