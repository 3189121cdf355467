"""The field of one layer, its metric and width chosen by what they make of labelled rows."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from qipf.bandwidth import silverman
from qipf.layered.class_field import ClassField
from qipf.layered.metric import Metric, Scatter

#: Shrinkages that are tried.
SHRINKAGES = (0.02, 0.1, 0.3, 0.5, 0.8)

#: Factors on Silverman's width: three first, then the two beside the best of them.
COARSE, FINE = (1.4, 2.8, 5.6), 2**0.5

#: Rows that every trial is judged by, at most.
MOST_ROWS = 8000

#: No row speaks louder than this against a trial.
DEEPEST = -12.0


def chosen_field(
    rows: Tensor,  # (N, D) the layer's rows of the centres
    labels: Tensor,  # (N,)
    tuning: Mapping[str, Tensor],  # set -> (n, D) other rows of the layer
    tuning_labels: Tensor,  # (n,)
    classes: int,
    dimension: int,
) -> ClassField:
    """The likeliest of the tried fields, each set of tuning rows counting the same."""
    step = -(-len(tuning) * len(tuning_labels) // MOST_ROWS)
    sets = [shown[::step] for shown in tuning.values()]
    truth = tuning_labels[::step]
    best: tuple[float, ClassField] | None = None
    for gain_free in (False, True):
        scatter = Scatter(rows, labels, gain_free)
        for shrinkage in SHRINKAGES:
            metric = scatter.metric(shrinkage, dimension)
            found = _best_width(metric, rows, labels, sets, truth, classes)
            if best is None or found[0] > best[0]:
                best = found
    assert best is not None  # there are always trials
    return best[1]


def _best_width(
    metric: Metric,
    rows: Tensor,
    labels: Tensor,
    sets: list[Tensor],
    truth: Tensor,
    classes: int,
) -> tuple[float, ClassField]:
    units = metric(rows)
    width = silverman(units)
    field = ClassField(metric, units, labels, classes, width)
    told = _likelihoods(field, sets, truth, width, COARSE)
    middle = max(told, key=lambda factor: told[factor])
    told |= _likelihoods(field, sets, truth, width, (middle / FINE, middle * FINE))
    factor = max(told, key=lambda factor: told[factor])
    return told[factor], ClassField(metric, units, labels, classes, factor * width)


def _likelihoods(
    field: ClassField, sets: list[Tensor], truth: Tensor, width: float, factors: tuple[float, ...]
) -> dict[float, float]:
    """Mean log-posterior of the truth, by factor on the width."""
    told = dict.fromkeys(factors, 0.0)
    for rows in sets:
        found = field.judged(rows, [factor * width for factor in factors])
        for factor, judged in zip(factors, found, strict=True):
            own = judged.posterior.gather(1, truth[:, None]).log().clamp(min=DEEPEST)
            told[factor] += float(own.double().mean()) / len(sets)
    return told
