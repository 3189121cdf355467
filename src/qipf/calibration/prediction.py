"""The predictions of a model on a batch, with their uncertainties and decisions."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Prediction:
    """Predictions on a batch; tensors on the network's device, or arrays if arrays were passed."""

    logits: Any  # (n, classes)
    predicted: Any  # (n,) class of the largest logit
    uncertainty: Any  # (n,) higher is less trustworthy
    p_value: Any = None  # (n,) conformal p-value of the uncertainty; None before `calibrate`
    accepted: Any = None  # (n,) booleans of the accept rule; None without a rule
    probabilities: Any = None  # (n, classes) of the layers' mixture; None without layers
