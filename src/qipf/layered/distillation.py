r"""Distilled fields: few weighted centres, fitted to known classes, and to the field elsewhere.

The centres start as the means of clusters of each class. Their places on the sphere, their weights,
their bandwidth and the projection of rows onto the sphere's dimensions are then fitted by Adam. The
projection is a matrix, which becomes part of the metric; it starts as that onto the directions in
which rows spread most, of twice as many. At training rows and rows of perturbed copies of them, u,
of class y, the loss is the first term, at blends the second:

.. math:: -\lambda \log \hat q_y(u), \qquad
          \frac1C \sum_c \bigl(\log\hat f_c(u) - \log f_c(u)\bigr)^2

Blends are places between two training rows, with noise. :math:`f_c` are the class fields of the
training examples, :math:`\hat f_c` those of the centres, and :math:`\hat q` their shares; fields
far below the largest one are not compared. Fitted to the classes alone, few centres are sure of
rows that are unlike all rows of the fit.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from qipf.field.engines.products import product
from qipf.layered.class_field import LARGEST_TABLE, ClassField, nearest_of_class
from qipf.layered.distilled_centers import Targets, fit_centers
from qipf.layered.effort import FULL, Effort
from qipf.layered.metric import unit_length
from qipf.layered.mixture_fit import MOST_CENTERS, FittedMixture, thinning, tuning_posteriors
from qipf.layered.tuning import Tuning
from qipf.network.features import LayerSite
from qipf.progress import progress

#: Centres of a layer's field, if no other number is wanted: at least this many, and for each class.
DISTILLED, EACH_CLASS = 1500, 20

#: Most training rows of the fit; the copies come on top.
MOST_ROWS = 60_000

#: Blends of the fit.
BLENDS = 16_000

#: Largest share of the second training row in a blend, and length of the noise.
SECOND, NOISE = 0.9, 0.7

#: Steps of Lloyd's algorithm, and rows that are compared with the means at a time.
LLOYD, COMPARED = 6, 8192

#: Steps of Adam.
STEPS = 240

#: Dimensions of a field before its rows are projected, as a multiple of those after.
WIDER = 2


def distilled_size(classes: int) -> int:
    """Number of centres, if no other is wanted."""
    return max(DISTILLED, EACH_CLASS * classes)


class Labelled(NamedTuple):
    """Rows of a layer and their classes."""

    rows: Tensor  # (n, D)
    labels: Tensor  # (n,)


def is_fitted(size: int, examples: int, classes: int) -> bool:
    """Whether so many centres are fitted: fewer than examples, and with a table of the classes.

    >>> is_fitted(1500, 60_000, 10), is_fitted(1500, 1000, 10), is_fitted(20_000, 60_000, 1000)
    (True, False, False)
    """
    return size < examples and size * classes <= LARGEST_TABLE


def labelled_rows(field: ClassField, tuning: Tuning, site: LayerSite) -> tuple[Labelled, Labelled]:
    """Rows of perturbed copies of the field's examples, and held-out rows, of one layer."""
    places, by_place = field.examples.sort()
    own = by_place[torch.searchsorted(places, tuning.copied)].to(field.labels.device)
    none = field.metric.mean.expand(0, -1)
    sets, step = tuning.sets.values(), thinning(tuning)
    held = torch.cat([rows[site][::step] for _, rows in sets])
    copies = Labelled(tuning.copies.get(site, none), field.labels[own])
    return copies, Labelled(held, tuning.labels[::step].repeat(len(sets)))


def distilled_mixture(
    mixture: FittedMixture,
    tuning: Tuning,
    size: int,
    dimension: int,
    seed: int,
    effort: Effort = FULL,
) -> FittedMixture:
    """The mixture with distilled fields, and the weights that it has.

    Those are fitted with the fields of all examples. Distilled fields are fitted to copies that are
    perturbed as the tuning rows are, so they look better on these than on other inputs.
    """
    fields = {}
    for site, field in progress(mixture.fields.items(), "distilling fields"):
        fields[site] = distilled_field(
            field, size, dimension, *labelled_rows(field, tuning, site), seed, effort
        )
    if all(fields[site] is field for site, field in mixture.fields.items()):
        return mixture
    return FittedMixture(fields, mixture.weights, tuning_posteriors(fields, tuning, (1.0,)))


