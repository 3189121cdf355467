r"""One field a class over a layer, all of them in one pass over the centres.

.. math:: f_c(u) = \frac1M \sum_{y_i = c} m_i\, e^{-\|u - u_i\|^2 / 2\sigma^2}, \qquad
          q_c = \frac{f_c}{\sum_b f_b}

with the counts :math:`m_i` of the centres and their sum :math:`M`.
On the unit sphere :math:`\|u-u_i\|^2 = 2 - 2\,u\cdot u_i`, so the posterior q is attention whose
values are the centres' classes. Unlike the moments of `qipf.field.engines` these are sums by class,
for several bandwidths from one matrix product. On a CPU a large field is evaluated in tiles of
centres (`qipf.layered.class_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.layered.class_sums import ROWS, ClassSums
from qipf.layered.metric import Metric

#: Numbers in one block of cosines, by kind of device: a CPU's cache, or a GPU's launch.
BLOCK = {"cpu": 2**21, "cuda": 2**26}

#: Fields of fewer centres fit in one block, where tiles of them only cost more calls.
FEWEST_TILED = 2**13

#: Centres times classes, at most: a graph, and a GPU's field, hold a table of both.
LARGEST_TABLE = 2**24

#: The smallest probability a field gives a class: it rules nothing out.
SMALLEST = 1e-30


class FieldValues(NamedTuple):
    """What the fields of a layer say of some rows."""

    posterior: Tensor  # (n, classes)  q
    log_density: Tensor  # (n,)  log of Σ_c f_c


class ClassField:
    """Centres on the unit sphere with their classes, under one kernel width.

    A centre is one training example, or stands for `counts` of them; `examples` tells which, or
    which is nearest, by their places in the loader.
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
        self.known = embeddings.new_zeros(classes, dtype=torch.bool)  # of which there are centres
        self.known[labels.long()] = True
        self.complete = bool(self.known.all())
        # now, not when first asked for: a graph has no values yet
        self._log_count = math.log(float(self.counts.double().sum()))

    @cached_property
    def _members(self) -> Tensor:  # (N, classes)
        table = self.embeddings.new_zeros(len(self.embeddings), self.classes)
        return table.scatter_(1, self.labels.long()[:, None], self.counts[:, None])

    @cached_property
    def _sums(self) -> ClassSums:
        return ClassSums(self.embeddings, self.labels, self.counts, self.classes)

    def at(self, bandwidth: float) -> ClassField:
        """The same centres under another width."""
        return ClassField(
            self.metric,
            self.embeddings,
            self.labels,
            self.classes,
            bandwidth,
            self.examples,
            self.counts,
        )

    def __call__(self, rows: Tensor) -> FieldValues:  # (n, D)
        """The classes' shares of the field at each row, and the field's height."""
        return next(self.at_bandwidths(rows, [self.bandwidth]))

    def at_bandwidths(self, rows: Tensor, bandwidths: list[float]) -> Iterator[FieldValues]:
        """As `__call__`, for several widths: the cosines are computed once for all that are alike.

        On a CPU those are alike whose squares are halves of each other, else all.
        """
        tiled = rows.device.type == "cpu" and len(self.embeddings) >= FEWEST_TILED
        judge = self._in_tiles if tiled else self._in_blocks
        for found in zip(*judge(rows, bandwidths), strict=True):
            posterior, log_density = (torch.cat(values) for values in zip(*found, strict=True))
            yield FieldValues(posterior, log_density)

    def _in_tiles(self, rows: Tensor, bandwidths: list[float]) -> Iterator[list[FieldValues]]:
        """So many rows at once, at every width: over tiles of the centres."""
        for part in rows.split(ROWS):
            sums = self._sums(self.metric(part), bandwidths)
            yield [self._of(by_class, nearest) for by_class, nearest in sums]

    def _in_blocks(self, rows: Tensor, bandwidths: list[float]) -> Iterator[list[FieldValues]]:
        """So many rows at once, at every width: over all centres."""
        last = len(bandwidths) - 1
        for cosines in self._cosines(rows):
            nearest = cosines.amax(1, keepdim=True)
            yield [
                self._shares(cosines, nearest, bandwidth, spent=k == last)
                for k, bandwidth in enumerate(bandwidths)
            ]

    def in_one(self, rows: Tensor) -> FieldValues:  # (n, D)
        """As `__call__`, in one block whatever the number of rows, for a graph."""
        cosines = self.metric(rows) @ self.embeddings.T
        return self._shares(cosines, cosines.amax(1, keepdim=True), self.bandwidth, spent=False)

    def nearest(
        self,
        rows: Tensor,  # (n, D)
        classes: Tensor,  # (n,) whose centres are sought
        count: int,
    ) -> tuple[Tensor, Tensor]:  # (n, k), (n, k)
        """The centres of the given class that are nearest to each row, and their cosines.

        k is `count`, or the number of centres if there are fewer. Where the class has too few of
        them, the last cosines of the row are -inf.
        """
        found, start = [], 0
        for cosines in self._cosines(rows):
            wanted = classes[start : start + len(cosines)]
            start += len(cosines)
            others = self.labels != wanted[:, None]
            found.append(
                cosines.masked_fill(others, -math.inf).topk(min(count, len(self.embeddings)))
            )
        return torch.cat([part.indices for part in found]), torch.cat([p.values for p in found])

    def _cosines(self, rows: Tensor) -> Iterator[Tensor]:  # (block, N) each, in order
        """Rows against all centres, as many rows at once as memory allows; at least one block."""
        size = max(1, BLOCK.get(rows.device.type, BLOCK["cpu"]) // len(self.embeddings))
        for part in rows.split(size):
            yield self.metric(part) @ self.embeddings.T

    def _shares(
        self, cosines: Tensor, nearest: Tensor, bandwidth: float, spent: bool
    ) -> FieldValues:
        inverse = 1 / (bandwidth * bandwidth)
        kernel = cosines.sub_(nearest) if spent else cosines - nearest
        kernel = kernel.mul_(inverse).exp_()  # of the nearest centre: 1
        return self._of(kernel @ self._members, (nearest[:, 0] - 1) * inverse)

    def _of(self, by_class: Tensor, nearest: Tensor) -> FieldValues:  # (n, classes), (n,)
        """Shares and height of kernels summed by class; the nearest centre's has this logarithm."""
        total = by_class.sum(1, keepdim=True)
        height = nearest + total[:, 0].log() - self._log_count
        return FieldValues((by_class / total).clamp(min=SMALLEST), height)

    def to(self, device: torch.device) -> ClassField:
        """The same field on another device."""
        return ClassField(
            self.metric.to(device),
            self.embeddings.to(device),
            self.labels.to(device),
            self.classes,
            self.bandwidth,
            self.examples,
            self.counts.to(device),
        )
