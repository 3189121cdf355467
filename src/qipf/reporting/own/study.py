"""Scores of a user's own predictions from saved logits, and the threshold they suggest."""

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.bench.methods import create
from qipf.bench.methods.protocol import Batch
from qipf.calibration.accept_rule import accept_rule
from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.logits import Block
from qipf.metrics.error_detection import evaluate
from qipf.reporting.run.decisions import RuleEvaluation, evaluate_rule, random_halves
from qipf.validation.arrays import as_tensor
from qipf.validation.labels import are_probabilities, class_logits
from qipf.validation.scores import checked_share

#: Scores of the same logits that need no fit, for comparison.
PEERS = ("softmax", "entropy", "energy")
METHODS = ("qipf", *PEERS)

#: Limit on the error rate if none is given and the test predictions have no errors.
DEFAULT_RISK = 0.01

#: Confidence of the suggested rule. It may choose among all scores on the predictions that certify
#: it, so that each score's rule has a part of the probability of failure (Bonferroni).
CONFIDENCE = 1 - 0.05 / len(METHODS)

#: Share of predictions like the held-out ones that a threshold without labels flags.
FLAGGED = 0.05

Scores = dict[str, NDArray[np.float64]]  # method -> (n,)


@dataclass(frozen=True)
class Study:
    """Scores of test predictions, and the uncertainty of held-out ones."""

    field: QIPF
    reference: NDArray[np.float64] | None  # uncertainty of held-out predictions, if there are any
    scores: Scores  # of the test predictions
    predicted: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64] | None  # (n,)
    evaluation: RuleEvaluation | None  # the certified rule of the best score, if there are labels

    @property
    def threshold(self) -> dict[str, Any] | None:
        """The suggested threshold and its results on other predictions; None if there is none.

        Without labels it is the uncertainty that most of the held-out predictions do not exceed.
        """
        each = self.evaluation
        values: tuple[float | None, ...]
        if each is not None:
            if not each.rule.certified:
                return None
            risk = each.risk if each.accepted else None
            values = each.rule.threshold, each.rule.max_risk, each.coverage, risk, each.holds
        elif self.reference is not None:
            limit, above = self.above(1 - FLAGGED)
            values = limit, FLAGGED, 1 - above, None, True
        else:
            return None
        names = "threshold", "target", "kept", "error_rate", "holds"
        return {"score": self.best, **dict(zip(names, values, strict=True))}

    def above(self, quantile: float) -> tuple[float, float]:
        """A quantile of the held-out predictions, and the share of the test predictions above."""
        assert self.reference is not None
        mark = float(np.quantile(self.reference, quantile))
        return mark, float((self.scores["qipf"] > mark).mean())

    @property
    def wrong(self) -> NDArray[np.bool_] | None:  # (n,)
        """Which predictions are wrong, if there are labels."""
        return None if self.labels is None else self.predicted != self.labels

    @cached_property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Every metric of every method; empty unless there are right and wrong predictions."""
        if self.wrong is None or self.wrong.all() or not self.wrong.any():
            return {}
        return {name: evaluate(self.scores[name], self.wrong) for name in METHODS}

    @property
    def best(self) -> str:
        """The score that finds the errors best, by ROC-AUC; qipf where that is unknown."""
        if not self.metrics:
            return "qipf"
        return max(METHODS, key=lambda name: self.metrics[name]["roc_auc"])


def study(field: QIPF, test: Block, target: float | None = None, seed: int = 0) -> Study:
    """Score test logits with a fitted field and with its peers.

    Parameters
    ----------
    field : a fitted field; if it is calibrated, its held-out predictions are the reference.
    test : logits to score.
    target : limit on the error rate of accepted predictions; half of the test predictions' error
        rate if None. Without labels the threshold flags 5 % of predictions like the held-out ones.
    seed : seed of the random split of the test predictions.
    """
    if target is not None:
        checked_share(target, "the limit on the error rate", example=DEFAULT_RISK)
    require_width(test, field.n_features_in_)
    reference = None if field.calibration_ is None else field.calibration_.scores
    logits = class_logits(as_tensor(test.logits))
    if are_probabilities(as_tensor(test.logits)):  # whose softmax is that of their logarithms
        logits = logits.double().clamp(min=sys.float_info.min).log()
    scores, predicted = _scores(field, test.logits, logits), logits.argmax(1).numpy()
    found = Study(field, reference, scores, predicted, test.labels, None)
    if found.wrong is None or len(predicted) < 2:
        return found
    evaluation = certified_evaluation(scores[found.best], found.wrong, target, seed)
    return Study(field, reference, scores, predicted, test.labels, evaluation)


def certified_evaluation(
    scores: NDArray[np.float64],  # (n,)
    wrong: NDArray[np.bool_],  # (n,)
    target: float | None = None,
    seed: int = 0,
) -> RuleEvaluation:
    """The accept rule of a random half of the predictions, evaluated on the other half.

    Without a target the limit is half of the error rate of the *other* half (1 % if that has no
    errors): a limit must not depend on the predictions that certify it.
    """
    held_out, other = random_halves(len(wrong), seed)
    if target is None:
        target = float(wrong[other].mean()) / 2 or DEFAULT_RISK
    rule = accept_rule(scores[held_out], wrong[held_out], target, CONFIDENCE)
    return evaluate_rule(rule, scores[other], wrong[other])


def _scores(field: QIPF, rows: NDArray[np.float64], logits: torch.Tensor) -> Scores:
    nothing = torch.empty(len(rows), 0)  # images and features, which these scores do not need
    batch = Batch(nothing, logits, nothing)
    peers = {name: create(name).score(batch).numpy() for name in PEERS}
    return {"qipf": field.uncertainty(rows), **peers}


def require_width(test: Block, width: int) -> None:
    """Raise if the test rows have another number of logits than the training rows."""
    if test.logits.shape[1] != width:
        raise QIPFInputError(
            f"Training rows have {width} logits, test rows {test.logits.shape[1]}. Both must come "
            "from one model."
        )
