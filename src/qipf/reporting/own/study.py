"""Scores of a user's own predictions, and the threshold they suggest."""

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.bench.methods import create
from qipf.bench.methods.protocol import Batch
from qipf.calibration.accept_rule import accept_rule
from qipf.calibration.conformal import Calibration
from qipf.calibration.outcomes import Outcomes
from qipf.calibration.training_rows import TrainingSample, distinct_training_share, training_share
from qipf.display import counted, percent
from qipf.errors import QIPFInputError, warn
from qipf.field.estimator import QIPF
from qipf.io.logits import Block
from qipf.metrics.error_detection import evaluate
from qipf.plots.style import OWN
from qipf.reporting.rule_evaluation import RuleEvaluation, evaluate_rule, random_halves
from qipf.validation.arrays import as_tensor
from qipf.validation.labels import are_probabilities, symmetric_logits
from qipf.validation.scores import checked_share

#: Scores of the same logits that need no fit, for comparison.
PEERS = ("softmax", "entropy", "energy")

#: The uncertainty of the model that the page is about, and the others.
METHODS = (OWN, *PEERS)

#: Limit on the error rate if none is given and the test predictions have no errors.
DEFAULT_RISK = 0.01

#: Confidence of the suggested rule. It may choose among all scores on the predictions that certify
#: it, so that each score's rule has a part of the probability of failure (Bonferroni).
CONFIDENCE = 1 - 0.05 / len(METHODS)

#: Share of predictions like the held-out ones that a threshold without labels flags.
FLAGGED = 0.05

Scores = dict[str, NDArray[np.float64]]  # method -> (n,)


class Hints(NamedTuple):
    """What a reader of the page passes to get more of it."""

    labels: str = "--labels"
    calibrate: str = "--calibrate"
    risk: str = "--risk"


ON_COMMAND_LINE = Hints()
IN_PYTHON = Hints("labels", "model.calibrate", "max_risk")


@dataclass(frozen=True, repr=False)
class Study:
    """Scores of test predictions, and those of held-out ones."""

    model: Any  # a fitted model
    reference: NDArray[np.float64] | None  # uncertainty of held-out predictions, if there are any
    scores: Scores  # of the test predictions
    predicted: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64] | None  # (n,)
    novelty: NDArray[np.float64]  # (n,)
    evaluation: RuleEvaluation | None = None  # certified rule of the best score, with labels
    own_rule: RuleEvaluation | None = None  # the model's own rule, likewise
    trained: float | None = None  # share that are training rows, if it is notable
    calibrated: float | None = None  # share that are of the calibration set, likewise
    requested: bool = False  # whether a limit on the error rate was given
    hints: Hints = ON_COMMAND_LINE

    def __repr__(self) -> str:
        about = [counted(len(self.predicted), "prediction")]
        if self.wrong is not None:
            about.append(f"{percent(float(self.wrong.mean()))} wrong")
        if self.metrics:
            about += [f"{name} {self.metrics[name]['roc_auc']:.3f}" for name in METHODS]
            about[2] = f"ROC-AUC: {about[2]}"
        return f"Study({', '.join(about)})"

    @property
    def threshold(self) -> dict[str, Any] | None:
        """The suggested threshold and its results on other predictions; None if there is none.

        Without labels it is the uncertainty that most of the held-out predictions do not exceed.
        """
        if not self.suggests:
            return None
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

    def above(self, quantile: float, novelty: bool = False) -> tuple[float, float]:
        """A quantile of the held-out predictions, and the share of the test predictions above."""
        held_out, values = self.reference, self.uncertainty
        if novelty:
            held_out, values = self.novelty_reference, self.novelty
        assert held_out is not None
        mark = float(np.quantile(held_out, quantile))
        return mark, float((values > mark).mean())

    @property
    def uncertainty(self) -> NDArray[np.float64]:  # (n,)
        """Uncertainty of the test predictions by the model."""
        return self.scores[OWN]

    @property
    def by_entropy(self) -> bool:
        """Whether the model's uncertainty is the entropy of the softmax."""
        return getattr(self.model._decisions(), "score_", None) == "entropy"

    @property
    def novelty_reference(self) -> NDArray[np.float64] | None:
        """Novelty of the held-out predictions, if it is known."""
        held_out: Calibration | None = self.model.calibration_
        return None if held_out is None else held_out.novelty

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
        """The score that finds the errors best, by ROC-AUC; the model's where that is unknown.

        Of scores that are equal in the digits that the page shows, the first in `METHODS`.
        """
        if not self.metrics:
            return OWN
        return max(METHODS, key=lambda name: round(self.metrics[name]["roc_auc"], 3))

    @property
    def decided(self) -> bool:
        """Whether the model has a certified rule of its own."""
        return self.own_rule is not None and self.own_rule.rule.certified

    @property
    def suggests(self) -> bool:
        """Whether a threshold is suggested: not beside the model's own rule, unless requested."""
        return self.requested or not self.decided