def distilled_field(
    field: ClassField,
    size: int,
    dimension: int,
    copies: Labelled,  # perturbed copies of examples of `field`
    held: Labelled,  # of other examples
    seed: int,
    effort: Effort = FULL,
) -> ClassField:
    """About `size` centres fitted to the classes at the rows of `field` and at the copies.

    They have `dimension` dimensions, or as many as `field` if these are fewer.
    The clusters' means if there is too much to fit for a table of centres and classes, or if the
    fit is no better at the rows that are held out. The field itself if it is no larger.
    """
    if size >= len(field.embeddings):
        return field
    random = torch.Generator().manual_seed(seed)
    start, device = clustered_field(field, size, random), field.embeddings.device
    if not is_fitted(size, len(field.embeddings), field.classes):
        return start
    first = torch.eye(field.embeddings.shape[1]).to(field.embeddings)[:, -dimension:]  # spread most
    start = _projected(start, first)
    own = torch.randperm(len(field.embeddings), generator=random)[:MOST_ROWS].to(device)
    points = torch.cat([field.embeddings[own], *map(field.metric, copies.rows.split(COMPARED))])
    labels = torch.cat([field.labels[own], copies.labels.to(field.labels)]).long()
    targets = fit_targets(points, labels, *blends(field, random))
    steps = max(1, round(effort.steps * STEPS))
    fitted, projection = fit_centers(start, field.metric, first, targets, random, steps)
    # not by rows of the field: the clusters' means are made of them
    better = cross_entropy(fitted, held) < cross_entropy(start, held)
    found, projection = (fitted, projection) if better else (start, first)
    found.examples = field.examples[nearest_of_class(found, _projected(field, projection)).cpu()]
    return found


def cross_entropy(field: ClassField, given: Labelled) -> float:
    """Mean of minus the log posterior of the true class; 0 without rows."""
    if not len(given.rows):
        return 0.0
    found = field(given.rows).posterior.gather(1, given.labels[:, None].to(field.labels.device))
    return -float(found.double().log().mean())


def clustered_field(field: ClassField, size: int, random: torch.Generator) -> ClassField:
    """Means of clusters of each class's centres, which stand for as many as their clusters have.

    Clusters are shared by the classes' sizes; every class has at least one.
    """
    centers, counts, labels = [], [], []
    for label in field.labels.unique().tolist():
        members = (field.labels == label).nonzero()[:, 0]
        own, weights = field.embeddings[members], field.counts[members]
        k = max(1, size * len(members) // len(field.embeddings))
        means = own[torch.randperm(len(own), generator=random)[:k].to(own.device)].clone()
        for _ in range(LLOYD):
            nearest = torch.cat([product(part, means).argmax(1) for part in own.split(COMPARED)])
            sums = torch.zeros_like(means).index_add_(0, nearest, own * weights[:, None])
            mass = weights.new_zeros(k).index_add_(0, nearest, weights)
            means = functional.normalize(torch.where(mass[:, None] > 0, sums, means), dim=1)
        used = mass > 0
        centers.append(means[used])
        counts.append(mass[used])
        labels.append(field.labels[members][: int(used.sum())])
    found = field.changed(
        embeddings=torch.cat(centers),
        labels=torch.cat(labels),
        examples=torch.empty(0),
        counts=torch.cat(counts),
    )
    found.examples = field.examples[nearest_of_class(found, field).cpu()]
    return found


def fit_targets(
    points: Tensor, labels: Tensor, blended: Tensor, log_fields: Tensor
) -> Targets:  # (n, d), (n,), (m, d), (m, classes)
    """The classes of points, and the class fields of blends."""
    none = log_fields.new_zeros(len(points), log_fields.shape[1])
    return Targets(
        torch.cat([points, blended]),
        torch.cat([labels, labels.new_full((len(blended),), -1)]),
        torch.cat([none, log_fields]),
    )


def blends(field: ClassField, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points (n, d) between two of the centres, with noise, and the logarithms of their fields."""
    places, device = field.embeddings, field.embeddings.device
    first, second = torch.randint(len(places), (2, BLENDS), generator=random).to(device)
    # of their own type: the default one may be another
    drawn = partial(torch.rand, BLENDS, 1, generator=random, dtype=torch.float32)
    share, length = SECOND * drawn().to(device), NOISE * drawn().to(device)
    noise = torch.randn(BLENDS, places.shape[1], generator=random, dtype=torch.float32).to(device)
    noise = noise * length / math.sqrt(places.shape[1])
    points = unit_length((1 - share) * places[first] + share * places[second] + noise)
    few = field.thinned(MOST_CENTERS)
    found = few.leave_one_out(points, torch.full_like(first, -1))
    return points, found.posterior.log() + found.log_density[:, None]


def _projected(field: ClassField, projection: Tensor) -> ClassField:  # (w, d)
    """The same centres with their rows projected by a matrix."""
    return field.changed(
        metric=field.metric.projected(projection),
        embeddings=unit_length(field.embeddings @ projection),
    )
