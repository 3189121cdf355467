"""The mixture fitted to the tuning sets: bandwidths, weights, and which layers are kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.errors import warn
from qipf.layered.class_field import ClassField
from qipf.layered.error_model import Evidence, fit_error_model
from qipf.layered.mixture import (
    likeliest_weights,
    odds_columns,
    own_and_others,
    posteriors_of,
    rows_at_once,
)
from qipf.layered.novelty import unusual_columns
from qipf.layered.tuning import FEWEST, Tuning
from qipf.metrics.error_detection import roc_auc
from qipf.network.features import LayerSite
from qipf.progress import progress

#: Factors on a layer's bandwidth among which the weights choose, for all layers at once: chosen for
#: each layer alone, bandwidths come out wider.
WIDTHS = (0.5, 0.5**0.5, 1.0, 2**0.5)

#: Layers with a smaller weight in the mixture, and in the uncertainty, are left out.
LEAST = 0.05

#: Most layers with distilled fields, which are meant to cost little.
MOST_LAYERS = 4

#: Most centres with which the weights, and the targets of distilled fields, are computed where
#: fields are distilled. More did not detect errors better.
MOST_CENTERS = 20_000

#: Number of tuning rows, about: fewer than twice as many.
TUNING_ROWS = 8000


@dataclass(frozen=True)
class TuningPosteriors:
    """Posteriors of the softmax, first, and of fields for tuning rows, a column each."""

    truth: Tensor  # (n, 1 + fields) probability of the true class
    own: Tensor  # (n, 1 + fields) of the predicted class
    against: Tensor  # (n, 1 + fields) of all other classes
    unusual: Tensor  # (n, 1 + fields) the energy, and minus the fields' log densities
    wrong: Tensor  # (n,) where the network errs
    sets: Tensor  # (n,) which set a row is of; 0 for the clean rows
    examples: Tensor  # (n,) which example a row is of

    def columns(self, columns: list[int]) -> "TuningPosteriors":
        """The posteriors of these fields; the softmax is column 0."""
        names = ("truth", "own", "against", "unusual")
        return replace(self, **{name: getattr(self, name)[:, columns] for name in names})

    def rows(self, rows: Tensor) -> "TuningPosteriors":  # (n,) booleans
        """Some of the rows."""
        return TuningPosteriors(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def evidence(self, weights: Tensor) -> Evidence:
        """What the scores are computed from, with these weights of the mixture."""
        return Evidence(odds_columns(self.own, self.against, weights), self.unusual)

    def importances(self, weights: Tensor) -> Tensor:  # (1 + fields,) -> (1 + fields,)
        """Shares of the softmax and the fields in the slopes of the uncertainty.

        Slopes are those of standardised log-odds; the mixture has a share too.
        """
        evidence = self.evidence(weights)
        found = fit_error_model(evidence, self.wrong, self.sets > 0)
        if found is None:
            return torch.zeros_like(weights)
        slopes = found.near.slopes.to(weights) * evidence.odds.std(0)
        return slopes[1:] / slopes.sum()

    def gains(self) -> list[float]:
        """ROC-AUC of errors by the uncertainty minus that by the softmax, for sets with errors.

        Weights and uncertainty are fitted on one half of the examples and evaluated on the other.
        """
        found = []
        for half in (0, 1):
            known = self.rows(self.examples % 2 == half)
            weights = likeliest_weights(known.truth)
            fitted = fit_error_model(known.evidence(weights), known.wrong, known.sets > 0)
            other = self.rows(self.examples % 2 != half)
            evidence = other.evidence(weights)
            score = evidence.odds[:, 0] if fitted is None else fitted(evidence)
            for number in other.sets.unique():
                member = other.sets == number
                columns = (other.wrong, score, evidence.odds[:, 1])
                wrong, *scores = (value[member].cpu().numpy() for value in columns)
                if wrong.any() and not wrong.all():
                    found.append(roc_auc(scores[0], wrong) - roc_auc(scores[1], wrong))
        return found


class FittedMixture(NamedTuple):
    """The fields that a mixture keeps, at their best bandwidths, and its weights."""

    fields: dict[LayerSite, ClassField]
    weights: Tensor  # (1 + layers,)
    posteriors: TuningPosteriors | None  # of the kept fields; None without tuning rows


def fit_mixture(
    fields: Mapping[LayerSite, ClassField],
    tuning: Tuning,
    least: float = LEAST,
    most: int | None = None,
    centers: int | None = None,
) -> FittedMixture:
    """The mixture of the softmax and the fields.

    Its weights maximise the likelihood of the true classes with all layers at all `WIDTHS`; each
    layer keeps the bandwidth with the largest weight. Layers whose weights in the mixture and in
    the uncertainty are both below `least` are left out, and those with the smallest weights if they
    are more than `most`. With `centers`, all of that is found with at most so many centres of each
    field. If there are no errors, or if the layers do not help to detect them, a warning says so,
    and the softmax has all of the weight: the fields are there for the novelty. With too few
    examples only the last field is.
    """
    if not tuning.sets:
        last = dict(list(fields.items())[-1:])
        for site in last:
            warn(
                f"The layers are used for the novelty alone: fewer than {FEWEST} examples were "
                "left to weight them. The uncertainty is that of the softmax, the novelty is minus "
                f"the log density of {site}."
            )
        return FittedMixture(last, softmax_alone(len(last)), None)
    tried = fields if centers is None else {s: f.thinned(centers) for s, f in fields.items()}
    found = tuning_posteriors(tried, tuning)
    if not fields:
        return FittedMixture({}, softmax_alone(0), found)
    by_width = likeliest_weights(found.truth)[1:].view(len(fields), len(WIDTHS))
    best = {site: int(own.argmax()) for site, own in zip(fields, by_width, strict=True)}
    found = found.columns([0, *(1 + i * len(WIDTHS) + best[s] for i, s in enumerate(fields))])
    weights = likeliest_weights(found.truth)
    importance = torch.maximum(weights, found.importances(weights))[1:].tolist()
    if most is not None and most < len(importance):
        least = max(least, sorted(importance)[-most])
    least = min(least, max(importance))  # the layer with the largest weight always stays
    kept = {site: 1 + i for i, site in enumerate(fields) if importance[i] >= least}
    found = found.columns([0, *kept.values()])
    at_best = {s: fields[s].at(WIDTHS[best[s]] * fields[s].bandwidth) for s in kept}
    gains = found.gains()
    if sum(gains) > 0:
        return FittedMixture(at_best, likeliest_weights(found.truth).cpu(), found)
    reason = "the network makes no errors to learn from"
    if len(tuning.sets) > 1:
        reason += ", even on perturbed inputs"
    if gains:
        reason = "they detect the network's errors no better than its softmax does"
    warn(
        f"The layers are used for the novelty alone: {reason}. The uncertainty is that of the "
        "softmax."
    )
    return FittedMixture(at_best, softmax_alone(len(kept)), found)


def thinning(tuning: Tuning) -> int:
    """Every so many tuning rows are used: about `TUNING_ROWS` in all."""
    return max(1, len(tuning.sets) * len(tuning.labels) // TUNING_ROWS)


def tuning_posteriors(
    fields: Mapping[LayerSite, ClassField], tuning: Tuning, widths: Sequence[float] = WIDTHS
) -> TuningPosteriors:
    """Posteriors of all fields at all widths, relative to theirs, for the tuning rows in use."""
    step = thinning(tuning)
    every = [field for field in fields.values() for _ in widths]
    parts = []
    for number, (logits, rows) in enumerate(progress(tuning.sets.values(), "weighting layers")):
        size = rows_at_once(len(every) + 1, logits.shape[1])
        for part in torch.arange(0, len(logits), step, device=logits.device).split(size):
            values = [
                found
                for site, field in fields.items()
                for found in field.at_bandwidths(
                    rows[site][part], [width * field.bandwidth for width in widths]
                )
            ]
            posteriors = posteriors_of(logits[part], every, values)
            labels, predicted = tuning.labels[part], logits[part].argmax(1)
            truth, _ = own_and_others(posteriors, labels)
            own, others = own_and_others(posteriors, predicted)
            sets = torch.full_like(labels, number)
            none = posteriors.new_empty(len(part), 0)
            densities = torch.cat([none, *(found.log_density[:, None] for found in values)], 1)
            unusual = unusual_columns(logits[part], densities)
            parts.append(
                (truth, own, others.sum(2), unusual, predicted != labels, sets, part // step)
            )
    return TuningPosteriors(*(torch.cat(part) for part in zip(*parts, strict=True)))


def softmax_alone(layers: int) -> Tensor:  # (1 + layers,)
    """Weights of a mixture that does not use the layers.

    >>> softmax_alone(2)
    tensor([1., 0., 0.], dtype=torch.float64)
    """
    return torch.eye(1 + layers, dtype=torch.float64)[0]
