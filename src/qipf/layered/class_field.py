r"""One field per class over a layer, all of them evaluated in one pass over the centres.

.. math:: f_c(u) = \frac1M \sum_{y_i = c} m_i\, e^{-\|u - u_i\|^2 / 2\sigma^2}, \qquad
          q_c = \frac{f_c}{\sum_b f_b}

with the counts :math:`m_i` of the centres and their sum :math:`M`.
On the unit sphere :math:`\|u-u_i\|^2 = 2 - 2\,u\cdot u_i`, so the posterior q is attention whose
values are the centres' classes. Unlike the moments of `qipf.field.engines` these are sums by class,
for several bandwidths from one matrix product. A large field is evaluated in tiles of centres
(`qipf.layered.class_sums`), a small one at once: with a table of its centres and their classes, or,
for several rows on a CPU, by adding up the kernels of each class.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.nn import functional

from qipf.field.engines.base import by_device
from qipf.field.engines.online import LOG2_E
from qipf.field.engines.products import product
from qipf.layered.class_sums import ROWS, ClassSums, chains
from qipf.layered.metric import Metric

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Numbers in one block of cosines, by kind of device: fits a CPU's cache, or fills a GPU.
BLOCK = {"cpu": 2**20, "cuda": 2**26}

#: Binary digits by which kernels may differ from that of an orthogonal centre: float32 has 126, and
#: sums of kernels take some of them.
DEEPEST = 100.0

#: Fewest centres that a CPU evaluates in tiles: smaller fields fit in one block.
FEWEST_TILED = 2**13

#: Fewest rows whose kernels a CPU adds up class by class, instead of multiplying with a table.
FEWEST_SUMMED = 8

#: Largest table of centres times classes, 16 MB. Larger fields are evaluated in tiles everywhere.
LARGEST_TABLE = 2**22

#: Smallest probability that a field gives a class.
SMALLEST = 1e-30


class FieldValues(NamedTuple):
    """Values of the fields of a layer at some rows."""

    posterior: Tensor  # (n, classes)  q
    log_density: Tensor  # (n,)  log of Σ_c f_c


def _joined(parts: Sequence[FieldValues]) -> FieldValues:
    """The values at the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    posterior, log_density = (torch.cat(values) for values in zip(*parts, strict=True))
    return FieldValues(posterior, log_density)


class FieldParts(TypedDict, total=False):
    """What a `ClassField` is made of."""

    metric: Metric
    embeddings: Tensor
    labels: Tensor
    classes: int
    bandwidth: float
    examples: Tensor
    counts: Tensor | None


