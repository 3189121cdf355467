"""How far a user's own predictions are to be trusted, from saved logits alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.bench.methods import create
from qipf.bench.methods.protocol import Batch
from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.logits import Block
from qipf.report.run.decisions import Trial, halved_trial, halves

#: What the field is compared with: scores of the same logits that everybody has for free.
PEERS = ("softmax", "entropy", "energy")
METHODS = ("qipf", *PEERS)

#: Training rows kept out of the field, at most, to know what is usual.
HELD_OUT = 10_000

#: Fewer training rows than this are not split.
FEWEST_ROWS = 20

#: The limit on the error rate where none is given and no errors tell what is reasonable.
USUAL_RISK = 0.01

#: Share of predictions like the training ones that a threshold without labels may flag.
FLAGGED = 0.05

Scores = dict[str, NDArray[np.float64]]  # method -> (n,)


@dataclass(frozen=True)
class Threshold:
    """The uncertainty above which a prediction should not be accepted unseen, and why there."""

    value: float
    target: float  # error rate among what is kept; or share flagged, without labels
    chosen_on: int  # predictions it was chosen on
    checked_on: int  # other predictions it was tried on
    kept: int  # of those, how many lie at or below it
    errors: int | None = None  # and how many of these are wrong

    @property
    def risk(self) -> tuple[float, float, float] | None:
        """Error rate among what is kept, with its 95 % interval; None where it is not known."""
        if self.errors is None or self.kept == 0:
            return None
        return wilson(self.errors, self.kept)

    @property
    def holds(self) -> bool:
        """False where the predictions it was tried on clearly miss the target."""
        return self.risk is None or self.risk[1] <= self.target


@dataclass(frozen=True)
class Study:
    """Scores of the test predictions and of held-out training ones, and what follows."""

    field: QIPF
    usual: Scores  # of training predictions that are not in the field
    scores: Scores  # of the test predictions
    predicted: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64] | None  # (n,)
    trial: Trial | None  # the certified rule and what it does, where labels are known

    @property
    def threshold(self) -> Threshold | None:
        """Where to stop accepting; None where no threshold can be certified."""
        if self.trial is None:
            return usual_threshold(self.usual["qipf"], self.scores["qipf"])
        rule, limit = self.trial.rule, self.trial.rule.max_risk
        if not rule.certified or limit is None:
            return None
        checked, kept, errors = self.trial.count, self.trial.accepted, self.trial.errors
        return Threshold(rule.threshold, limit, rule.held_out, checked, kept, errors)

    @property
    def wrong(self) -> NDArray[np.bool_] | None:  # (n,)
        """Where the model erred, if that is known."""
        return None if self.labels is None else self.predicted != self.labels

    @property
    def detectable(self) -> bool:
        """Whether there are right and wrong predictions to be told apart."""
        return self.wrong is not None and 0 < int(self.wrong.sum()) < len(self.wrong)


def study(train: Block, test: Block, target: float | None = None, seed: int = 0) -> Study:
    """Fit a field to training logits and judge test logits with it and with its peers.

    `target` is the error rate that the suggested threshold must keep to; half of the test
    predictions' own if None. Without labels the threshold flags 5 % of what is like training.
    """
    _check(train, test, target)
    order = np.random.default_rng(seed).permutation(len(train.logits))
    held = min(HELD_OUT, math.ceil(len(order) / 5))
    apart, inside = order[:held], order[held:]
    labels = None if train.labels is None else train.labels[inside]
    field = QIPF(random_state=seed).fit(train.logits[inside], labels)
    usual, scores = _scores(field, train.logits[apart]), _scores(field, test.logits)
    predicted = test.logits.argmax(1)
    trial = None
    if test.labels is not None and len(predicted) > 1:
        trial = certified_trial(scores["qipf"], predicted != test.labels, target, seed)
    return Study(field, usual, scores, predicted, test.labels, trial)


def usual_threshold(usual: NDArray[np.float64], scores: NDArray[np.float64]) -> Threshold:
    """The uncertainty that 95 % of held-out training predictions do not exceed.

    >>> usual_threshold(np.arange(101.0), np.array([10.0, 95.0, 96.0])).kept
    2
    """
    value = float(np.quantile(usual, 1 - FLAGGED))
    return Threshold(value, FLAGGED, len(usual), len(scores), int((scores <= value).sum()))


def certified_trial(
    scores: NDArray[np.float64],  # (n,)
    wrong: NDArray[np.bool_],  # (n,)
    target: float | None = None,
    seed: int = 0,
) -> Trial:
    """The accept rule of a random half of the predictions, and what it does with the other half.

    Without a target it keeps to half of the error rate of the *other* half (1 % where that has no
    errors): a limit must not be chosen by the predictions that certify it.

    >>> uncertainty = np.linspace(0, 1, 1000)
    >>> certified_trial(uncertainty, uncertainty > 0.9).rule.max_risk
    0.046
    """
    if target is None:
        target = float(wrong[halves(len(wrong), seed).other].mean()) / 2 or USUAL_RISK
    return halved_trial(scores, wrong, target, seed)


def wilson(errors: int, count: int) -> tuple[float, float, float]:
    r"""A share with its 95 % interval by Wilson's formula.

    .. math:: \frac{p + z^2/2n \pm z\sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}, \qquad z = 1.96

    >>> [round(end, 3) for end in wilson(0, 100)]
    [0.0, 0.0, 0.037]
    """
    z, share = 1.959964, errors / count
    middle = share + z * z / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return share, max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def _scores(field: QIPF, logits: NDArray[np.float64]) -> Scores:
    rows = torch.from_numpy(logits)
    nothing = torch.empty(len(rows), 0)  # images and features, which these scores do not need
    batch = Batch(nothing, rows, nothing)
    peers = {name: create(name).score(batch).numpy() for name in PEERS}
    return {"qipf": field.uncertainty(logits), **peers}


def _check(train: Block, test: Block, target: float | None) -> None:
    if train.logits.shape[1] != test.logits.shape[1]:
        raise QIPFInputError(
            f"Training rows have {train.logits.shape[1]} logits, test rows "
            f"{test.logits.shape[1]}. Both must come from one model."
        )
    if len(train.logits) < FEWEST_ROWS:
        raise QIPFInputError(
            f"There are {len(train.logits)} training rows; at least {FEWEST_ROWS} are needed."
        )
    if target is not None and not 0 < target < 1:
        raise QIPFInputError(f"The error rate to keep to must lie between 0 and 1; got {target:g}.")
