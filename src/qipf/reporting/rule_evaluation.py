"""Accept rules evaluated on predictions that they were not made from."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest

from qipf.calibration.accept_rule import accept_rule
from qipf.calibration.rule import AcceptRule


def random_halves(count: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of two random halves: the held-out one, which calibrates, and the other."""
    order = np.random.default_rng(seed).permutation(count)
    return order[: count // 2], order[count // 2 :]


@dataclass(frozen=True)
class RuleEvaluation:
    """An accept rule, and its results on predictions that it was not made from."""

    rule: AcceptRule
    count: int
    accepted: int
    errors: int  # among the accepted

    @property
    def coverage(self) -> float:
        """Share of accepted predictions."""
        return self.accepted / self.count

    @property
    def risk(self) -> float:
        """Error rate among accepted predictions; NaN if there are none."""
        return self.errors / self.accepted if self.accepted else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the error rate among accepted predictions."""
        if not self.accepted:
            return 0.0, 1.0
        interval = binomtest(self.errors, self.accepted).proportion_ci(0.95, "wilson")
        return float(interval.low), float(interval.high)

    @property
    def holds(self) -> bool:
        """False if the whole interval of the error rate lies above the rule's limit."""
        return self.interval[0] <= self.rule.risk_bound


def evaluate_rule(
    rule: AcceptRule, uncertainty: ArrayLike, wrong: ArrayLike, novelty: ArrayLike | None = None
) -> RuleEvaluation:
    """Apply a rule to predictions whose errors are known."""
    accept = rule(np.asarray(uncertainty), novelty)
    errors = np.asarray(wrong).astype(bool) & accept
    return RuleEvaluation(rule, len(accept), int(accept.sum()), int(errors.sum()))


def split_evaluation(
    uncertainty: NDArray,  # (n,)
    wrong: NDArray,  # (n,)
    max_risk: float,
    seed: int = 0,
) -> RuleEvaluation:
    """Make a rule from one half of the predictions and evaluate it on the other half."""
    held_out, other = random_halves(len(wrong), seed)
    rule = accept_rule(uncertainty[held_out], wrong[held_out], max_risk)
    return evaluate_rule(rule, uncertainty[other], wrong[other])
