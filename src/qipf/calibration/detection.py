"""How well an uncertainty detects the errors of held-out predictions, beside plain baselines."""

from dataclasses import dataclass
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from qipf.validation.scores import checked_scores


@dataclass(frozen=True)
class ErrorDetection:
    """ROC-AUC of detecting the errors of held-out predictions; 0.5 is chance."""

    count: int  # held-out predictions
    errors: int  # wrong ones among them
    uncertainty: float  # ROC-AUC of the model's uncertainty
    entropy: float | None = None  # of the softmax entropy; None where logits are unknown
    max_logit: float | None = None  # of minus the largest logit

    def __str__(self) -> str:
        peers = {"entropy": self.entropy, "largest logit": self.max_logit}
        shown = ", ".join(f"{name} {area:.3f}" for name, area in peers.items() if area is not None)
        return f"ROC-AUC {self.uncertainty:.3f}" + (f" ({shown})" if shown else "")


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
    if logits is not None and logits.shape[1] > 1:
        log_p = torch.log_softmax(logits.detach().double(), 1)
        # where log p is -inf, 0 · log 0 is 0
        scores["entropy"] = -(log_p.exp() * log_p).nan_to_num(0.0).sum(1)
        scores["max_logit"] = -logits.detach().amax(1)
    areas = {
        name: float(roc_auc_score(errors, checked_scores(values, name)))
        for name, values in scores.items()
    }
    return ErrorDetection(len(errors), int(errors.sum()), **areas)
