r"""Weights of the softmax and the layers in the mixture, and the bandwidths of the layers.

The weights are fitted with every layer at several bandwidths at once; each layer then keeps the
bandwidth with the largest weight. Chosen for each layer alone, bandwidths come out wider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from qipf.errors import warn
from qipf.layered.class_field import ClassField
from qipf.layered.mixture import likeliest_weights, log_odds, own_and_others, posteriors_of
from qipf.layered.tuning import FEWEST, Tuning
from qipf.network.features import LayerSite
from qipf.progress import progress

#: Factors on a layer's bandwidth among which the weights choose.
WIDTHS = (0.5, 0.5**0.5, 1.0, 2**0.5)

#: Layers with a smaller weight are left out.
LEAST = 0.05

#: Largest number of tuning rows.
MOST_ROWS = 12_000


@dataclass(frozen=True)
class TuningPosteriors:
    """Posteriors of the softmax, first, and of fields for tuning rows, a column each."""

    truth: Tensor  # (n, 1 + fields) probability of the true class
    own: Tensor  # (n, 1 + fields) of the predicted class
    against: Tensor  # (n, 1 + fields) of all other classes
    wrong: Tensor  # (n,) where the network errs
    sets: Tensor  # (n,) which set a row is of

    def __getitem__(self, columns: list[int]) -> TuningPosteriors:
        truth, own, against = (p[:, columns] for p in (self.truth, self.own, self.against))
        return TuningPosteriors(truth, own, against, self.wrong, self.sets)

    def gains(self, weights: Tensor) -> list[float]:
        """ROC-AUC of the mixture's errors minus the softmax's, for each set with errors."""
        mixture = log_odds(self.against @ weights, self.own @ weights)
        softmax = log_odds(self.against[:, 0], self.own[:, 0])
        found = []
        for number in self.sets.unique():
            member = self.sets == number
            wrong, *scores = (v[member].cpu().numpy() for v in (self.wrong, mixture, softmax))
            if wrong.any() and not wrong.all():
                found.append(roc_auc_score(wrong, scores[0]) - roc_auc_score(wrong, scores[1]))
        return found


def fit_mixture(
    fields: Mapping[LayerSite, ClassField], tuning: Tuning, least: float = LEAST
) -> tuple[dict[LayerSite, ClassField], Tensor]:  # (1 + layers,)
    """The fields that the mixture keeps, at their best bandwidths, and its weights.

    The weights maximise the likelihood of the true classes with all layers at all `WIDTHS`; each
    layer keeps the bandwidth with the largest weight, and layers below the `least` weight are left
    out. The softmax is used alone, with a warning, if there are too few examples or no errors, or
    if the mixture does not detect errors better on average.
    """
    if not fields:
        return _softmax_alone()
    if not tuning.sets:
        return _softmax_alone(f"fewer than {FEWEST} examples were left to weight the layers")
    found = _tuning_posteriors(fields, tuning)
    by_width = likeliest_weights(found.truth)[1:].view(len(fields), len(WIDTHS))
    best = {site: int(own.argmax()) for site, own in zip(fields, by_width, strict=True)}
    columns = {site: 1 + i * len(WIDTHS) + best[site] for i, site in enumerate(fields)}
    weights = likeliest_weights(found[[0, *columns.values()]].truth)[1:].tolist()
    least = min(least, max(weights))  # the layer with the largest weight always stays
    kept = [site for site, weight in zip(fields, weights, strict=True) if weight >= least]
    found = found[[0, *(columns[site] for site in kept)]]
    final = likeliest_weights(found.truth)
    gains = found.gains(final)
    if not gains:
        return _softmax_alone("the network makes no errors to learn from, even on perturbed inputs")
    if sum(gains) <= 0:
        return _softmax_alone("they detect the network's errors no better than its softmax does")
    at_best = {s: fields[s].at(WIDTHS[best[s]] * fields[s].bandwidth) for s in kept}
    return at_best, final.cpu()


def _tuning_posteriors(fields: Mapping[LayerSite, ClassField], tuning: Tuning) -> TuningPosteriors:
    """Posteriors of all fields at all `WIDTHS` for at most about `MOST_ROWS` tuning rows."""
    step = max(1, -(-len(tuning.sets) * len(tuning.labels) // MOST_ROWS))
    labels = tuning.labels[::step]
    parts = []
    for number, (logits, rows) in enumerate(progress(tuning.sets.values(), "weighting layers")):
        logits = logits[::step]
        predicted = logits.argmax(1)
        values = [
            found
            for site, field in fields.items()
            for found in field.at_bandwidths(
                rows[site][::step], [width * field.bandwidth for width in WIDTHS]
            )
        ]
        every = [field for field in fields.values() for _ in WIDTHS]
        posteriors = posteriors_of(logits, every, values)
        truth, _ = own_and_others(posteriors, labels)
        own, others = own_and_others(posteriors, predicted)
        sets = torch.full_like(labels, number)
        parts.append((truth, own, others.sum(2), predicted != labels, sets))
    return TuningPosteriors(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _softmax_alone(reason: str | None = None) -> tuple[dict[LayerSite, ClassField], Tensor]:
    if reason is not None:
        warn(f"The layers are not used: {reason}. The uncertainty is that of the softmax alone.")
    return {}, torch.ones(1, dtype=torch.float64)
