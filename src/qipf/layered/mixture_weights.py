r"""How far each posterior on the class is to be believed: the softmax's and every layer's.

Every layer is heard at several widths at once, and the weights that make the truth likeliest tell
which width serves it best beside the others; by itself, a layer would choose a wider one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from qipf.errors import QIPFWarning
from qipf.layered.class_field import ClassField
from qipf.layered.mixture import likeliest_weights, log_odds
from qipf.layered.posteriors import completed
from qipf.layered.tuning import FEWEST, Tuning
from qipf.network.features import LayerSite
from qipf.progress import progress

#: Factors on a layer's width that are weighed against each other.
WIDTHS = (0.5, 0.5**0.5, 1.0, 2**0.5)

#: A layer with less weight than this is left out.
LEAST = 0.05

#: Tuning rows that are weighed, at most.
MOST_ROWS = 12_000


@dataclass(frozen=True)
class Told:
    """What the softmax, first, and fields made of tuning rows, a column each."""

    truth: Tensor  # (n, 1 + fields) probability of the true class
    own: Tensor  # (n, 1 + fields) of the predicted class
    against: Tensor  # (n, 1 + fields) of all other classes
    wrong: Tensor  # (n,) where the network errs
    sets: Tensor  # (n,) which set a row is of

    def __getitem__(self, columns: list[int]) -> Told:
        truth, own, against = (p[:, columns] for p in (self.truth, self.own, self.against))
        return Told(truth, own, against, self.wrong, self.sets)

    def gains(self, weights: Tensor) -> list[float]:
        """By how much the mixture tells errors better than the softmax, for each set with any."""
        whole = log_odds(self.against @ weights, self.own @ weights)
        alone = log_odds(self.against[:, 0], self.own[:, 0])
        found = []
        for number in self.sets.unique():
            mine = self.sets == number
            wrong = self.wrong[mine].cpu().numpy()
            if wrong.any() and not wrong.all():
                areas = [
                    roc_auc_score(wrong, doubt[mine].cpu().numpy()) for doubt in (whole, alone)
                ]
                found.append(areas[0] - areas[1])
        return found


def weighed(
    fields: Mapping[LayerSite, ClassField], tuning: Tuning, least: float = LEAST
) -> tuple[dict[LayerSite, ClassField], Tensor]:  # (1 + layers,)
    """The layers that count, each at the width that serves the mixture best, and all weights.

    The weights make the truth likeliest, among all layers at all `WIDTHS`; each layer keeps its
    heaviest width, and layers below the `least` weight are left out. The softmax speaks alone,
    without any layers, and a warning says why, with too few examples, without errors, or where the
    layers do not detect errors better on average.
    """
    alone: tuple[dict[LayerSite, ClassField], Tensor] = {}, torch.ones(1, dtype=torch.float64)
    if not fields:
        return alone
    if not tuning.sets:
        _fall_back(f"fewer than {FEWEST} examples were left to weigh the layers by")
        return alone
    told = _told(fields, tuning)
    columns = _best_widths(likeliest_weights(told.truth), len(fields))
    weights = likeliest_weights(told[[0, *columns]].truth)
    least = min(least, float(weights[1:].max()))  # the heaviest always stays
    kept = {
        site: column
        for site, column, weight in zip(fields, columns, weights[1:].tolist(), strict=True)
        if weight >= least
    }
    told = told[[0, *kept.values()]]
    weights = likeliest_weights(told.truth)
    gains = told.gains(weights)
    if not gains:
        _fall_back("the network makes no errors to learn from, even on perturbed inputs")
        return alone
    if sum(gains) <= 0:
        _fall_back("they tell the network's errors no better than its softmax does")
        return alone
    widths = {site: WIDTHS[(column - 1) % len(WIDTHS)] for site, column in kept.items()}
    return {
        site: fields[site].at(w * fields[site].bandwidth) for site, w in widths.items()
    }, weights.cpu()


def _best_widths(weights: Tensor, layers: int) -> list[int]:
    """The column of each layer's heaviest width; the softmax's column is the first."""
    by_width = weights[1:].view(layers, len(WIDTHS))
    return [1 + i * len(WIDTHS) + int(own.argmax()) for i, own in enumerate(by_width)]


def _told(fields: Mapping[LayerSite, ClassField], tuning: Tuning) -> Told:
    """The posteriors of all fields at all widths on the tuning rows, or so many of them."""
    step = max(1, -(-len(tuning.sets) * len(tuning.labels) // MOST_ROWS))
    labels = tuning.labels[::step, None]
    parts = []
    for number, (logits, rows) in enumerate(progress(tuning.sets.values(), "weighing layers")):
        logits = logits[::step]
        softmax = torch.softmax(logits.double(), 1)
        posteriors = [softmax]
        for site, field in fields.items():
            widths = [width * field.bandwidth for width in WIDTHS]
            for judged in field.at_bandwidths(rows[site][::step], widths):
                posteriors.append(completed(judged.posterior, field, softmax))
        predicted = logits.argmax(1, keepdim=True)
        shared = [
            torch.cat([posterior.gather(1, classes) for posterior in posteriors], 1)
            for classes in (labels, predicted)
        ]
        against = torch.stack([o.scatter(1, predicted, 0).sum(1) for o in posteriors], 1)
        wrong = (predicted != labels)[:, 0]
        parts.append((*shared, against, wrong, torch.full_like(wrong, number, dtype=torch.long)))
    return Told(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _fall_back(reason: str) -> None:
    warnings.warn(
        f"The layers are not used: {reason}. The uncertainty is that of the softmax alone.",
        QIPFWarning,
        stacklevel=4,
    )
