r"""Distilled fields: few weighted centres, fitted to what all training examples say of a row.

The centres start as a coreset. Their places on the sphere, their weights and their bandwidth are
then fitted at training rows and at rows of perturbed copies, to minimise the mean of

.. math:: \mathrm{KL}\Bigl(\tfrac12 (q + e_y) \,\Big\|\, \hat q\Bigr)
          + \lambda \Bigl(\frac{\log\hat\rho - \log\rho}{s}\Bigr)^2

with the posterior q and the density :math:`\rho` of the field with all examples, without that which
the row comes from, the row's class y, and the standard deviation s of :math:`\log\rho`. A thousand
centres cannot repeat what sixty thousand say of every single row: fitted to q alone they memorise
the rows of the fit. Therefore half of the target is the class, and in most rows of every step a
random part of the dimensions is left out.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from qipf.layered.class_field import LARGEST_TABLE, ClassField
from qipf.progress import progress

#: Smallest count of a centre in a file.
FEWEST = 1e-30

#: Centres of a layer's field, if no other number is wanted.
DISTILLED = 1000

#: Most training rows of the fit, and centres of the field that gives their targets.
MOST_ROWS, MOST_CENTERS = 8000, 20_000

#: Share of the class in the target, and λ.
OF_CLASS, OF_DENSITY = 0.5, 0.1

#: Share of the dimensions that is left out, less in fewer dimensions than `WIDE`, in all but each
#: `WHOLE`-th row; the density is compared in the others.
LEFT_OUT, WIDE, WHOLE = 0.3, 64, 4

#: The rows of one centre in this many validate the fit.
VALIDATION = 10

#: Steps of Adam, rows of each, and the largest rates of places and of logarithms.
STEPS, BATCH, RATES = 250, 2048, (5e-3, 5e-2)

#: The bandwidth stays within this factor of the field's.
FACTOR = 4.0


class Targets(NamedTuple):
    """Where a field is fitted, and to what."""

    points: Tensor  # (n, d) unit vectors
    posterior: Tensor  # (n, classes)
    log_density: Tensor  # (n,)
    own: Tensor  # (n,) the centres that they come from

    def where(self, chosen: Tensor) -> "Targets":
        """Some of the rows."""
        return Targets(*(part[chosen] for part in self))


def distilled_field(
    start: ClassField,
    field: ClassField,
    copies: Tensor,  # (m, D) rows of perturbed copies
    own: Tensor,  # (m,) the centres of `field` that they are copies of
    seed: int,
) -> ClassField:
    """The centres of `start`, a coreset of `field`, fitted to it.

    The start itself if there is nothing to fit, or too much for a table of centres and classes, or
    if the fit is no better at rows of other examples.
    """
    if len(start.embeddings) >= len(field.embeddings) or len(field.embeddings) < 2:
        return start
    if len(start.embeddings) * field.classes > LARGEST_TABLE:
        return start
    random = torch.Generator().manual_seed(seed)
    found = targets(field, copies, own, random)
    validation = found.own % VALIDATION == 0
    fitted = _fitted(start, field, found.where(~validation), random)
    return min(start, fitted, key=lambda small: cross_entropy(small, found.where(validation)))


def cross_entropy(field: ClassField, target: Targets) -> float:
    """Of the targets' posteriors and the field's; 0 without targets."""
    none = torch.full_like(target.own, -1)
    posterior = field.leave_one_out(target.points, none).posterior.double()
    return -float((target.posterior * posterior.log()).sum()) / max(1, len(none))


def targets(field: ClassField, copies: Tensor, own: Tensor, random: torch.Generator) -> Targets:
    """Training rows and copies, with what the other examples and their classes say of them."""
    device, count = field.embeddings.device, len(field.embeddings)
    rows = torch.randperm(count, generator=random)[:MOST_ROWS].to(device)
    own = torch.cat([rows, own.to(device)])
    points = torch.cat([field.embeddings[rows], *map(field.metric, copies.split(MOST_ROWS))])
    kept = torch.randperm(count, generator=random)[:MOST_CENTERS].sort().values.to(device)
    among = torch.searchsorted(kept, own).clamp(max=len(kept) - 1)
    found = ClassField(
        field.metric,
        field.embeddings[kept],
        field.labels[kept],
        field.classes,
        field.bandwidth,
        field.examples[kept.cpu()],
        field.counts[kept],
    ).leave_one_out(points, torch.where(kept[among] == own, among, -1))
    truth = functional.one_hot(field.labels[own].long(), field.classes)
    posterior = (1 - OF_CLASS) * found.posterior + OF_CLASS * truth
    return Targets(points, posterior, found.log_density, own)


def _fitted(
    start: ClassField, field: ClassField, target: Targets, random: torch.Generator
) -> ClassField:
    points, device = target.points, target.points.device
    members = functional.one_hot(start.labels.long(), start.classes).to(points)
    spread = target.log_density.std().clamp(min=1e-3)
    entropy = torch.special.entr(target.posterior).sum(1)
    places, log_counts = start.embeddings.clone(), start.counts.log()
    widening = points.new_zeros(())
    left_out = LEFT_OUT * min(1.0, points.shape[1] / WIDE)
    batch, order = min(BATCH, len(points)), torch.empty(0, dtype=torch.long)
    whole = (torch.arange(batch, device=device) % WHOLE == 0)[:, None]
    with torch.enable_grad():
        learned = [part.requires_grad_() for part in (places, log_counts, widening)]
        rates = (RATES[0], RATES[1], RATES[1])
        adam = torch.optim.Adam(
            [{"params": [part], "lr": rate} for part, rate in zip(learned, rates, strict=True)],
            betas=(0.9, 0.99),
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
        for _ in progress(range(STEPS), "distilling"):
            if len(order) < batch:
                order = torch.randperm(len(points), generator=random)
            chosen, order = order[:batch].to(device), order[batch:]
            own = points[chosen]
            lost = torch.rand(own.shape, generator=random).to(device) < left_out
            own = functional.normalize(own.masked_fill(lost & ~whole, 0.0), dim=1)
            inverse = _inverse(field, widening)
            log_weights = torch.log_softmax(log_counts, 0)
            scores = own @ (functional.normalize(places, dim=1) * inverse).T
            scores = scores + (log_weights - inverse)
            nearest = scores.detach().amax(1, keepdim=True)
            by_class = (scores - nearest).exp() @ members
            total = by_class.sum(1)
            log_posterior = (by_class + 1e-30).log() - total.log()[:, None]
            error = nearest[:, 0] + total.log() - target.log_density[chosen]
            expected = target.posterior[chosen]
            divergence = -entropy[chosen] - (expected * log_posterior).sum(1)
            unlike = (error / spread).square()[whole[:, 0]].mean()
            loss = divergence.mean() + OF_DENSITY * unlike
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
    embeddings = functional.normalize(places.detach(), dim=1)
    counts = torch.softmax(log_counts.detach().double(), 0) * float(field.counts.double().sum())
    return ClassField(
        start.metric,
        embeddings,
        start.labels,
        start.classes,
        float(_inverse(field, widening.detach())) ** -0.5,
        field.examples[nearest_of_class(embeddings, start.labels, field).cpu()],
        counts.clamp(min=2 * FEWEST).to(embeddings),
    )


def _inverse(field: ClassField, widening: Tensor) -> Tensor:
    """1/σ² of the distilled field."""
    factor = math.log(FACTOR) * torch.tanh(widening / math.log(FACTOR))
    return torch.exp(-2 * factor) / field.bandwidth**2


def nearest_of_class(embeddings: Tensor, labels: Tensor, field: ClassField) -> Tensor:  # (K,)
    """For each embedding the nearest centre of its class in the field."""
    found = torch.empty_like(labels, dtype=torch.long)
    for label in labels.unique().tolist():
        members = (field.labels == label).nonzero()[:, 0]
        mine = (labels == label).nonzero()[:, 0]
        for part in mine.split(1000):
            nearest = (embeddings[part] @ field.embeddings[members].T).argmax(1)
            found[part] = members[nearest]
    return found
