r"""Distilled fields: few weighted centres, fitted to the classes of training rows and their copies.

The centres start as the means of clusters of each class. Their places on the sphere, their weights
and their bandwidth are then fitted by Adam to minimise the mean of

.. math:: -\log \hat q_y(u), \qquad
          \hat q_c(u) = \frac{\sum_{y_i = c} w_i\, e^{u \cdot u_i / \sigma^2}}
                             {\sum_i w_i\, e^{u \cdot u_i / \sigma^2}}

over training rows and rows of perturbed copies of them, u, of class y. With the share
:math:`r_i` of a centre in the sum over all of them, the derivative by its score
:math:`u \cdot u_i / \sigma^2 + \log w_i` is :math:`r_i (1 - [y_i = y] / \hat q_y)`.

The field of all examples is not the target: fitted to its posterior, so few centres memorise the
rows of the fit (research/README.md).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from qipf.layered.class_field import LARGEST_TABLE, SMALLEST, ClassField
from qipf.progress import progress

#: Smallest count of a centre in a file.
FEWEST = 1e-30

#: Centres of a layer's field, if no other number is wanted: at least this many, and for each class.
DISTILLED, EACH_CLASS = 1000, 20

#: Most training rows of the fit; the copies come on top.
MOST_ROWS = 8000

#: The rows of one centre in this many validate the fit.
VALIDATION = 10

#: Steps of Lloyd's algorithm, and rows that are compared with the means at a time.
LLOYD, COMPARED = 6, 8192

#: Steps of Adam, rows of each, and the largest rates of places and of logarithms.
STEPS, BATCH, RATES = 250, 512, (5e-3, 5e-2)

#: The bandwidth stays within this factor of the field's.
FACTOR = 4.0


def distilled_size(classes: int) -> int:
    """Number of centres, if no other is wanted."""
    return max(DISTILLED, EACH_CLASS * classes)


def distilled_field(
    field: ClassField,
    size: int,
    copies: Tensor,  # (m, D) rows of perturbed copies
    own: Tensor,  # (m,) the centres of `field` that they are copies of
    seed: int,
) -> ClassField:
    """About `size` centres fitted to the classes at the rows of `field` and at the copies.

    The clusters' means if there is nothing to fit, or too much for a table of centres and classes,
    or if the fit is no better at rows of other examples. The field itself if it is no larger.
    """
    if size >= len(field.embeddings):
        return field
    random = torch.Generator().manual_seed(seed)
    start = clustered_field(field, size, random)
    if len(start.embeddings) * field.classes > LARGEST_TABLE:
        return start
    device = field.embeddings.device
    rows = torch.randperm(len(field.embeddings), generator=random)[:MOST_ROWS].to(device)
    own = torch.cat([rows, own.to(device)])
    points = torch.cat([field.embeddings[rows], *map(field.metric, copies.split(COMPARED))])
    labels = field.labels[own].long()
    others = own % VALIDATION == 0
    fitted = _fitted(start, points[~others], labels[~others], random)
    fitted.examples = field.examples[nearest_of_class(fitted, field).cpu()]
    return min(start, fitted, key=lambda f: cross_entropy(f, points[others], labels[others]))


def cross_entropy(field: ClassField, points: Tensor, labels: Tensor) -> float:
    """Mean of minus the log posterior of the true class at embedded points; 0 without any."""
    found = field.leave_one_out(points, torch.full_like(labels, -1)).posterior
    return -float(found.gather(1, labels[:, None]).double().log().sum()) / max(1, len(labels))


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
            nearest = torch.cat([(part @ means.T).argmax(1) for part in own.split(COMPARED)])
            sums = torch.zeros_like(means).index_add_(0, nearest, own * weights[:, None])
            mass = weights.new_zeros(k).index_add_(0, nearest, weights)
            means = functional.normalize(torch.where(mass[:, None] > 0, sums, means), dim=1)
        used = mass > 0
        centers.append(means[used])
        counts.append(mass[used])
        labels.append(field.labels[members][: int(used.sum())])
    found = ClassField(
        field.metric,
        torch.cat(centers),
        torch.cat(labels),
        field.classes,
        field.bandwidth,
        torch.empty(0),
        torch.cat(counts),
    )
    found.examples = field.examples[nearest_of_class(found, field).cpu()]
    return found


def _fitted(
    start: ClassField, points: Tensor, labels: Tensor, random: torch.Generator
) -> ClassField:
    """The centres fitted to the labels (n,) of embedded points (n, d)."""
    own_class = functional.one_hot(start.labels.long(), start.classes).to(points)  # (K, classes)
    by_class = own_class.T.contiguous()
    places, log_weights = start.embeddings.clone(), start.counts.log()
    widening = points.new_zeros(())
    learned, rates = [places, log_weights, widening], (RATES[0], RATES[1], RATES[1])
    adam = torch.optim.Adam(
        [{"params": [part], "lr": rate} for part, rate in zip(learned, rates, strict=True)],
        betas=(0.9, 0.99),
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    batch, order = min(BATCH, len(points)), torch.empty(0, dtype=torch.long)
    for _ in progress(range(STEPS), "distilling"):
        if len(order) < batch:
            order = torch.randperm(len(points), generator=random)
        chosen, order = order[:batch].to(points.device), order[batch:]
        rows, truth = points[chosen], labels[chosen]
        inverse = _inverse(start.bandwidth, widening)
        cosines = rows @ places.T
        share = torch.softmax(torch.addcmul(log_weights, cosines, inverse), 1)  # (n, K)
        posterior = share @ own_class
        slopes = torch.ones_like(posterior)
        known = posterior.gather(1, truth[:, None]).clamp(min=SMALLEST)
        slopes.scatter_(1, truth[:, None], 1 - 1 / known)
        pull = share.mul_(slopes @ by_class).div_(batch)  # (n, K) derivative by the scores
        by_place = pull.T @ rows * inverse
        # along the sphere
        places.grad = by_place - (by_place * places).sum(1, keepdim=True) * places
        log_weights.grad = pull.sum(0)
        widening.grad = (pull * cosines).sum() * _slope(start.bandwidth, widening)
        adam.step()
        schedule.step()
        places.copy_(functional.normalize(places, dim=1))
    counts = torch.softmax(log_weights.double(), 0) * float(start.counts.double().sum())
    return ClassField(
        start.metric,
        places,
        start.labels,
        start.classes,
        float(_inverse(start.bandwidth, widening)) ** -0.5,
        start.examples,
        counts.clamp(min=2 * FEWEST).to(places),
    )


def _inverse(bandwidth: float, widening: Tensor) -> Tensor:
    """1/σ² of the distilled field."""
    factor = math.log(FACTOR) * torch.tanh(widening / math.log(FACTOR))
    return torch.exp(-2 * factor) / bandwidth**2


def _slope(bandwidth: float, widening: Tensor) -> Tensor:
    """Derivative of `_inverse` by the widening."""
    bend = 1 - torch.tanh(widening / math.log(FACTOR)).square()
    return -2 * bend * _inverse(bandwidth, widening)


def nearest_of_class(small: ClassField, field: ClassField) -> Tensor:  # (K,)
    """For each centre of a small field the nearest centre of its class in the other."""
    found = torch.empty_like(small.labels, dtype=torch.long)
    for label in small.labels.unique().tolist():
        members = (field.labels == label).nonzero()[:, 0]
        mine = (small.labels == label).nonzero()[:, 0]
        for part in mine.split(1000):
            nearest = (small.embeddings[part] @ field.embeddings[members].T).argmax(1)
            found[part] = members[nearest]
    return found
