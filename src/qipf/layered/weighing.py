"""How far each opinion on the class is to be believed: the softmax's and every layer's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from qipf.errors import QIPFWarning
from qipf.layered.class_field import ClassField
from qipf.layered.mixture import gap, likeliest_weights, mixed
from qipf.layered.taps import Rows, Tap
from qipf.layered.tuning import FEWEST, Tuning


def opinions_of(
    logits: Tensor,  # (n, classes)
    rows: Rows,
    fields: Mapping[Tap, ClassField],
) -> tuple[Tensor, Tensor]:  # (n, 1 + layers, classes), (n, layers)
    """What the softmax, first, and the layers think of the class; how high the fields are."""
    softmax = torch.softmax(logits.double(), 1)
    judged = {tap: field(rows[tap]) for tap, field in fields.items()}
    parts = [completed(judged[tap].posterior, field, softmax) for tap, field in fields.items()]
    heights = [found.log_density[:, None] for found in judged.values()]
    none = logits.new_zeros(len(logits), 0)
    return torch.stack([softmax, *parts], 1), torch.cat([none, *heights], 1).double()


def completed(
    posterior: Tensor,  # (n, classes) a layer's
    field: ClassField,
    softmax: Tensor,  # (n, classes)
) -> Tensor:  # (n, classes)
    """A layer's opinion on all classes: those it has no centres of it leaves to the softmax."""
    posterior = posterior.double()
    if field.complete:
        return posterior
    left = torch.where(field.known, 0.0, softmax)
    return torch.where(field.known, posterior * (1 - left.sum(1, keepdim=True)), softmax)


def weighed(fields: Mapping[Tap, ClassField], tuning: Tuning) -> Tensor:  # (1 + layers,)
    """The weights that make the truth likeliest; the softmax alone where nothing speaks for more.

    That is so with too few examples, without errors, or where the layers do not detect errors
    better on average: then a warning says why.
    """
    alone = torch.zeros(1 + len(fields), dtype=torch.float64)
    alone[0] = 1.0
    if not tuning.sets:
        _fall_back(f"fewer than {FEWEST} examples were left to weigh the layers by")
        return alone
    opinions = [opinions_of(*found, fields)[0] for found in tuning.sets.values()]
    truth = tuning.labels[:, None, None]
    told = [o.gather(2, truth.expand(-1, o.shape[1], 1))[..., 0] for o in opinions]
    weights = likeliest_weights(torch.cat(told)).cpu()
    gains = [
        _gain(opinion, weights, logits.argmax(1), tuning.labels)
        for opinion, (logits, _) in zip(opinions, tuning.sets.values(), strict=True)
    ]
    told_apart = [gain for gain in gains if gain is not None]
    if not told_apart:
        _fall_back("the network makes no errors to learn from, even on disturbed inputs")
        return alone
    if sum(told_apart) < 0:
        _fall_back("they tell the network's errors no better than its softmax does")
        return alone
    return weights


def _fall_back(reason: str) -> None:
    warnings.warn(
        f"The layers are not used: {reason}. The uncertainty is that of the softmax alone.",
        QIPFWarning,
        stacklevel=4,
    )


def _gain(opinions: Tensor, weights: Tensor, predicted: Tensor, labels: Tensor) -> float | None:
    """By how much the mixture detects errors better than the softmax; None if there are none."""
    wrong = (predicted != labels).cpu().numpy()
    if wrong.all() or not wrong.any():
        return None
    whole = gap(mixed(opinions, weights.to(opinions.device)), predicted).cpu().numpy()
    alone = gap(opinions[:, 0], predicted).cpu().numpy()
    return float(roc_auc_score(wrong, whole) - roc_auc_score(wrong, alone))