class ClassField:
    """Centres on the unit sphere with their classes, under one bandwidth.

    A centre is one training example, or stands for `counts` of them, which need not be whole
    numbers. `examples` are the positions in the loader of the centres, or of the examples of their
    class nearest to them.
    """

    def __init__(
        self,
        metric: Metric,
        embeddings: Tensor,  # (N, d) the centres, as the metric maps them
        labels: Tensor,  # (N,) their classes
        classes: int,
        bandwidth: float,
        examples: Tensor,  # (N,) int64
        counts: Tensor | None = None,  # (N,) by default all 1
    ) -> None:
        self.metric, self.embeddings, self.labels = metric, embeddings, labels
        self.classes, self.bandwidth = classes, bandwidth
        self.examples = examples
        self.counts = (
            embeddings.new_ones(len(embeddings)) if counts is None else counts.to(embeddings)
        )
        self.known = embeddings.new_zeros(classes, dtype=torch.bool)  # classes with centres
        self.known[labels.long()] = True
        self.complete = bool(self.known.all())
        # computed here, not when it is first used: tensors have no values while a graph is traced
        self._log_count = math.log(float(self.counts.double().sum()))

    @property
    def _few_classes(self) -> bool:
        """Whether a table of centres and classes is small enough to be held."""
        return len(self.embeddings) * self.classes <= LARGEST_TABLE

    @cached_property
    def _members(self) -> Tensor:  # (classes, N)
        table = self.embeddings.new_zeros(self.classes, len(self.embeddings))
        return table.scatter_(0, self.labels.long()[None], self.counts[None])

    @cached_property
    def _sums(self) -> ClassSums:
        return ClassSums(self.embeddings, self.labels, self.counts, self.classes)

    def at(self, bandwidth: float) -> "ClassField":
        """The same centres under another bandwidth."""
        other = copy.copy(self)
        other.bandwidth = bandwidth
        return other

    def changed(self, **parts: "Unpack[FieldParts]") -> "ClassField":
        """A field made of the same parts, but for these."""
        own = {name: getattr(self, name) for name in FieldParts.__annotations__}
        return ClassField(**{**own, **parts})

    def thinned(self, most: int) -> "ClassField":
        """About this many of the centres, evenly over their order, which is by class."""
        count = len(self.embeddings)
        if count <= most:
            return self
        kept = torch.arange(most) * count // most
        labels = self.labels.cpu()
        lost = ~torch.isin(labels, labels[kept])  # classes with few centres keep all of them
        kept = torch.cat([kept, lost.nonzero()[:, 0]]).sort().values
        here = kept.to(self.embeddings.device)
        return self.changed(
            embeddings=self.embeddings[here],
            labels=self.labels[here],
            examples=self.examples[kept],
            counts=self.counts[here],
        )

    def __call__(self, rows: Tensor) -> FieldValues:  # (n, D)
        """Posterior of the classes, and log density of the whole field, at each row."""
        return self.at_units(self.metric(rows))

    def at_units(self, units: Tensor) -> FieldValues:  # (n, d)
        """As `__call__`, at rows that the metric has mapped."""
        if self._tiled(units):
            return next(self._in_parts(units.split(self._rows_at_once(units)), [self.bandwidth]))
        sums, top = self.sums(units * self.exponent)
        nearest = units.new_zeros(()) if top is None else top
        return self._values(sums.T, (nearest - self.exponent) / LOG2_E)

    def at_bandwidths(self, rows: Tensor, bandwidths: list[float]) -> Iterator[FieldValues]:
        """As `__call__`, for several bandwidths that share the computation of the cosines.

        Those whose squares differ by powers of two also share an exponential; in tiles, only these
        share the cosines.
        """
        parts = rows.split(self._rows_at_once(rows))
        return self._in_parts(map(self.metric, parts), bandwidths)

    def _tiled(self, rows: Tensor) -> bool:
        many = rows.device.type == "cpu" and len(self.embeddings) >= FEWEST_TILED
        return many or not self._few_classes

    def _rows_at_once(self, rows: Tensor) -> int:
        if self._tiled(rows):
            return min(by_device(ROWS, rows), max(1, LARGEST_TABLE // self.classes))
        return max(1, by_device(BLOCK, rows) // len(self.embeddings))

    def _in_parts(
        self, parts: Iterable[Tensor], bandwidths: list[float]
    ) -> Iterator[FieldValues]:  # of all parts, for each bandwidth
        for found in zip(*(self._part(units, bandwidths) for units in parts), strict=True):
            yield _joined(found)

    def _part(self, units: Tensor, bandwidths: list[float]) -> list[FieldValues]:
        """Values at every bandwidth, over tiles of centres or over all of them."""
        if self._tiled(units):
            sums = self._sums(units, bandwidths)
            return [self._values(by_class, nearest) for by_class, nearest in sums]
        return self._chained(product(units, self.embeddings), bandwidths)

    def _chained(self, cosines: Tensor, bandwidths: list[float]) -> list[FieldValues]:
        """Values at every bandwidth; narrower kernels are squares of wider ones where they can.

        The cosines are overwritten.
        """
        top = cosines.amax(1, keepdim=True)
        offsets, nearest = cosines.sub_(top), top[:, 0] - 1
        found: dict[int, FieldValues] = {}
        for chain in chains(bandwidths):
            widest = bandwidths[chain[0][0]]
            # that of the nearest centre is 1; in base 2, see `qipf.field.engines.online`
            kernel = (offsets * (LOG2_E / (widest * widest))).exp2_()
            for place, squarings in chain:
                for _ in range(squarings):
                    kernel.square_()
                bandwidth = bandwidths[place]
                found[place] = self._values(
                    self._by_class(kernel), nearest / (bandwidth * bandwidth)
                )
        return [found[place] for place in range(len(bandwidths))]

    def in_one(self, units: Tensor) -> FieldValues:  # (n, d)
        """As `at_units`, in one block for any number of rows: for graphs."""
        inverse = 1 / (self.bandwidth * self.bandwidth)
        scores = product(units * inverse, self.embeddings)
        top = scores.amax(1, keepdim=True)
        # in place: memory for a second matrix costs more than the exponentials
        kernel = scores.sub_(top).exp_()  # powers of two are slower in ONNX Runtime
        return self._values(self._by_class(kernel), top[:, 0] - inverse)

    @property
    def exponent(self) -> float:
        """Factor of a cosine in the exponent of a kernel, to base 2."""
        return LOG2_E / (self.bandwidth * self.bandwidth)

    def sums(self, scaled: Tensor) -> tuple[Tensor, Tensor | None]:  # (n, d) -> (classes, n), (n,)
        """Kernels summed by class, in blocks, at units times the `exponent`.

        Kernels are divided by that of an orthogonal centre, and then by two to the power of the
        second result, unless it is None.
        """
        parts = [self._block(part) for part in scaled.split(self._rows_at_once(scaled))]
        if len(parts) == 1:
            return parts[0]
        sums, tops = zip(*parts, strict=True)
        return torch.cat(sums, 1), None if tops[0] is None else torch.cat(tops)

    def _block(self, scaled: Tensor) -> tuple[Tensor, Tensor | None]:
        scores, top = product(self.embeddings, scaled), None  # (N, n)
        if self.exponent > DEEPEST:  # else there is no need to look for the nearest centre
            top = scores.amax(0)
            scores.sub_(top)
        return self._sums_of(scores.exp2_()), top

    @cached_property
    def _starts(self) -> Tensor | None:  # (classes,) of each class, if centres are sorted by it
        if bool((self.labels[1:] < self.labels[:-1]).any()):
            return None
        counts = self.labels.long().bincount(minlength=self.classes)
        return counts.cumsum(0) - counts

    @cached_property
    def _places(self) -> Tensor:  # (N,)
        return torch.arange(len(self.embeddings), device=self.embeddings.device)

    def _sums_of(self, kernel: Tensor) -> Tensor:  # (N, n) -> (classes, n)
        if kernel.device.type != "cpu" or kernel.shape[1] < FEWEST_SUMMED or self._starts is None:
            return product(self._members, kernel.T)
        return functional.embedding_bag(
            self._places, kernel, self._starts, mode="sum", per_sample_weights=self.counts
        )

    def leave_one_out(self, points: Tensor, own: Tensor) -> FieldValues:  # (n, d), (n,)
        """Values at embedded points, each without its own centre; -1 where it has none."""
        found = []
        size = max(1, by_device(BLOCK, points) // len(self.embeddings))
        for part, mine in zip(points.split(size), own.split(size), strict=True):
            cosines = product(part, self.embeddings)
            known = (mine >= 0).nonzero()[:, 0]
            cosines[known, mine[known]] = -math.inf
            found += self._chained(cosines, [self.bandwidth])
        return _joined(found)

    def nearest(
        self,
        rows: Tensor,  # (n, D)
        classes: Tensor,  # (n,)
        count: int,
    ) -> tuple[Tensor, Tensor]:  # (n, k), (n, k)
        """Indices and cosines of the centres of the given class that are nearest to each row.

        k is `count`, or the number of centres if that is smaller. If the class has fewer than k
        centres, the last cosines of the row are -inf.
        """
        found = []
        size = max(1, by_device(BLOCK, rows) // len(self.embeddings))
        for part, wanted in zip(rows.split(size), classes.split(size), strict=True):
            cosines = product(self.metric(part), self.embeddings)
            others = self.labels != wanted[:, None]
            found.append(
                cosines.masked_fill(others, -math.inf).topk(min(count, len(self.embeddings)))
            )
        return torch.cat([part.indices for part in found]), torch.cat([p.values for p in found])

    def _by_class(self, kernel: Tensor) -> Tensor:  # (n, N) -> (n, classes)
        if self._few_classes:
            return product(self._members, kernel).T  # in ONNX Runtime for no rows too
        sums = kernel.new_zeros(self.classes, kernel.shape[0])
        return sums.index_add(0, self.labels.long(), (kernel * self.counts).T).T

    def _values(self, by_class: Tensor, unit: Tensor) -> FieldValues:  # (n, classes), (n,)
        """Values from kernels summed by class, relative to a kernel given by its logarithm."""
        total = by_class.sum(1, keepdim=True)
        log_density = unit + total[:, 0].log() - self._log_count
        return FieldValues((by_class / total).clamp(min=SMALLEST), log_density)

    def to(self, device: torch.device) -> "ClassField":
        """The same field on another device."""
        return self.changed(
            metric=self.metric.to(device),
            embeddings=self.embeddings.to(device),
            labels=self.labels.to(device),
            counts=self.counts.to(device),
        )


def nearest_of_class(small: ClassField, field: ClassField) -> Tensor:  # (K,)
    """For each centre of a small field the nearest centre of its class in the other."""
    found = torch.empty_like(small.labels, dtype=torch.long)
    for label in small.labels.unique().tolist():
        members = (field.labels == label).nonzero()[:, 0]
        mine = (small.labels == label).nonzero()[:, 0]
        for part in mine.split(1000):
            nearest = product(small.embeddings[part], field.embeddings[members]).argmax(1)
            found[part] = members[nearest]
    return found
