"""Centres of a distilled field, moved by gradient descent; see `qipf.layered.distillation`.

Every step does the same operations on the device, so that a GPU repeats them as a CUDA graph: they
are small, and take less time than their launches.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from qipf.field.engines.online import LOG2_E
from qipf.field.engines.products import product
from qipf.layered.class_field import SMALLEST, ClassField
from qipf.layered.metric import Metric, units_of
from qipf.layered.replays import repeated
from qipf.progress import progress

#: λ, and how far below the largest class field the others are compared, as logarithms.
OF_CLASS, LOWEST = 4.0, 15.0

#: Rows of a step, and the largest rates of places, log weights, log bandwidth and projection.
BATCH, RATES = 512, (7e-3, 7e-2, 1.4e-2, 3e-3)

#: How much of the means of slopes and of their squares stays in a step of Adam, and the number that
#: keeps it from dividing by zero.
KEPT, EPSILON = (0.9, 0.99), 1e-8

#: Least length of a projected point that its slopes are divided by; points have length one.
SHORTEST = 1e-2

#: The bandwidth stays within this factor of the field's.
FACTOR = 4.0

#: Smallest count of a centre in a file.
FEWEST = 1e-30


class Targets(NamedTuple):
    """Where a field is fitted, and to what: a class, or the logarithms of the class fields."""

    points: Tensor  # (n, d) unit vectors
    labels: Tensor  # (n,) -1 for blends
    log_fields: Tensor  # (n, classes) zero where a class is given


class Adam:
    """Steps of Adam, whose rates fall to zero along half a cosine.

    `torch.optim.Adam` counts its steps and computes its rates in Python, which a CUDA graph does
    not repeat. Here the number of the step, from zero, is a tensor.

    >>> place = torch.tensor([3.0])
    >>> adam = Adam([place], [0.1], steps=100)
    >>> for _ in range(100):
    ...     adam([2 * place])  # the slope of a parabola
    >>> bool(place.abs() < 0.1)
    True
    """

    def __init__(self, parts: Sequence[Tensor], rates: Sequence[float], steps: int) -> None:
        self.step = torch.zeros(1, dtype=torch.long, device=parts[0].device)
        number = torch.arange(steps).double()
        falling = (1 + torch.cos(math.pi * number / steps)) / 2
        # both means start at zero
        first, second = (1 - kept ** (number + 1) for kept in KEPT)
        self._factors = torch.stack([falling / first, second.rsqrt()], 1).to(parts[0])
        self._parts = [
            (part, rate, torch.zeros_like(part), torch.zeros_like(part))
            for part, rate in zip(parts, rates, strict=True)
        ]

    def __call__(self, slopes: Sequence[Tensor]) -> None:
        """Change the parts by their slopes."""
        size, scale = self._factors.index_select(0, self.step)[0]
        for (part, rate, mean, square), slope in zip(self._parts, slopes, strict=True):
            mean.lerp_(slope, 1 - KEPT[0])
            square.mul_(KEPT[1]).addcmul_(slope, slope, value=1 - KEPT[1])
            part.addcdiv_(mean * size, (square.sqrt() * scale).add_(EPSILON), value=-rate)
        self.step.add_(1)


def fit_centers(
    start: ClassField,  # of dimension d
    metric: Metric,  # of dimension w
    projection: Tensor,  # (w, d) that of `start`
    target: Targets,  # points of dimension w
    random: torch.Generator,
    steps: int,
) -> tuple[ClassField, Tensor]:
    """The centres, and the projection, fitted to the targets."""
    by_class = functional.one_hot(start.labels.long(), start.classes).to(target.points)
    by_class = by_class.T.contiguous()  # (classes, K)
    places, log_weights = start.embeddings.clone(), start.counts.log()
    widening, projection = places.new_zeros(()), projection.clone()
    adam = Adam((places, log_weights, widening, projection), RATES, steps)
    batch = min(BATCH, len(target.points))
    # at once: a copy to a GPU in every step would wait for it
    drawn = _drawn(len(target.points), batch, steps, random).to(places.device)

    def step() -> None:
        chosen = drawn.index_select(0, adam.step)[0]
        points, labels, log_fields = (part[chosen] for part in target)
        inverse = _inverse(start.bandwidth, widening)
        rows, lengths = units_of(product(points, projection.T))
        shares = torch.softmax(log_weights, 0)
        # in base 2, see `qipf.field.engines.online`
        scale = inverse * LOG2_E
        scores = product(rows * scale, places).add_(shares.log2() - scale)  # (n, K)
        top = scores.amax(1, keepdim=True)
        kernel, nearest = scores.sub_(top).exp2_(), top / LOG2_E
        sums = product(by_class, kernel).T.clamp(min=SMALLEST)  # faster than the other way round
        slopes = _slopes(sums, nearest, labels, log_fields) / batch
        pull = kernel.mul_(product(slopes / sums, by_class.T))  # (n, K) derivative by the scores
        total = pull.sum(0)
        by_place = product(rows.T, pull.T).T.contiguous()
        along = (by_place * places).sum(1, keepdim=True)  # (K, 1) sums of pulls times cosines
        # along the sphere, and without a change of the weights' sum
        by_place.addcmul_(along, places, value=-1).mul_(inverse)
        by_weight = total - total.sum() * shares
        by_widening = (along.sum() - total.sum()) * _slope(start.bandwidth, widening)
        by_row = product(pull, places.T) * inverse
        by_row -= (by_row * rows).sum(1, keepdim=True) * rows
        by_row /= lengths[:, None].clamp(min=SHORTEST).to(by_row)
        adam((by_place, by_weight, by_widening, points.T @ by_row))
        places.copy_(functional.normalize(places, dim=1))

    for _ in progress(repeated(step, steps, places.device), "distilling", steps):
        pass
    counts = torch.softmax(log_weights.double(), 0) * float(start.counts.double().sum())
    found = start.changed(
        metric=metric.projected(projection),
        embeddings=places,
        bandwidth=float(_inverse(start.bandwidth, widening)) ** -0.5,
        counts=counts.clamp(min=2 * FEWEST).to(places),
    )
    return found, projection


def _drawn(rows: int, batch: int, steps: int, random: torch.Generator) -> Tensor:  # (steps, batch)
    """Rows of every step: each order of all rows is cut into whole batches."""
    each = rows // batch
    orders = [torch.randperm(rows, generator=random) for _ in range(-(-steps // each))]
    return torch.cat([order[: each * batch].view(each, batch) for order in orders])[:steps]


def _slopes(
    sums: Tensor,  # (n, classes) of the kernels, relative to the nearest centre's
    nearest: Tensor,  # (n, 1) logarithm of its kernel
    labels: Tensor,  # (n,)
    log_fields: Tensor,  # (n, classes)
) -> Tensor:  # (n, classes)
    """Derivative of each row's loss by the logarithms of its class fields."""
    known = (labels >= 0)[:, None]
    truth = functional.one_hot(labels.clamp(min=0), sums.shape[1])
    of_class = OF_CLASS * (sums / sums.sum(1, keepdim=True) - truth)
    found = sums.log() + nearest
    lowest = log_fields.amax(1, keepdim=True) - LOWEST
    error = found.clamp(min=lowest) - log_fields.clamp(min=lowest)
    return torch.where(known, of_class, 2 / sums.shape[1] * error)


def _inverse(bandwidth: float, widening: Tensor) -> Tensor:
    """1/σ² of the distilled field."""
    factor = math.log(FACTOR) * torch.tanh(widening / math.log(FACTOR))
    return torch.exp(-2 * factor) / bandwidth**2


def _slope(bandwidth: float, widening: Tensor) -> Tensor:
    """Derivative of `_inverse` by the widening."""
    bend = 1 - torch.tanh(widening / math.log(FACTOR)).square()
    return -2 * bend * _inverse(bandwidth, widening)
