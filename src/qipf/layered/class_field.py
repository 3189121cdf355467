r"""One field a class over a layer, all of them in one pass over the centres.

.. math:: f_c(u) = \frac1N \sum_{y_i = c} e^{-\|u - u_i\|^2 / 2\sigma^2}, \qquad
          q_c = \frac{f_c}{\sum_b f_b}

On the unit sphere :math:`\|u-u_i\|^2 = 2 - 2\,u\cdot u_i`, so the posterior q is attention whose
values are the centres' classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from qipf.engines.contract import blocks
from qipf.layered.metric import Metric

#: Numbers in one block of kernel values, by kind of device: a CPU's cache, or a GPU's launch.
BLOCK = {"cpu": 2**21, "cuda": 2**28}

#: The smallest probability a field gives a class: it rules nothing out.
SMALLEST = 1e-30


class Judged(NamedTuple):
    """What the fields of a layer say of some rows."""

    posterior: Tensor  # (n, classes)  q
    log_density: Tensor  # (n,)  log of Σ_c f_c


class ClassField:
    """Centres on the unit sphere with their classes, under one kernel width."""

    def __init__(
        self,
        metric: Metric,
        units: Tensor,  # (N, d) the centres, as the metric maps them
        labels: Tensor,  # (N,) their classes
        classes: int,
        bandwidth: float,
    ) -> None:
        self.metric, self.units, self.labels = metric, units, labels
        self.classes, self.bandwidth = classes, bandwidth
        self._members = functional.one_hot(labels.long(), classes).to(units.dtype)

    def __call__(self, rows: Tensor) -> Judged:  # (n, D)
        """The classes' shares of the field at each row, and the field's height."""
        return next(self.judged(rows, [self.bandwidth]))

    def judged(self, rows: Tensor, bandwidths: list[float]) -> Iterator[Judged]:
        """As `__call__`, for several widths: the cosines are computed once for all."""
        size = max(1, BLOCK.get(rows.device.type, BLOCK["cpu"]) // len(self.units))
        parts: list[list[Judged]] = [[] for _ in bandwidths]
        for part in blocks(rows.shape[0], size):
            cosines = self.metric(rows[part]) @ self.units.T
            nearest = cosines.amax(1, keepdim=True)
            last = len(bandwidths) - 1
            for k, bandwidth in enumerate(bandwidths):
                parts[k].append(self._shares(cosines, nearest, bandwidth, spent=k == last))
        for found in parts:
            if not found:
                empty = self.units.new_zeros(0, self.classes)
                yield Judged(empty, empty.sum(1))
                continue
            posterior, log_density = (torch.cat(values) for values in zip(*found, strict=True))
            yield Judged(posterior, log_density)

    def _shares(self, cosines: Tensor, nearest: Tensor, bandwidth: float, spent: bool) -> Judged:
        inverse = 1 / (bandwidth * bandwidth)
        kernel = cosines.sub_(nearest) if spent else cosines - nearest
        kernel = kernel.mul_(inverse).exp_()  # of the nearest centre: 1
        by_class = kernel @ self._members
        total = by_class.sum(1, keepdim=True)
        height = (nearest[:, 0] - 1) * inverse + total[:, 0].log() - math.log(len(self.units))
        return Judged((by_class / total).clamp(min=SMALLEST), height)

    def to(self, device: torch.device) -> ClassField:
        """The same field on another device."""
        metric, units = self.metric.to(device), self.units.to(device)
        return ClassField(metric, units, self.labels.to(device), self.classes, self.bandwidth)
