r"""Metrics of how well an uncertainty separates wrong predictions from right ones.

Wrong predictions are the positives; a higher uncertainty means that an error is more likely. All
metrics are computed from a `Ranking`: the distinct uncertainties with the number of right and
wrong predictions at each. The result does not depend on the order of tied rows.

====================  ======  =========================  =======================  ==="""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import pointbiserialr

from qipf.errors import QIPFInputError, unknown_name
from qipf.validation.scores import checked_outcomes, checked_share


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
        errors = self.expected_errors
        return errors / np.arange(1, len(errors) + 1)

    @property
    def expected_errors(self) -> NDArray[np.float64]:  # (n,)
        """Errors among the k least uncertain predictions, k = 1..n, ties in random order."""
        size = self.right + self.wrong
        return np.repeat(self.wrong / size, size).cumsum()


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


#: Whether a higher value is better, for each metric of `evaluate` in its order.
HIGHER_IS_BETTER: dict[str, bool] = {
    "roc_auc": True,
    "pr_auc": True,
    "pr_auc_trapezoid": True,
    "point_biserial": True,
    "aurc": False,
    "augrc": False,
    "naurc": False,
    "fpr95": False,
}

#: Names of the metrics in tables and figures.
TITLES = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "pr_auc_trapezoid": "PR-AUC by trapezoids",
    "point_biserial": "Point-biserial correlation",
    "aurc": "AURC",
    "augrc": "AUGRC",
    "naurc": "normalised AURC",
    "fpr95": "FPR at 95 % TPR",
}


class Interval(NamedTuple):
    """A metric on the data, and the ends of its confidence interval."""

    estimate: float
    low: float
    high: float


Metric = Callable[[ArrayLike, ArrayLike], float]

_FORMULAS: dict[str, Callable[[Ranking], float]] = {}


def _metric(formula: Callable[[Ranking], float]) -> Metric:
    """Make a formula of the ranking a function of uncertainties (n,) and error flags (n,)."""

    def metric(uncertainty: ArrayLike, wrong: ArrayLike) -> float:
        return formula(ranked(uncertainty, wrong))

    _FORMULAS[formula.__name__] = formula
    metric.__name__ = metric.__qualname__ = formula.__name__
    metric.__doc__ = formula.__doc__
    return metric


@_metric
def roc_auc(ranking: Ranking) -> float:
    """Probability that a wrong prediction is more uncertain than a right one; ties count half.

    >>> roc_auc([0.1, 0.2, 0.2, 0.9], [False, False, True, True])
    0.875
    """
    if ranking.one_sided:
        return math.nan
    right, wrong = ranking.right, ranking.wrong
    less_uncertain = right.cumsum() - right / 2  # right predictions, half of the tied ones
    return float((less_uncertain * wrong).sum() / (int(right.sum()) * int(wrong.sum())))


@_metric
def pr_auc(ranking: Ranking) -> float:
    r"""Average precision: :math:`\sum_t (R_t - R_{t-1}) P_t` over falling thresholds t.

    :math:`P_t, R_t`: share of errors among the predictions at least as uncertain as t, and share
    of all errors found there. Without errors it is 0, its limit as errors become rare.

    >>> round(pr_auc([0.1, 0.2, 0.3, 0.9], [False, True, False, True]), 4)
    0.8333
    """
    if ranking.one_sided:
        return float(ranking.wrong.any())
    recall, precision = _recall_and_precision(ranking)
    return float((np.diff(recall) * precision[1:]).sum())


@_metric
def pr_auc_trapezoid(ranking: Ranking) -> float:
    r"""Area under the precision-recall curve by trapezoids, from recall 0 at precision 1.

    .. math:: \sum_t (R_t - R_{t-1}) \tfrac12 (P_t + P_{t-1}), \quad R_0 = 0, P_0 = 1

    It interpolates between thresholds, which `pr_auc` does not, and is therefore optimistic where
    predictions tie. Without errors it is 0.

    >>> round(pr_auc_trapezoid([0.1, 0.2, 0.3, 0.9], [False, True, False, True]), 4)
    0.7917
    """
    if ranking.one_sided:
        return float(ranking.wrong.any())
    recall, precision = _recall_and_precision(ranking)
    return float((np.diff(recall) * (precision[1:] + precision[:-1])).sum() / 2)


@_metric
def point_biserial(ranking: Ranking) -> float:
    """Pearson's correlation of the uncertainty with being wrong (1) or right (0).

    >>> round(point_biserial([0.0, 1.0, 2.0, 3.0], [False, False, True, True]), 4)
    0.8944
    """
    if ranking.one_sided:
        return math.nan
    if len(ranking.values) == 1:
        return 0.0
    # the correlation does not depend on scale and origin: after these steps huge values cannot
    # overflow, and the differences of nearly equal ones are not rounded away
    values = np.ldexp(ranking.values, -math.frexp(np.abs(ranking.values).max())[1])
    values = (values - values[0]) / (values[-1] - values[0])
    rows = np.concatenate([np.repeat(values, ranking.right), np.repeat(values, ranking.wrong)])
    flags = np.arange(len(rows)) >= ranking.right.sum()
    return float(pointbiserialr(flags, rows).statistic)


@_metric
def aurc(ranking: Ranking) -> float:
    r"""Area under the risk-coverage curve: :math:`\frac1n \sum_{k=1}^n r_k`.

    :math:`r_k`: error rate among the k least uncertain predictions; its expected value under
    random tie-breaking where ties leave open which these are.

    >>> round(aurc([0.1, 0.5, 0.5, 0.9], [False, False, True, True]), 4)
    0.2708
    """
    return float(ranking.expected_risk.mean())


