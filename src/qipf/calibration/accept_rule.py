"""Accept rules from held-out predictions, with a guaranteed error rate or coverage."""

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from qipf.calibration.fixed_sequence import certified_ranks
from qipf.calibration.quantization import below, highest, rounded
from qipf.calibration.risk_coverage import upper_bound
from qipf.calibration.rule import EVERYTHING, AcceptRule
from qipf.errors import QIPFInputError
from qipf.validation.scores import checked_outcomes, checked_share, finite_scores

#: Smallest `max_risk`; a lower one would take billions of held-out predictions.
LEAST_RISK = 1e-9


def accept_rule(
    uncertainty: Any,  # (n,)
    wrong: Any,  # (n,)
    max_risk: float | None = None,
    confidence: float = 0.95,
    *,
    min_coverage: float | None = None,
    novelty: Any = None,  # (n,)
    min_novelty_p: float | None = None,
    origin: float = 0.0,
) -> AcceptRule:
    r"""Make a threshold with a guarantee from held-out predictions whose errors are known.

    With `max_risk`: with probability `confidence` over the draw of the held-out set, the error rate
    among accepted predictions is at most `max_risk`, for data like the held-out data. Of all
    thresholds that can be certified the rule takes the one that accepts most
    (`qipf.calibration.fixed_sequence` explains the test). If none can be certified the rule
    abstains from all predictions, and ``print(rule)`` says what would help.

    With `min_coverage`: the threshold is the :math:`k`-th smallest held-out uncertainty,
    :math:`k` the smallest for which :math:`P(\mathrm{Bin}(n, c) \ge k) \le \delta/2`, so that at
    least a share :math:`c` is accepted; the error rate is bounded after Clopper and Pearson with
    the other :math:`\delta/2`, by the larger of the bounds with and without the predictions tied at
    the threshold. Both hold together with probability `confidence`.

    With `novelty` and `min_novelty_p`, the rule also abstains from novel inputs: from novelties at
    least as high as the :math:`\lfloor p (n + 1) \rfloor`-th highest of the held-out ones, which
    are those with a conformal p-value of at most `min_novelty_p`, and ties. Given that limit, the
    held-out predictions below it are a sample of the population below it, so the rule is made from
    them and the guarantee holds for what is accepted.

    Uncertainties are compared as `qipf.calibration.quantization` rounds them; tied ones are
    accepted or rejected together. The guarantee does not hold for shifted data.

    Parameters
    ----------
    uncertainty : (n,) of held-out predictions, which were not used to fit or tune the model.
    wrong : (n,) booleans, true where the prediction is wrong.
    max_risk : largest error rate among accepted predictions; 0.01 unless `min_coverage` is given.
    confidence : of the guarantee, over the draw of the held-out set.
    min_coverage : share of predictions that must be accepted, instead of `max_risk`.
    novelty : (n,) of the same predictions, for `min_novelty_p`.
    min_novelty_p : abstain from predictions whose novelty has no larger p-value; the share of
        usual predictions that is rejected as novel. Not together with `min_coverage`.
    origin : constant in the uncertainties that is subtracted before they are rounded.

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
    count, limit = len(scores), None
    if novelty is not None or min_novelty_p is not None:
        if min_coverage is not None or novelty is None or min_novelty_p is None:
            raise QIPFInputError(
                "novelty and min_novelty_p belong together, such as min_novelty_p=0.01, and not "
                "with min_coverage."
            )
        limit, usual = _novelty_limit(novelty, min_novelty_p, count)
        scores, errors = scores[usual], errors[usual]
    order = np.lexsort((errors, scores))  # the rule does not depend on the order of the rows
    scores, errors = rounded(scores[order], origin), errors[order]
    # ties in random order, whatever order the rows came in: see qipf.calibration.fixed_sequence
    order = np.random.default_rng(0).permutation(len(scores))
    order = order[np.argsort(scores[order], kind="stable")]
    scores, errors = scores[order], errors[order]
    if min_coverage is not None:
        min_coverage = checked_share(min_coverage, "min_coverage", 0.9)
        return _covering(scores, errors, min_coverage, confidence, origin)
    max_risk = checked_share(0.01 if max_risk is None else max_risk, "max_risk", 0.01)
    if max_risk < LEAST_RISK:
        raise QIPFInputError(
            f"max_risk must be at least {LEAST_RISK:g}, got {max_risk!r}: no held-out set is large "
            "enough to certify less."
        )
    rule = _certified(scores, errors, max_risk, confidence, origin, count)
    return rule if limit is None else replace(rule, max_novelty=limit)


def _novelty_limit(novelty: Any, share: float, count: int) -> tuple[float, NDArray[np.bool_]]:
    """The largest novelty to accept, and which of the held-out predictions are below it."""
    share = checked_share(share, "min_novelty_p", 0.01)
    values = finite_scores(novelty, "novelty")
    if len(values) != count:
        raise QIPFInputError(
            f"novelty must have the shape of uncertainty, ({count},); got ({len(values)},)."
        )
    rank = math.floor(share * (count + 1))
    if rank == 0:
        raise QIPFInputError(
            f"No novelty can have a p-value of {share:g} among {count:,} held-out predictions. "
            f"Pass at least {math.ceil(1 / share) - 1:,} of them, or a larger min_novelty_p."
        )
    values = rounded(values)
    first = float(np.sort(values)[count - rank])  # the least novelty to abstain from
    return below(first), values < first


def _certified(
    scores: NDArray[np.float64],
    errors: NDArray[np.int64],
    max_risk: float,
    confidence: float,
    origin: float,
    held_out: int,
) -> AcceptRule:
    accepted = _most_accepted(scores, errors, max_risk, confidence)
    reachable = None
    if accepted == 0:
        reachable = _reachable_risk(scores, errors, max_risk, confidence)
    return AcceptRule(
        threshold=highest(float(scores[accepted - 1]), origin) if accepted else -math.inf,
        risk_bound=max_risk if accepted else 1.0,
        confidence=confidence,
        held_out=held_out,
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
    """The smallest risk of two digits that would have been certified."""
    risks = [digits / 10**power for power in range(9, 1, -1) for digits in range(10, 100)]
    risks = [risk for risk in risks if risk > max_risk]

    def certifies(risk: float) -> bool:
        return _most_accepted(scores, errors, risk, confidence) > 0

    found = bisect_left(risks, True, key=certifies)
    return risks[found] if found < len(risks) else None


def _covering(
    scores: NDArray[np.float64],
    errors: NDArray[np.int64],
    min_coverage: float,
    confidence: float,
    origin: float,
) -> AcceptRule:
    count, half = len(scores), (1 - confidence) / 2
    ranks = np.flatnonzero(bdtrc(np.arange(count), count, min_coverage) <= half) + 1
    # too few predictions to find the quantile: accept all, which covers more
    threshold = float(scores[ranks[0] - 1]) if len(ranks) else EVERYTHING
    below = int(np.searchsorted(scores, threshold, side="left")) if len(ranks) else count
    accepted = int(np.searchsorted(scores, threshold, side="right"))
    kept = np.array([accepted, below] if below else [accepted])
    found = errors.cumsum()[kept - 1]
    bound = float(upper_bound(found, kept, half).max())
    return AcceptRule(
        threshold=highest(threshold, origin) if len(ranks) else EVERYTHING,
        risk_bound=bound,
        confidence=confidence,
        held_out=count,
        accepted=accepted,
        errors=int(found[0]),
        max_risk=None,
        min_coverage=min_coverage,
    )
