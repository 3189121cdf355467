r"""Novelty of inputs: how unlike the training data they are, whatever is predicted for them.

The novelty is the log-odds that an input is perturbed or a pseudo-outlier
(`qipf.layered.outliers`), a logistic regression on the tuning rows over five columns:

- the energy :math:`-\log\sum_c e^{z_c}` of the logits z,
- minus the log density of the last layer's field,
- the logarithm of the length of the last row's residual, its part outside the principal subspace of
  the training rows,
- the squared Mahalanobis distance from clean rows of the energy, the log densities of all fields,
  and the logarithms of three kinds of lengths: of all rows that are read, of the fields' rows after
  whitening, and of the residuals of all rows,
- the log-odds of the mixture against the predicted class.

The fields see directions alone (`qipf.layered.metric`); the lengths are what they leave out. The
distance has two sides: smooth images have a high density in early layers, and short rows.
No slope is negative.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from qipf.field.engines.products import product
from qipf.layered.error_model import (
    CONSTANT,
    Evidence,
    LogOdds,
    balanced,
    combined,
    energy,
    fit_log_odds,
)
from qipf.layered.metric import Metric, lengths_of
from qipf.network.features import LayerSite, Rows

#: Length below which rows count as equally short, relative to the mean length of training rows.
SHORTEST = 1e-3

#: The same of residuals, relative to the mean length of offsets.
SHORTEST_RESIDUAL = 1e-2

#: Offsets below which rows count as equal, relative to the mean length of rows: those are rounding.
EQUAL = 1e-5

#: Training rows from which directions are computed.
MOST_ROWS = 20_000

#: The principal subspace has one in so many of the dimensions of a layer's rows.
PRINCIPAL = 8

#: Least standard deviation, over clean rows, of a number that the distance is taken of and of a
#: column. Log densities and logarithms of lengths vary by more; a smaller one is rounding, for
#: example of the residuals of rows that have none.
LEAST_DEVIATION = 1e-4

#: Columns of the regression, beside the constant.
COLUMNS = 5


class PrincipalSubspace(NamedTuple):
    """Principal subspace of the training rows of a layer: where they vary most about their mean."""

    mean: Tensor  # (D,)
    directions: Tensor  # (D, r) orthonormal

    @classmethod
    def of(cls, rows: Tensor) -> "PrincipalSubspace":  # (n, D)
        """From rows of training examples."""
        rows = rows.double()
        mean = rows.mean(0)
        offsets = rows - mean
        _, vectors = torch.linalg.eigh(offsets.T @ offsets)  # ascending
        directions = vectors[:, -max(1, len(mean) // PRINCIPAL) :]
        return cls(mean.float(), directions.float().contiguous())

    def residuals(self, rows: Tensor) -> Tensor:  # (n, D) -> (n,)
        """Lengths of the residuals of rows, their parts outside the subspace, in float64.

        Not finite where a product is beyond float32.
        """
        offsets = rows.float() - self.mean
        inside = product(offsets, self.directions.T)
        # not the difference of squared lengths, which is rounding where rows vary in few directions
        return lengths_of(offsets - product(inside, self.directions))

    def to(self, device: torch.device) -> "PrincipalSubspace":
        """The same on another device."""
        return PrincipalSubspace(*(part.to(device) for part in self))


@dataclass(frozen=True)
class RowLengths:
    """Logarithms of the lengths of rows, of whitened rows, and of residuals."""

    sites: tuple[LayerSite, ...]  # the layers whose rows are measured, in order
    metrics: Mapping[LayerSite, Metric]  # of the sites whose whitened rows are measured too
    subspaces: tuple[PrincipalSubspace, ...]  # of the sites
    shortest: Tensor  # (count,) added to the lengths

    @classmethod
    def of(
        cls, rows: Rows, sites: Sequence[LayerSite], metrics: Mapping[LayerSite, Metric]
    ) -> "RowLengths":
        """From rows (n, D) of training examples; without sites there is nothing to measure."""
        if not sites:
            return cls((), {}, (), torch.zeros(1))
        few = {site: rows[site][:MOST_ROWS] for site in sites}
        subspaces = tuple(PrincipalSubspace.of(own) for own in few.values())
        measured = list(few.values())
        for site, metric in metrics.items():  # which may be on a GPU, while the rows are not
            measured.append(metric.whitened(few[site].to(metric.mean.device)))
        lengths = [SHORTEST * lengths_of(own).mean().cpu() for own in measured]
        for own, found in zip(few.values(), subspaces, strict=True):
            offsets, length = lengths_of(own - found.mean).mean(), lengths_of(own).mean()
            varies = offsets > EQUAL * length
            lengths.append(torch.where(varies, SHORTEST_RESIDUAL * offsets, length).cpu())
        shortest = torch.stack(lengths).clamp(min=torch.finfo(torch.float32).tiny)
        return cls(tuple(sites), dict(metrics), subspaces, shortest)

    @property
    def count(self) -> int:
        """How many lengths there are; one, which is zero, without sites."""
        return len(self.shortest)

    @property
    def widths(self) -> dict[LayerSite, int]:
        """Widths of the rows that are measured."""
        return {site: len(own.mean) for site, own in zip(self.sites, self.subspaces, strict=True)}

    def read_beside(self, fields: Iterable[LayerSite]) -> tuple[LayerSite, ...]:
        """All layers that are read: those with fields, then those whose lengths alone are."""
        return tuple(dict.fromkeys((*fields, *self.sites)))

    def __call__(
        self, logits: Tensor, rows: Rows, whitened: Mapping[LayerSite, Tensor] | None = None
    ) -> Tensor:  # (n, classes) -> (n, count)
        """All lengths of each input; zero without sites.

        `whitened` are the lengths (n,) of whitened rows, where they are known.
        """
        if not self.sites:
            return torch.zeros_like(logits[:, :1]).double()
        if whitened is None:
            whitened = {
                site: metric.units(rows[site]).lengths for site, metric in self.metrics.items()
            }
        plain = [lengths_of(rows[site]) for site in self.sites]
        subspaces = zip(self.sites, self.subspaces, strict=True)
        residuals = [own.residuals(rows[site]) for site, own in subspaces]
        within = [whitened[site] for site in self.metrics]
        lengths = torch.stack([*plain, *within, *residuals], 1)
        # where products are beyond float32: the row's own length
        by_site = dict(zip(self.sites, plain, strict=True))
        own = torch.stack([*plain, *(by_site[site] for site in self.metrics), *plain], 1)
        return torch.log(torch.where(lengths < math.inf, lengths, own) + self.shortest)

    def to(self, device: torch.device) -> "RowLengths":
        """The same on another device."""
        metrics = {site: metric.to(device) for site, metric in self.metrics.items()}
        subspaces = tuple(own.to(device) for own in self.subspaces)
        return RowLengths(self.sites, metrics, subspaces, self.shortest.to(device))


def unusual_columns(
    logits: Tensor,  # (n, classes)
    densities: Tensor,  # (n, layers) logarithms
) -> Tensor:  # (n, 1 + layers)
    """The energy of the logits, and minus the log densities of the layers."""
    return torch.cat([energy(logits), -densities.double()], 1)


@dataclass(frozen=True)
class NoveltyModel:
    """The novelty, from the energy, the log densities of some layers, lengths and the mixture."""

    log_odds: LogOdds  # of a perturbed input or a pseudo-outlier, by the five columns
    mean: Tensor  # (1 + layers + lengths,) of clean rows
    whiten: Tensor  # (the same twice) to unit covariance of clean rows
    layers: int

    def columns(self, evidence: Evidence) -> Tensor:  # (n, 5)
        """Energy, minus the last log density, residual, distance, mixture's log-odds."""
        odds, unusual = evidence
        offsets = unusual - self.mean.to(unusual)
        distance = combined(offsets, self.whiten.to(unusual)).square().sum(1)
        known = unusual[:, 0], unusual[:, self.layers], unusual[:, -1]
        return torch.stack([*known, distance, odds[:, 0].to(unusual)], 1)

    def __call__(self, evidence: Evidence) -> Tensor:  # (n,)
        """The novelty of each input."""
        return self.log_odds(self.columns(evidence))

    def terms(self, evidence: Evidence) -> Tensor:  # (n, 6)
        """What the novelty is the sum of: the constant, and each column's part."""
        found = self.columns(evidence)
        found = found * self.log_odds.slopes.to(found)
        return torch.cat([torch.full_like(found[:, :1], self.log_odds.constant), found], 1)

    def parameters(self) -> tuple[float, ...]:
        """Constant and slopes, then mean and whitening."""
        return (*self.log_odds.parameters(), *self.mean.tolist(), *self.whiten.flatten().tolist())

    @classmethod
    def of(cls, parameters: Tensor, layers: int, lengths: int) -> "NoveltyModel":
        """The inverse of `parameters`."""
        size = 1 + layers + lengths
        odds, mean, whiten = parameters.split([1 + COLUMNS, size, size**2])
        return cls(LogOdds.of(odds), mean, whiten.view(size, size), layers)

    @classmethod
    def unfitted(cls, layers: int, lengths: int) -> "NoveltyModel":
        """Minus the last layer's log density, or the energy if there are no layers."""
        slopes, size = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]).double(), 1 + layers + lengths
        zeros = torch.zeros(size, size).double()
        return cls(LogOdds(0.0, slopes), zeros[0], zeros, layers)

    def to(self, device: torch.device) -> "NoveltyModel":
        """The same on another device."""
        mean, whiten = self.mean.to(device), self.whiten.to(device)
        return NoveltyModel(self.log_odds.to(device), mean, whiten, self.layers)


