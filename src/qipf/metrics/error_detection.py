r"""How well an uncertainty tells wrong predictions from right ones.

Wrong predictions are the positives, and higher uncertainty means more suspicion. Every number
here depends on the data only through three columns: the distinct uncertainties in rising order,
and how many right and how many wrong predictions share each. Ties therefore have one answer,
whatever order the rows come in.

==================  ======  =========================  ==========  ==========
metric              better  no errors, or only errors  all equal   by chance
==================  ======  =========================  ==========  ==========
``roc_auc``         higher  NaN                        0.5         0.5
``pr_auc``          higher  0 or 1                     error rate  error rate
``point_biserial``  higher  NaN                        0           0
``aurc``            lower   0 or 1                     error rate  error rate
``fpr95``           lower   NaN                        1           0.95
==================  ======  =========================  ==========  ==========
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qipf.errors import QIPFInputError, unknown_name
from qipf.metrics.ranking import Ranking, ranked

#: Which way each metric of `evaluate` is better, by name and in its order.
HIGHER_IS_BETTER: dict[str, bool] = {
    "roc_auc": True,
    "pr_auc": True,
    "point_biserial": True,
    "aurc": False,
    "fpr95": False,
}


class Interval(NamedTuple):
    """A metric on the data, and the ends of its confidence interval."""

    estimate: float
    low: float
    high: float


def roc_auc(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
) -> float:
    """Chance that a wrong prediction is more uncertain than a right one, ties counting half.

    >>> roc_auc([0.1, 0.2, 0.2, 0.9], [False, False, True, True])
    0.875
    """
    return _roc_auc(ranked(uncertainty, wrong))


def pr_auc(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
) -> float:
    r"""Average precision: :math:`\sum_t (R_t - R_{t-1}) P_t` over falling thresholds t.

    :math:`P_t, R_t`: share of errors among the predictions at least as uncertain as t, and share
    of all errors found there. Without errors it is 0, where it tends as errors become rare.

    >>> round(pr_auc([0.1, 0.2, 0.3, 0.9], [False, True, False, True]), 4)
    0.8333
    """
    return _pr_auc(ranked(uncertainty, wrong))


def point_biserial(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
) -> float:
    """Pearson's correlation of the uncertainty with being wrong (1) or right (0).

    >>> round(point_biserial([0.0, 1.0, 2.0, 3.0], [False, False, True, True]), 4)
    0.8944
    """
    return _point_biserial(ranked(uncertainty, wrong))


def aurc(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
) -> float:
    r"""Area under the risk-coverage curve: :math:`\frac1n \sum_{k=1}^n r_k`.

    :math:`r_k`: error rate among the k least uncertain predictions; where ties leave open which
    these are, its expected value when ties are broken at random.

    >>> round(aurc([0.1, 0.5, 0.5, 0.9], [False, False, True, True]), 4)
    0.2708
    """
    return _aurc(ranked(uncertainty, wrong))


def fpr95(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
) -> float:
    """Share of right predictions flagged by the highest threshold that flags 95 % of the errors.

    A threshold flags all predictions at least as uncertain as itself; none is interpolated.

    >>> fpr95([0.1, 0.2, 0.3, 0.9], [False, True, False, True])
    0.5
    """
    return _fpr95(ranked(uncertainty, wrong))


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
    accuracy = int(ranking.right.sum()) / int(ranking.right.sum() + ranking.wrong.sum())
    return {"accuracy": accuracy} | {name: of(ranking) for name, of in _FORMULAS.items()}


def bootstrap(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
    metric: str,
    draws: int = 1000,
    confidence: float = 0.95,
    random_state: int = 0,
) -> Interval:
    """A metric with its percentile-bootstrap confidence interval over resampled predictions.

    Draws in which the metric is not defined (no errors, or only errors) are left out; if it is
    not defined on the data themselves, neither is the interval: all NaN.

    >>> bootstrap([0.1, 0.2, 0.3, 0.4], [False, False, True, True], "roc_auc")
    Interval(estimate=1.0, low=1.0, high=1.0)
    """
    if metric not in _FORMULAS:
        raise unknown_name("metric", metric, _FORMULAS)
    if draws < 1:
        raise QIPFInputError(f"draws must be at least 1; got {draws}.")
    if not 0 < confidence < 1:
        raise QIPFInputError(f"confidence must lie between 0 and 1; got {confidence}. Try 0.95.")
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
    """As many predictions, drawn with replacement; counting them needs no second sorting."""
    counts = np.concatenate([ranking.right, ranking.wrong])
    cell_of = np.repeat(np.arange(len(counts)), counts)  # (n,)
    for _ in range(draws):
        drawn = cell_of[rng.integers(len(cell_of), size=len(cell_of))]
        right, wrong = np.bincount(drawn, minlength=len(counts)).reshape(2, -1)
        present = right + wrong > 0
        yield Ranking(ranking.values[present], right[present], wrong[present])


def _roc_auc(ranking: Ranking) -> float:
    if ranking.one_sided:
        return math.nan
    # twice the pairs in the right order, in whole numbers: no rounding before the division
    below_or_half = 2 * ranking.right.cumsum() - ranking.right
    pairs = int(ranking.right.sum()) * int(ranking.wrong.sum())
    return int(ranking.wrong @ below_or_half) / (2 * pairs)


def _pr_auc(ranking: Ranking) -> float:
    wrong, right = ranking.wrong[::-1], ranking.right[::-1]  # most uncertain first
    found = wrong.cumsum()
    precision = found / (found + right.cumsum())
    return float(wrong @ precision / max(1, found[-1]))


def _point_biserial(ranking: Ranking) -> float:
    if ranking.one_sided:
        return math.nan
    if len(ranking.values) == 1:
        return 0.0
    size = ranking.right + ranking.wrong
    total, errors = int(size.sum()), int(ranking.wrong.sum())
    # the correlation knows no scale and no origin: a power of two and the least value go without
    # rounding, so that neither huge values overflow nor nearly equal ones drown in their mean
    values = np.ldexp(ranking.values, -math.frexp(np.abs(ranking.values).max())[1])
    values = (values - values[0]) / (values[-1] - values[0])
    values = values - size @ values / total
    covariance = ranking.wrong @ values
    deviation = math.sqrt(size @ values**2 * errors * (total - errors) / total)
    return float(np.clip(covariance / deviation, -1, 1))


def _aurc(ranking: Ranking) -> float:
    return float(ranking.expected_risk.mean())


def _fpr95(ranking: Ranking) -> float:
    if ranking.one_sided:
        return math.nan
    found = ranking.wrong[::-1].cumsum()
    flagged = ranking.right[::-1].cumsum()
    enough = int(np.argmax(100 * found >= 95 * found[-1]))  # whole numbers: 95 % is 95 %
    return int(flagged[enough]) / int(flagged[-1])


_FORMULAS: dict[str, Callable[[Ranking], float]] = {
    "roc_auc": _roc_auc,
    "pr_auc": _pr_auc,
    "point_biserial": _point_biserial,
    "aurc": _aurc,
    "fpr95": _fpr95,
}