@_metric
def augrc(ranking: Ranking) -> float:
    r"""Area under the generalised risk-coverage curve: :math:`\frac1n \sum_{k=1}^n \frac{e_k}{n}`.

    :math:`e_k`: errors among the k least uncertain predictions, so that an error that is not
    rejected counts the same at any coverage (Traub et al., 2024).

    >>> augrc([0.1, 0.5, 0.5, 0.9], [False, False, True, True])
    0.21875
    """
    errors = ranking.expected_errors
    return float(errors.mean() / len(errors))


@_metric
def naurc(ranking: Ranking) -> float:
    r"""AURC from 0, errors last, to 1, errors at random (Cattelan & Silva, 2024).

    .. math:: \frac{AURC - AURC^*}{e - AURC^*}

    :math:`AURC^*`: its value if all errors were most uncertain; e: the error rate.

    >>> naurc([0.1, 0.2, 0.3, 0.9], [False, False, True, True])
    0.0
    """
    if ranking.one_sided:
        return math.nan
    right, wrong = int(ranking.right.sum()), int(ranking.wrong.sum())
    least = float((np.arange(1, wrong + 1) / np.arange(right + 1, right + wrong + 1)).sum())
    least /= right + wrong
    return (float(ranking.expected_risk.mean()) - least) / (wrong / (right + wrong) - least)


@_metric
def fpr95(ranking: Ranking) -> float:
    """Share of right predictions flagged by the highest threshold that flags 95 % of the errors.

    A threshold flags all predictions at least as uncertain as itself; none is interpolated.

    >>> fpr95([0.1, 0.2, 0.3, 0.9], [False, True, False, True])
    0.5
    """
    if ranking.one_sided:
        return math.nan
    right, wrong = (counts[::-1].cumsum() for counts in (ranking.right, ranking.wrong))
    return float(right[np.argmax(wrong / wrong[-1] >= 0.95)] / right[-1])


def evaluate(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
) -> dict[str, float]:
    """The accuracy of the predictions and every metric of their uncertainty, by name.

    >>> scores = evaluate([0.1, 0.2, 0.3, 0.9], [False, False, False, True])
    >>> scores["accuracy"], scores["roc_auc"], scores["fpr95"]
    (0.75, 1.0, 0.0)
    """
    ranking = ranked(uncertainty, wrong)
    accuracy = int(ranking.right.sum()) / int(ranking.accepted[-1])
    return {"accuracy": accuracy} | {name: of(ranking) for name, of in _FORMULAS.items()}


def chance(metric: str, error_rate: Iterable[float]) -> list[float]:
    """The metric of a random score at these error rates.

    >>> chance("roc_auc", [0.1, 0.3]), chance("aurc", [0.1, 0.3])
    ([0.5, 0.5], [0.1, 0.3])
    """
    constant = {"roc_auc": 0.5, "point_biserial": 0.0, "fpr95": 0.95, "naurc": 1.0}.get(metric)
    factor = 0.5 if metric == "augrc" else 1.0
    return [factor * rate if constant is None else constant for rate in error_rate]


def bootstrap(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
    metric: str,
    draws: int = 1000,
    confidence: float = 0.95,
    random_state: int = 0,
) -> Interval:
    """A metric with its percentile-bootstrap confidence interval over resampled predictions.

    Draws in which the metric is undefined (no errors, or only errors) are left out. If it is
    undefined on the data, estimate and interval are NaN.

    >>> bootstrap([0.1, 0.2, 0.3, 0.4], [False, False, True, True], "roc_auc", draws=20)
    Interval(estimate=1.0, low=1.0, high=1.0)
    """
    if metric not in _FORMULAS:
        raise unknown_name("metric", metric, _FORMULAS)
    if draws < 1:
        raise QIPFInputError(f"draws must be at least 1; got {draws}.")
    confidence = checked_share(confidence, "confidence", 0.95)
    ranking = ranked(uncertainty, wrong)
    formula = _FORMULAS[metric]
    estimate = formula(ranking)
    if math.isnan(estimate):
        return Interval(estimate, math.nan, math.nan)
    rng = np.random.default_rng(random_state)
    values = np.array([formula(drawn) for drawn in _resampled(ranking, draws, rng)])
    defined = values[~np.isnan(values)]
    if not len(defined):
        return Interval(estimate, math.nan, math.nan)
    tail = (1 - confidence) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(estimate, float(low), float(high))


def _resampled(ranking: Ranking, draws: int, rng: np.random.Generator) -> Iterator[Ranking]:
    """Rankings of as many predictions, drawn with replacement, without sorting again."""
    counts = np.concatenate([ranking.right, ranking.wrong])
    cell_of = np.repeat(np.arange(len(counts)), counts)  # (n,)
    for _ in range(draws):
        drawn = cell_of[rng.integers(len(cell_of), size=len(cell_of))]
        right, wrong = np.bincount(drawn, minlength=len(counts)).reshape(2, -1)
        present = right + wrong > 0
        yield Ranking(ranking.values[present], right[present], wrong[present])


def _recall_and_precision(
    ranking: Ranking,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # (1 + G,)
    """Recall and precision at each threshold, falling, after recall 0 at precision 1."""
    flagged, found = (n[::-1].cumsum() for n in (ranking.right + ranking.wrong, ranking.wrong))
    return np.r_[0.0, found / found[-1]], np.r_[1.0, found / flagged]