def study(field: QIPF, test: Block, target: float | None = None) -> Study:
    """Score test logits with a fitted field and with its peers; see `study_of`."""
    require_width(test, field.n_features_in_)
    rows = as_tensor(test.logits)
    labels = None if test.labels is None else torch.from_numpy(test.labels)
    found = Outcomes(rows, *field.both_scores(rows), labels=labels)
    return study_of(field, found, target)


def study_of(
    model: Any, found: Outcomes, target: float | None = None, hints: Hints = ON_COMMAND_LINE
) -> Study:
    """Compare the scores of a model's test predictions with those of its peers.

    Parameters
    ----------
    model : a fitted model; if it is calibrated, its held-out predictions are the reference.
    found : outcomes of the test predictions.
    target : limit on the error rate of accepted predictions; half of the test predictions' error
        rate if None. Without labels the threshold flags 5 % of predictions like the held-out ones.
    hints : what the page advises to pass.
    """
    if target is not None:
        checked_share(target, "the limit on the error rate", example=DEFAULT_RISK)
    reference = None if model.calibration_ is None else model.calibration_.scores
    training = model.training_sample()
    trained = None if training is None else training_share(found.rows, training)
    if trained is not None:
        warn(
            f"About {trained:.0%} of these predictions are training rows, on which errors are "
            "rarer than on new data: the page overstates the model's accuracy. Pass other data."
        )
    calibrated = _calibrated_share(model.calibration_, found)
    if calibrated is not None:
        warn(
            f"About {calibrated:.0%} of these predictions are of the calibration set, with which "
            "the page compares them: it cannot show a shift or test the model's rule. Pass other "
            "data."
        )
    rows = found.rows.cpu()
    logits = symmetric_logits(rows)
    if are_probabilities(rows):  # whose softmax is that of their logarithms
        logits = logits.double().clamp(min=sys.float_info.min).log()
    nothing = torch.empty(len(rows), 0)  # images and features, which these scores do not need
    batch = Batch(nothing, logits, nothing)
    scores = {OWN: _numbers(found.uncertainty)}
    scores |= {name: create(name).score(batch).numpy() for name in PEERS}
    labels = None if found.labels is None else found.labels.cpu().numpy()
    novelty, predicted = _numbers(found.novelty), logits.argmax(1).numpy()
    result = Study(
        model, reference, scores, predicted, labels, novelty,
        trained=trained, calibrated=calibrated, requested=target is not None, hints=hints,
    )  # fmt: skip
    wrong = result.wrong
    if wrong is None:
        return result
    if model.rule_ is not None:
        own = evaluate_rule(model.rule_, scores[OWN], wrong, novelty)
        result = replace(result, own_rule=own)
    if len(predicted) < 2:
        return result
    evaluation = certified_evaluation(scores[result.best], wrong, target)
    return replace(result, evaluation=evaluation)


def _calibrated_share(held_out: Calibration | None, found: Outcomes) -> float | None:
    """Share of the predictions with both scores of a held-out one; None if it is not notable."""
    if held_out is None or held_out.novelty is None:
        return None
    known = torch.from_numpy(np.stack([held_out.scores, held_out.novelty], 1))
    given = torch.stack([found.uncertainty, found.novelty], 1)
    # collapsed test data equals one held-out prediction often
    return distinct_training_share(given, TrainingSample(known, len(known)))


def _numbers(scores: torch.Tensor) -> NDArray[np.float64]:
    return scores.detach().cpu().double().numpy()


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


def require_width(test: Block, width: int) -> None:
    """Raise if the test rows have another number of logits than the training rows."""
    if test.logits.shape[1] != width:
        raise QIPFInputError(
            f"Training rows have {width} logits, test rows {test.logits.shape[1]}. Both must come "
            "from one model."
        )
