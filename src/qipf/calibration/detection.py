"""How well an uncertainty detects the errors of held-out predictions, beside plain baselines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qipf.errors import QIPFScoreWarning, warn
from qipf.metrics.error_detection import roc_auc
from qipf.validation.labels import are_probabilities, class_logits, symmetric_logits
from qipf.validation.scores import checked_scores

#: With fewer errors a ROC-AUC is too noisy to warn of.
FEWEST_ERRORS = 10


@dataclass(frozen=True)
class ErrorDetection:
    """ROC-AUC of detecting the errors of held-out predictions; 0.5 is chance."""

    count: int  # held-out predictions
    errors: int  # wrong ones among them
    uncertainty: float  # ROC-AUC of the model's uncertainty
    entropy: float | None = None  # of the softmax entropy; None where logits are unknown
    max_logit: float | None = None  # of minus the largest logit
    rows: str = "errors of the calibration set"  # what was detected, and in which rows

    def behind(self) -> float:
        """By how much the entropy is better; 0 where it is unknown."""
        return 0.0 if self.entropy is None else self.entropy - self.uncertainty

    def noise(self) -> float:
        """About one standard error of the ROC-AUC."""
        return 0.3 / float(min(self.errors, self.count - self.errors)) ** 0.5

    def __str__(self) -> str:
        peers = {"entropy": self.entropy, "largest logit": self.max_logit}
        shown = ", ".join(f"{name} {area:.3f}" for name, area in peers.items() if area is not None)
        return f"{self.rows}: ROC-AUC {self.uncertainty:.3f}" + (f" ({shown})" if shown else "")


def error_detection(
    uncertainty: Any,  # (n,)
    wrong: Any,  # (n,)
    logits: Tensor | None = None,  # (n, classes)
) -> ErrorDetection | None:
    """Measure error detection; None unless there are both correct and wrong predictions.

    >>> error_detection([0.1, 0.9, 0.2], [False, True, False]).uncertainty
    1.0
    """
    errors = checked_scores(wrong, "wrong").astype(bool)
    if not errors.any() or errors.all():
        return None
    scores = {"uncertainty": uncertainty}
    if logits is not None:
        scores["entropy"] = entropy_of(logits.detach())
        scores["max_logit"] = -symmetric_logits(logits.detach()).amax(1)
    areas = {name: roc_auc(values, errors) for name, values in scores.items()}
    return ErrorDetection(
        len(errors),
        int(errors.sum()),
        areas["uncertainty"],
        areas.get("entropy"),
        areas.get("max_logit"),
    )


def mean_detection(parts: Sequence[ErrorDetection], rows: str) -> ErrorDetection | None:
    """The mean ROC-AUC over several sets of predictions; None without any."""
    if not parts:
        return None
    areas = {
        name: math.fsum(getattr(part, name) for part in parts) / len(parts)
        for name in ("uncertainty", "entropy", "max_logit")
    }
    count, errors = sum(part.count for part in parts), sum(part.errors for part in parts)
    return ErrorDetection(count, errors, **areas, rows=rows)


def entropy_of(logits: Tensor, probabilities: bool | None = None) -> Tensor:  # (n, d) -> (n,)
    """Entropy of the class probabilities in float64; one logit z has the classes [0, z].

    Rows that are probabilities already are taken as they are; `probabilities` says whether they
    are, and with None all rows are looked at.

    >>> [round(float(found), 4) for found in entropy_of(torch.tensor([[0.0], [9.0]]))]
    [0.6931, 0.0012]
    """
    if are_probabilities(logits) if probabilities is None else probabilities:
        return torch.special.entr(logits.double().clamp(min=0.0)).sum(1)  # of less it is -inf
    log_p = torch.log_softmax(class_logits(logits).double(), 1)
    # where log p is -inf, 0 · log 0 is 0
    return -(log_p.exp() * log_p).nan_to_num(0.0).sum(1)


def warn_of_labels(wrong: Tensor, logits: Tensor) -> None:  # (n,) booleans, (n, d)
    """Warn if so many predictions are wrong that the labels may belong to other rows.

    Agreement is compared with that of shuffled labels, for classes as frequent as they are
    predicted: it must be higher by three standard errors, or by a tenth of what lies above it (as
    in Cohen's kappa).
    """
    if not len(wrong):
        return
    correct = 1.0 - float(wrong.double().mean())
    shares = class_logits(logits).argmax(1).bincount().double() / len(logits)
    # a class that is nearly always predicted leaves no room above chance
    chance = min(float(shares.square().sum()), 0.9)
    noise = 3 * (chance * (1 - chance) / len(wrong)) ** 0.5
    if correct < chance + min(noise, 0.1 * (1 - chance)):
        warn(
            f"Only {correct:.0%} of the predictions agree with the labels, which is hardly more "
            "than chance. Check that labels and logits are of the same rows in the same order, and "
            "that classes are numbered as the columns are.",
            QIPFScoreWarning,
        )


def warn_if_worse(found: ErrorDetection | None) -> None:
    """Warn if the uncertainty detected errors worse than the entropy, by more than noise."""
    if found is not None and found.errors >= FEWEST_ERRORS and found.behind() > found.noise():
        warn(
            f"The uncertainty detects {found.rows} worse than the entropy of the softmax (ROC-AUC "
            f"{found.uncertainty:.3f} against {found.entropy:.3f}). Rules and p-values hold for "
            "any score, but with the better one more is accepted: LayeredQIPF, or qipf.accept_rule "
            "with the entropies.",
            QIPFScoreWarning,
        )
