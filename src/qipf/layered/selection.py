"""The fields of the layers: metric and bandwidth by the likelihood of labelled tuning rows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.errors import warn
from qipf.field.bandwidth import silverman
from qipf.field.coreset import coreset
from qipf.field.engines.base import blocks
from qipf.layered.class_field import ClassField, nearest_of_class
from qipf.layered.effort import FULL, Effort
from qipf.layered.holdout import LABELS, PLACES, Examples
from qipf.layered.metric import Metric, Scatter, unit_length
from qipf.layered.tuning import Tuning
from qipf.network.features import LayerSite
from qipf.progress import progress

#: Shrinkages that are compared.
SHRINKAGES = (0.02, 0.1, 0.3, 0.5, 0.8)

#: Factors on Silverman's bandwidth, of which every second one is compared first, then those beside
#: the best of them. All are evaluated at once: a narrower kernel is a square of a wider one.
FACTORS = tuple(1.4 * 2 ** (step / 2) for step in range(-1, 6))

#: Rows that are embedded at a time.
EMBEDDED = 4096

#: Floor of a row's log posterior.
FLOOR = -12.0

#: Rows are considered equal if the mean standard deviation of their embeddings is smaller.
EQUAL = 1e-6


def chosen_fields(
    centers: Examples,
    tuning: Tuning,
    sites: Sequence[LayerSite],
    classes: int,
    dimension: int,
    condensed: int | None = None,
    effort: Effort = FULL,
) -> dict[LayerSite, ClassField]:
    """The field of every layer whose rows differ, with a centre per row or `condensed` to fewer."""
    fields: dict[LayerSite, ClassField] = {}
    labels = centers[LABELS].to(tuning.labels.device)
    order = labels.argsort(stable=True)  # by class, as they are summed
    examples = centers[PLACES][order.cpu()]
    for site in progress(sites, "choosing fields"):
        rows = centers[site].to(labels.device)
        others = {name: found[site] for name, (_, found) in tuning.sets.items()}
        chosen = chosen_metric(rows, labels, others, tuning.labels, classes, dimension, effort)
        if chosen is None:
            warn(f"{site} gives the same numbers for every training input and is left out.")
            continue
        metric, width = chosen
        embeddings = rows.new_empty(len(rows), metric.directions.shape[1], dtype=torch.float32)
        for part in blocks(len(rows), EMBEDDED):  # the steps of a metric copy the rows
            embeddings[part] = metric(rows[order[part]])
        field = ClassField(metric, embeddings, labels[order], classes, width, examples)
        if condensed is not None and condensed < len(rows):
            field = condensed_field(field, condensed)
        fields[site] = field
    missing = sorted(set(range(classes)) - set(labels.tolist()))
    if missing:
        warn(
            f"There are no training examples of {', '.join(f'class {k}' for k in missing)}: the "
            "layers use the softmax's probability."
        )
    return fields


def condensed_field(field: ClassField, size: int) -> ClassField:
    """The field condensed to about `size` weighted centres, shared by the classes' sizes.

    Every class has at least one, so that many small classes can exceed `size`.
    """
    embeddings, counts, labels = [], [], []
    for label in field.labels.unique().tolist():
        members = (field.labels == label).nonzero()[:, 0]
        own = field.embeddings[members]
        # not fitted to a bandwidth: that is chosen later
        found = coreset(own, max(1, size * len(members) // len(field.embeddings)))
        embeddings.append(unit_length(found.centers.to(own)))
        counts.append(found.weights.to(own))
        labels.append(field.labels[members][: len(found.centers)])
    small = field.changed(
        embeddings=torch.cat(embeddings),
        labels=torch.cat(labels),
        examples=torch.empty(0),
        counts=torch.cat(counts),
    )
    small.examples = field.examples[nearest_of_class(small, field).cpu()]
    return small


def chosen_metric(
    rows: Tensor,  # (N, D) the layer's rows of the centres
    labels: Tensor,  # (N,)
    tuning: Mapping[str, Tensor],  # set -> (n, D) other rows of the layer
    tuning_labels: Tensor,  # (n,)
    classes: int,
    dimension: int,
    effort: Effort = FULL,
) -> tuple[Metric, float] | None:
    """Metric and bandwidth of the most likely field, each set having the same weight.

    All shrinkages are compared for rows as they are, and only the best one for rows of unit length:
    there it hardly differs. The compared fields have only the first centres, which are in random
    order. Without tuning rows, the middle shrinkage and bandwidth. None if all rows are equal.
    """
    step = max(1, -(-len(tuning) * len(tuning_labels) // effort.rows))
    shown = torch.cat([rows[:0], *(found[::step] for found in tuning.values())])
    truth = tuning_labels[::step].repeat(len(tuning))
    few = rows[: effort.centers], labels[: effort.centers]
    source = rows[: effort.metric_rows], labels[: effort.metric_rows]
    shrinkages = SHRINKAGES if len(shown) else SHRINKAGES[len(SHRINKAGES) // 2 :][:1]
    best: _Trial | None = None
    for gain_free in (False, True):
        scatter = Scatter(*source, gain_free)
        for shrinkage in progress(shrinkages, "comparing fields"):
            metric = scatter.metric(shrinkage, dimension)
            found = _best_width(metric, *few, shown, truth, classes)
            if found is not None and (best is None or found[0] > best.likelihood):
                best = _Trial(found[0], shrinkage, metric, found[1])
        if best is not None:
            shrinkages = (best.shrinkage,)
    return None if best is None else (best.metric, best.width)


class _Trial(NamedTuple):
    likelihood: float
    shrinkage: float
    metric: Metric
    width: float


def _best_width(
    metric: Metric, rows: Tensor, labels: Tensor, shown: Tensor, truth: Tensor, classes: int
) -> tuple[float, float] | None:  # likelihood, width
    embeddings = metric(rows)
    if float(embeddings.std(0, correction=0).mean()) < EQUAL:
        return None
    width = silverman(embeddings)
    if not len(shown):
        return 0.0, FACTORS[len(FACTORS) // 2] * width
    field = ClassField(metric, embeddings, labels, classes, width, torch.arange(len(embeddings)))
    found = _likelihoods(field, shown, truth, [factor * width for factor in FACTORS])
    middle = max(range(1, len(FACTORS), 2), key=found.__getitem__)
    best = max((middle, middle - 1, middle + 1), key=found.__getitem__)
    return found[best], FACTORS[best] * width


def _likelihoods(
    field: ClassField, rows: Tensor, truth: Tensor, widths: list[float]
) -> list[float]:
    """Mean log posterior of the true class at every bandwidth."""
    return [
        float(found.posterior.gather(1, truth[:, None]).log().clamp(min=FLOOR).double().mean())
        for found in field.at_bandwidths(rows, widths)
    ]
