"""The layers' fields of one network, each made once, however many recipes ask for it.

Which metric and width a layer gets depends on the sets that it is judged by, so that a family left
out must be left out there too. The rule is that of `qipf.layered.selection.chosen_metric`, read off
a table: the mean log-posterior of the truth for every metric, width and set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from studies import CLASSES, FAMILIES, Study
from torch import Tensor

from qipf.field.bandwidth import silverman
from qipf.layered.class_field import ClassField
from qipf.layered.effort import FULL
from qipf.layered.holdout import LABELS, PLACES
from qipf.layered.metric import Metric, Scatter
from qipf.layered.mixture_fit import WIDTHS
from qipf.layered.perturbations import KEPT
from qipf.layered.selection import FACTORS, FLOOR, condensed_field
from qipf.network.features import LayerSite

#: Sets that `LayeredQIPF` learns from.
SETS = 1 + len(FAMILIES) * len(KEPT)


class Plan(NamedTuple):
    """What a layer's field is made of, before anything is chosen."""

    dims: int
    centers: int
    condensed: int | None
    shrinkages: tuple[float, ...]


class Choice(NamedTuple):
    """What was chosen for a layer."""

    gain_free: bool
    shrinkage: float
    factor: float  # on Silverman's width


class Trial(NamedTuple):
    """A metric, Silverman's width under it, and how likely it makes the truth."""

    metric: Metric
    width: float
    told: dict[str, list[float]]  # set -> mean log-posterior of the truth, by factor


class Fields:
    """Fields of all layers of a study, and what they think of its sets."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._sets = {**study.tuning.sets, **study.test}
        self._scatter = cache(self._new_scatter)
        self._trial = cache(self._new_trial)
        self._field = cache(self._new_field)
        self._opinion = cache(self._new_posterior)

    def chosen(self, site: LayerSite, plan: Plan, names: Sequence[str]) -> Choice:
        """The likeliest metric and width on these sets, each set counting the same."""
        best: tuple[float, Choice] | None = None
        for gain_free in (False, True):
            for shrinkage in plan.shrinkages:
                trial = self._trial(site, plan.dims, plan.centers, gain_free, shrinkage)
                told = [sum(one) for one in zip(*(trial.told[name] for name in names), strict=True)]
                middle = max(range(1, len(FACTORS), 2), key=told.__getitem__)
                tried = [*range(1, len(FACTORS), 2), middle - 1, middle + 1]
                found = max(tried, key=told.__getitem__)
                if best is None or told[found] > best[0]:
                    best = told[found], Choice(gain_free, shrinkage, FACTORS[found])
        assert best is not None
        return best[1]

    def posteriors(self, plan: Plan, choices: Sequence[Choice], name: str) -> Tensor:
        """What the softmax, first, and every layer at every width think of a set.

        Shape (n, 1 + layers · widths, classes), float32.
        """
        softmax = self._sets[name][0].double().softmax(1).float()[:, None]
        layers = zip(self._study.sites, choices, strict=True)
        return torch.cat([softmax, *(self._opinion(t, plan, c, name) for t, c in layers)], 1)

    def _rows(self, site: LayerSite, count: int) -> tuple[Tensor, Tensor]:
        """The first of the centres' rows, and their classes."""
        values = self._study.centers
        device = self._study.tuning.labels.device
        return values[site][:count].to(device), values[LABELS][:count].to(device)

    def _new_scatter(self, site: LayerSite, rows: int, gain_free: bool) -> Scatter:
        return Scatter(*self._rows(site, rows), gain_free)

    def _new_trial(
        self, site: LayerSite, dims: int, centers: int, gain_free: bool, shrinkage: float
    ) -> Trial:
        metric = self._scatter(site, min(centers, FULL.metric_rows), gain_free).metric(
            shrinkage, dims
        )
        rows, labels = self._rows(site, min(centers, FULL.centers))
        embeddings = metric(rows)
        width = silverman(embeddings)
        field = ClassField(
            metric, embeddings, labels, CLASSES, width, torch.arange(len(embeddings))
        )
        tuning = self._study.tuning
        step = max(1, -(-SETS * len(tuning.labels) // FULL.rows))
        truth = tuning.labels[::step].repeat(len(tuning.sets))
        shown = torch.cat([seen[site][::step] for _, seen in tuning.sets.values()])
        told = torch.stack(
            [
                judged.posterior.gather(1, truth[:, None]).log().clamp(min=FLOOR).double()
                for judged in field.at_bandwidths(shown, [factor * width for factor in FACTORS])
            ]
        )
        means = told.view(len(FACTORS), len(tuning.sets), -1).mean(2).T.tolist()
        return Trial(metric, width, dict(zip(tuning.sets, means, strict=True)))

    def _new_field(
        self, site: LayerSite, plan: Plan, gain_free: bool, shrinkage: float
    ) -> ClassField:
        """The field at Silverman's width."""
        trial = self._trial(site, plan.dims, plan.centers, gain_free, shrinkage)
        rows, labels = self._rows(site, plan.centers)
        examples = self._study.centers[PLACES][: plan.centers]
        field = ClassField(trial.metric, trial.metric(rows), labels, CLASSES, trial.width, examples)
        return field if plan.condensed is None else condensed_field(field, plan.condensed)

    def _new_posterior(self, site: LayerSite, plan: Plan, choice: Choice, name: str) -> Tensor:
        field = self._field(site, plan, choice.gain_free, choice.shrinkage)
        widths = [width * choice.factor * field.bandwidth for width in WIDTHS]
        judged = field.at_bandwidths(self._sets[name][1][site], widths)
        return torch.stack([found.posterior.float() for found in judged], 1)
