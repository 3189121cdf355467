"""Scores of a user's own predictions from saved logits, and the threshold they suggest."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.bench.methods import create
from qipf.bench.methods.protocol import Batch
from qipf.calibration.conformal import calibration_of
from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.logits import Block
from qipf.metrics.error_detection import evaluate
from qipf.report.run.decisions import RuleEvaluation, random_halves, split_evaluation
from qipf.validation.scores import checked_share

#: Scores of the same logits that need no fit, for comparison.
PEERS = ("softmax", "entropy", "energy")
METHODS = ("qipf", *PEERS)

#: Largest number of training rows that are held out of the field, as a reference.
HELD_OUT = 10_000

#: Fewer training rows than this are not split.
FEWEST_ROWS = 20

#: Limit on the error rate if none is given and the test predictions have no errors.
DEFAULT_RISK = 0.01

#: Share of predictions like the training data that a threshold without labels flags.
FLAGGED = 0.05

Scores = dict[str, NDArray[np.float64]]  # method -> (n,)


@dataclass(frozen=True)
class Study:
    """Scores of test predictions, and the uncertainty of held-out ones."""

    field: QIPF
    reference: NDArray[np.float64]  # uncertainty of held-out predictions
    scores: Scores  # of the test predictions
    predicted: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64] | None  # (n,)
    evaluation: RuleEvaluation | None  # the certified rule, if there are labels

    @property
    def threshold(self) -> dict[str, Any] | None:
        """The suggested threshold and its results on other predictions; None if none is certified.

        Without labels it is the uncertainty that most of the reference does not exceed.
        """
        each = self.evaluation
        values: tuple[float | None, ...]
        if each is None:
            limit, _ = self.above(1 - FLAGGED)
            values = limit, FLAGGED, float((self.scores["qipf"] <= limit).mean()), None, True
        elif each.rule.certified:
            risk = each.risk if each.accepted else None
            values = each.rule.threshold, each.rule.max_risk, each.coverage, risk, each.holds
        else:
            return None
        names = "uncertainty", "target", "kept", "error_rate", "holds"
        return dict(zip(names, values, strict=True))

    def above(self, quantile: float) -> tuple[float, float]:
        """A quantile of the reference, and the share of the test predictions above it."""
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


def study(train: Block | QIPF, test: Block, target: float | None = None, seed: int = 0) -> Study:
    """Score test logits with a field and with its peers.

    Parameters
    ----------
    train : training logits, to fit a field to, or a calibrated field.
    test : logits to score.
    target : limit on the error rate of accepted predictions; half of the test predictions' error
        rate if None. Without labels the threshold flags 5 % of predictions like the held-out ones.
    seed : seed of the random splits.
    """
    if target is not None:
        checked_share(target, "the limit on the error rate", example=DEFAULT_RISK)
    if isinstance(train, QIPF):
        field, reference = train, calibration_of(train).scores
        _require_width(test, field.n_features_in_)
    else:
        _require_width(test, train.logits.shape[1])
        field, reference = _fitted(train, seed)
    scores, predicted = _scores(field, test.logits), test.logits.argmax(1)
    evaluation = None
    if test.labels is not None and len(predicted) > 1:
        evaluation = certified_evaluation(scores["qipf"], predicted != test.labels, target, seed)
    return Study(field, reference, scores, predicted, test.labels, evaluation)


def _fitted(train: Block, seed: int) -> tuple[QIPF, NDArray[np.float64]]:
    """A field of most training logits, and the uncertainty of the others."""
    if len(train.logits) < FEWEST_ROWS:
        raise QIPFInputError(
            f"There are {len(train.logits)} training rows; at least {FEWEST_ROWS} are needed."
        )
    order = np.random.default_rng(seed).permutation(len(train.logits))
    held = min(HELD_OUT, math.ceil(len(order) / 5))
    apart, inside = order[:held], order[held:]
    labels = None if train.labels is None else train.labels[inside]
    field = QIPF(random_state=seed).fit(train.logits[inside], labels)
    return field, field.uncertainty(train.logits[apart])


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
    if target is None:
        target = float(wrong[random_halves(len(wrong), seed)[1]].mean()) / 2 or DEFAULT_RISK
    return split_evaluation(scores, wrong, target, seed)


def _scores(field: QIPF, logits: NDArray[np.float64]) -> Scores:
    rows = torch.from_numpy(logits)
    nothing = torch.empty(len(rows), 0)  # images and features, which these scores do not need
    batch = Batch(nothing, rows, nothing)
    peers = {name: create(name).score(batch).numpy() for name in PEERS}
    return {"qipf": field.uncertainty(logits), **peers}


def _require_width(test: Block, width: int) -> None:
    if test.logits.shape[1] != width:
        raise QIPFInputError(
            f"Training rows have {width} logits, test rows {test.logits.shape[1]}. Both must come "
            "from one model."
        )
