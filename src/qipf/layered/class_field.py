r"""One field a class over a layer, all of them in one pass over the centres.

.. math:: f_c(u) = \frac1M \sum_{y_i = c} m_i\, e^{-\|u - u_i\|^2 / 2\sigma^2}, \qquad
          q_c = \frac{f_c}{\sum_b f_b}

with the masses :math:`m_i` of the centres and their sum :math:`M`.
On the unit sphere :math:`\|u-u_i\|^2 = 2 - 2\,u\cdot u_i`, so the posterior q is attention whose
values are the centres' classes. These are not the moments of `qipf.engines`: sums by class, for
several widths from one product a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.layered.metric import Metric

#: Numbers in one block of kernel values, by kind of device: a CPU's cache, or a GPU's launch.
BLOCK = {"cpu": 2**21, "cuda": 2**26}

#: Centres times classes, at most: a field holds a table of both.
LARGEST_TABLE = 2**24

#: The smallest probability a field gives a class: it rules nothing out.
SMALLEST = 1e-30


class Judged(NamedTuple):
    """What the fields of a layer say of some rows."""

    posterior: Tensor  # (n, classes)  q
    log_density: Tensor  # (n,)  log of Σ_c f_c


class ClassField:
    """Centres on the unit sphere with their classes, under one kernel width.

    A centre is one training example, or stands for `masses` of them; `examples` tells which, or
    which is nearest, by their places in the loader.
    """

    def __init__(
        self,
        metric: Metric,
        units: Tensor,  # (N, d) the centres, as the metric maps them
        labels: Tensor,  # (N,) their classes
        classes: int,
        bandwidth: float,
        examples: Tensor,  # (N,) int64
        masses: Tensor | None = None,  # (N,) by default all 1
    ) -> None:
        self.metric, self.units, self.labels = metric, units, labels
        self.classes, self.bandwidth = classes, bandwidth
        self.examples = examples
        self.masses = units.new_ones(len(units)) if masses is None else masses.to(units)
        self.known = units.new_zeros(classes, dtype=torch.bool)  # of which there are centres
        self.known[labels.long()] = True
        self.complete = bool(self.known.all())
        # now, not when first asked for: a graph has no values yet
        self._log_count = math.log(float(self.masses.double().sum()))

    @cached_property
    def _members(self) -> Tensor:  # (N, classes)
        table = self.units.new_zeros(len(self.units), self.classes)
        return table.scatter_(1, self.labels.long()[:, None], self.masses[:, None])

    def at(self, bandwidth: float) -> ClassField:
        """The same centres under another width."""
        return ClassField(
            self.metric,
            self.units,
            self.labels,
            self.classes,
            bandwidth,
            self.examples,
            self.masses,
        )

    def __call__(self, rows: Tensor) -> Judged:  # (n, D)
        """The classes' shares of the field at each row, and the field's height."""
        return next(self.judged(rows, [self.bandwidth]))

    def judged(self, rows: Tensor, bandwidths: list[float]) -> Iterator[Judged]:
        """As `__call__`, for several widths: the cosines are computed once for all."""
        parts: list[list[Judged]] = [[] for _ in bandwidths]
        for cosines in self._cosines(rows):
            nearest = cosines.amax(1, keepdim=True)
            last = len(bandwidths) - 1
            for k, bandwidth in enumerate(bandwidths):
                parts[k].append(self._shares(cosines, nearest, bandwidth, spent=k == last))
        for found in parts:
            posterior, log_density = (torch.cat(values) for values in zip(*found, strict=True))
            yield Judged(posterior, log_density)

    def in_one(self, rows: Tensor) -> Judged:  # (n, D)
        """As `__call__`, in one block whatever the number of rows, for a graph."""
        cosines = self.metric(rows) @ self.units.T
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
            found.append(cosines.masked_fill(others, -math.inf).topk(min(count, len(self.units))))
        return torch.cat([part.indices for part in found]), torch.cat([p.values for p in found])

    def _cosines(self, rows: Tensor) -> Iterator[Tensor]:  # (block, N) each, in order
        """Rows against all centres, as many rows at once as memory allows; at least one block."""
        size = max(1, BLOCK.get(rows.device.type, BLOCK["cpu"]) // len(self.units))
        for part in rows.split(size):
            yield self.metric(part) @ self.units.T

    def _shares(self, cosines: Tensor, nearest: Tensor, bandwidth: float, spent: bool) -> Judged:
        inverse = 1 / (bandwidth * bandwidth)
        kernel = cosines.sub_(nearest) if spent else cosines - nearest
        kernel = kernel.mul_(inverse).exp_()  # of the nearest centre: 1
        by_class = kernel @ self._members
        total = by_class.sum(1, keepdim=True)
        height = (nearest[:, 0] - 1) * inverse + total[:, 0].log() - self._log_count
        return Judged((by_class / total).clamp(min=SMALLEST), height)

    def to(self, device: torch.device) -> ClassField:
        """The same field on another device."""
        return ClassField(
            self.metric.to(device),
            self.units.to(device),
            self.labels.to(device),
            self.classes,
            self.bandwidth,
            self.examples,
            self.masses.to(device),
        )
