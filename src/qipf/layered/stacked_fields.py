"""The fields of all layers at few rows, in batched operations.

For one prediction an operation takes longer to start than to run. Products are those of each layer,
whose arrays are not copied; what follows them is computed for all layers at once, in memory that is
padded to the same sizes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.layered.class_field import FEWEST_TILED, SMALLEST, ClassField
from qipf.layered.metric import unit_length, units_of

#: How many rows are few: of more, the kernels of all layers together do not fit in a cache.
FEW = 48


class StackedValues(NamedTuple):
    """Values of the fields of all layers."""

    posterior: Tensor  # (layers, n, classes)
    log_density: Tensor  # (layers, n)
    lengths: Tensor  # (layers, n) of the whitened rows, in float64


class StackedFields:
    """Values of several fields, as each of them gives alone."""

    def __init__(self, fields: Sequence[ClassField]) -> None:
        self.fields = tuple(fields)
        self._members = [field._members.T for field in fields]  # (N, classes) each
        self._dimensions = [field.embeddings.shape[1] for field in fields]
        self._counts = [len(field.embeddings) for field in fields]
        first = fields[0].embeddings
        inverse = torch.tensor([1 / (field.bandwidth * field.bandwidth) for field in fields])
        log_counts = torch.tensor([field._log_count for field in fields])
        self._inverse = inverse.to(first)[:, None, None]
        self._offset = (inverse + log_counts).to(first)[:, None]

    @classmethod
    def of(cls, fields: Sequence[ClassField]) -> "StackedFields | None":
        """None where the fields are better evaluated one by one."""
        if len(fields) < 2 or fields[0].embeddings.device.type != "cpu":
            return None
        small = all(len(f.embeddings) < FEWEST_TILED and f._few_classes for f in fields)
        return cls(fields) if small else None

    def __call__(self, rows: Sequence[Tensor]) -> StackedValues:  # (n, D) of each layer
        """Values of all layers at their rows."""
        whitened = self._memory(rows, self._dimensions, 0.0)
        for field, part, own, d in zip(self.fields, rows, whitened, self._dimensions, strict=True):
            metric = field.metric
            part = unit_length(part.float()) if metric.gain_free else part.float()
            torch.mm(part - metric.mean, metric.directions, out=own[:, :d])
        units, lengths = units_of(whitened)
        scores = self._memory(rows, self._counts, -math.inf)
        parts = zip(self.fields, units * self._inverse, scores, strict=True)
        for (field, unit, own), count in zip(parts, self._counts, strict=True):
            torch.mm(unit[:, : field.embeddings.shape[1]], field.embeddings.T, out=own[:, :count])
        kernel = torch.softmax(scores, 2)
        by_class = scores.new_empty(*scores.shape[:2], self.fields[0].classes)
        for own, members, count, sums in zip(
            kernel, self._members, self._counts, by_class, strict=True
        ):
            torch.mm(own[:, :count], members, out=sums)
        total = by_class.sum(2, keepdim=True)
        # relative to the sum of all kernels; its logarithm is that of the nearest over its share
        log_density = scores.amax(2) + (total[..., 0] / kernel.amax(2)).log() - self._offset
        return StackedValues((by_class / total).clamp(min=SMALLEST), log_density, lengths)

    def _memory(self, rows: Sequence[Tensor], sizes: list[int], padding: float) -> Tensor:
        """Memory (layers, n, largest size); what a layer does not use has the padding."""
        shape = (len(sizes), len(rows[0]), max(sizes))
        if len(set(sizes)) == 1:
            return self._inverse.new_empty(shape)
        return self._inverse.new_full(shape, padding)