def named_terms(values: Sequence[float], last: str | None) -> tuple[tuple[str, float], ...]:
    """The terms of the novelty with their names; `last` is that of the last layer.

    Without layers the energy takes its place, and the two terms are one.

    >>> named_terms([0.5, 1.0, 2.0, 0.0, 3.0, 4.0], None)[:3]
    (('constant', 0.5), ('energy', 3.0), ('residual', 0.0))
    """
    constant, of_energy, of_last, *others = values
    if last is None:
        known = [("energy", of_energy + of_last)]
    else:
        known = [("energy", of_energy), (last, of_last)]
    named = zip(("residual", "distance", "mixture"), others, strict=True)
    return (("constant", constant), *known, *named)


def fit_novelty_model(
    evidence: Evidence,  # of n rows
    perturbed: Tensor,  # (n,)
    layers: int,
    outliers: Evidence | None = None,  # of m rows
) -> NoveltyModel:
    """The novelty that tells perturbed rows and outliers from clean ones.

    The perturbed rows together have the same weight as the outliers, and both that of the clean
    rows. Without either, or if no column tells them apart, the mean of the standardised columns.
    """
    evidence, perturbed = _on_cpu(evidence), perturbed.cpu()
    unusual = evidence.unusual
    clean = unusual[~perturbed]
    mean, deviation = clean.mean(0), clean.std(0, correction=0)
    varies = deviation > (CONSTANT * clean.abs().amax(0)).clamp(min=LEAST_DEVIATION)
    scale = torch.where(varies, 1 / deviation, 0.0)
    covariance = torch.from_numpy(ledoit_wolf(((clean - mean) * scale).numpy())[0])
    values, vectors = torch.linalg.eigh(covariance)
    usable = values > CONSTANT
    whiten = scale[:, None] * vectors * torch.where(usable, values.clamp(min=CONSTANT).rsqrt(), 0.0)
    whiten = whiten.contiguous()  # as from a file: sums in the same order
    found = NoveltyModel(LogOdds(0.0, torch.zeros(COLUMNS).double()), mean, whiten, layers)
    columns, weights, unlike = found.columns(evidence), balanced(perturbed), perturbed
    count = 0 if outliers is None else len(outliers.odds)
    if outliers is not None and count:
        columns = torch.cat([columns, found.columns(_on_cpu(outliers))])
        unlike = torch.cat([perturbed, torch.ones(count, dtype=torch.bool)])
        share = 0.5 if bool(perturbed.any()) else 1.0
        others = torch.full((count,), share / count, dtype=weights.dtype)
        weights = torch.cat([torch.where(perturbed, 1 - share, 1.0) * weights, others])
    varies = columns[~unlike].std(0, correction=0) > LEAST_DEVIATION
    columns = torch.where(varies, columns, 0.0)
    fitted = fit_log_odds(columns, unlike, weights)
    return NoveltyModel(fitted or standardised_mean(columns[~unlike]), mean, whiten, layers)


def _on_cpu(evidence: Evidence) -> Evidence:
    return Evidence(*(part.double().cpu() for part in evidence))


def standardised_mean(columns: Tensor) -> LogOdds:  # (n, columns)
    """The mean of the columns, each standardised by these rows.

    >>> rows = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
    >>> standardised_mean(rows)(torch.tensor([[1.0, 5.0]]))
    tensor([0.5000])
    """
    columns = columns.double().cpu()
    deviation = columns.std(0, correction=0)
    varies = deviation > CONSTANT * columns.abs().amax(0).clamp(min=1)
    slopes = torch.where(varies, 1 / deviation, 0.0) / len(deviation)
    return LogOdds(-float(slopes @ columns.mean(0)), slopes)
