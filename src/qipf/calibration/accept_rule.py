"""From an uncertainty to an action: thresholds with guarantees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from qipf.calibration.fixed_sequence import certified_ranks
from qipf.calibration.risk_coverage import upper_bound
from qipf.calibration.rule import EVERYTHING, AcceptRule
from qipf.errors import QIPFInputError
from qipf.validation.scores import checked_outcomes, checked_share

__all__ = ["AcceptRule", "accept_rule"]

#: A lower risk would take billions of held-out predictions.
LEAST_RISK = 1e-9


def accept_rule(
    uncertainty: Any,  # (n,)
    wrong: Any,  # (n,)
    max_risk: float | None = None,
    confidence: float = 0.95,
    *,
    min_coverage: float | None = None,
) -> AcceptRule:
    r"""A threshold with a guarantee, from held-out predictions whose errors are known.

    With `max_risk`: with probability `confidence` over the draw of the held-out set, the error rate
    among accepted predictions is at most `max_risk`, for data like the held-out ones; of the
    thresholds that can be certified, the one that accepts most. Ranks are tested
    by the exact binomial tail, from the first that any data could certify on, in a sequence fixed
    beforehand (`qipf.calibration.fixed_sequence` says why that holds, and why it was preferred to splitting the
    data). If none can be certified the rule abstains from
    everything, and `print(rule)` says what would help.

    With `min_coverage`: the threshold is the :math:`k`-th smallest held-out uncertainty,
    :math:`k` the smallest for which :math:`P(\mathrm{Bin}(n, c) \ge k) \le \delta/2`, so that at
    least a share :math:`c` is accepted; the error rate is bounded after Clopper and Pearson with
    the other :math:`\delta/2`, by the worse of the bounds with and without the predictions tied at
    the threshold. Both hold together with probability `confidence`.

    Tied uncertainties are accepted or rejected together. Predictions that are not like the
    held-out ones (shifted data) void the guarantee.

    Parameters
    ----------
    uncertainty : (n,) of held-out predictions: none of them in the field, nor used to tune it.
    wrong : (n,) booleans, true where the prediction is wrong.
    max_risk : largest error rate among accepted predictions; 0.01 unless `min_coverage` is given.
    confidence : of the guarantee, over the draw of the held-out set.
    min_coverage : share of predictions that must be accepted, instead of `max_risk`.

    >>> rng = np.random.default_rng(0)
    >>> uncertainty = rng.random(2000)
    >>> wrong = rng.random(2000) < uncertainty**4 / 2
    >>> rule = accept_rule(uncertainty, wrong, max_risk=0.05)
    >>> rule(np.array([0.1, 0.9]))
    array([ True, False])
    """
    if max_risk is not None and min_coverage is not None:
        raise QIPFInputError("Pass max_risk or min_coverage, not both.")
    confidence = checked_share(confidence, "confidence", 0.95)
    scores, errors = checked_outcomes(uncertainty, wrong)
    # ties in random order, whatever order the rows came in: see qipf.calibration.fixed_sequence
    order = np.random.default_rng(0).permutation(len(scores))
    order = order[np.argsort(scores[order], kind="stable")]
    scores, errors = scores[order], errors[order]
    if min_coverage is not None:
        min_coverage = checked_share(min_coverage, "min_coverage", 0.9)
        return _covering(scores, errors, min_coverage, confidence)
    max_risk = checked_share(0.01 if max_risk is None else max_risk, "max_risk", 0.01)
    if max_risk < LEAST_RISK:
        raise QIPFInputError(
            f"max_risk must be at least {LEAST_RISK:g}, got {max_risk!r}: no held-out set is large "
            "enough to certify less."
        )
    return _certified(scores, errors, max_risk, confidence)


def _certified(
    scores: NDArray[np.float64], errors: NDArray[np.int64], max_risk: float, confidence: float
) -> AcceptRule:
    accepted = _most_accepted(scores, errors, max_risk, confidence)
    reachable = None
    if accepted == 0:
        reachable = _reachable_risk(scores, errors, max_risk, confidence)
    return AcceptRule(
        threshold=float(scores[accepted - 1]) if accepted else -math.inf,
        risk_bound=max_risk if accepted else 1.0,
        confidence=confidence,
        held_out=len(scores),
        accepted=accepted,
        errors=int(errors[:accepted].sum()),
        max_risk=max_risk,
        min_coverage=None,
        reachable_risk=reachable,
    )


def _most_accepted(
    scores: NDArray[np.float64], errors: NDArray[np.int64], max_risk: float, confidence: float
) -> int:
    last_of_ties = np.append(scores[1:] > scores[:-1], True)
    certified = certified_ranks(errors, max_risk, 1 - confidence)
    ranks = np.flatnonzero(certified & last_of_ties)
    return int(ranks[-1]) + 1 if len(ranks) else 0


def _reachable_risk(
    scores: NDArray[np.float64], errors: NDArray[np.int64], max_risk: float, confidence: float
) -> float | None:
    """The least risk of two digits that would have been certified."""
    risks = [digits / 10**power for power in range(9, 1, -1) for digits in range(10, 100)]
    risks = [risk for risk in risks if risk > max_risk]
    found, low, high = None, 0, len(risks)
    while low < high:
        middle = (low + high) // 2
        if _most_accepted(scores, errors, risks[middle], confidence):
            found, high = risks[middle], middle
        else:
            low = middle + 1
    return found


def _covering(
    scores: NDArray[np.float64], errors: NDArray[np.int64], min_coverage: float, confidence: float
) -> AcceptRule:
    count, half = len(scores), (1 - confidence) / 2
    ranks = np.flatnonzero(bdtrc(np.arange(count), count, min_coverage) <= half) + 1
    # too few to say where that share ends: accept all, which is more
    threshold = float(scores[ranks[0] - 1]) if len(ranks) else EVERYTHING
    below = int(np.searchsorted(scores, threshold, side="left")) if len(ranks) else count
    accepted = int(np.searchsorted(scores, threshold, side="right"))
    kept = np.array([accepted, below] if below else [accepted])
    found = errors.cumsum()[kept - 1]
    bound = float(upper_bound(found, kept, half).max())
    return AcceptRule(
        threshold=threshold,
        risk_bound=bound,
        confidence=confidence,
        held_out=count,
        accepted=accepted,
        errors=int(found[0]),
        max_risk=None,
        min_coverage=min_coverage,
    )
