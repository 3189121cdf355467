"""The fields of all layers at few rows, in batched operations.

For one prediction an operation takes longer to start than to run. The layers are padded to the same
sizes: rows and directions with zeros, centres with zeros of no count.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from qipf.layered.class_field import FEWEST_TILED, SMALLEST, ClassField, FieldValues
from qipf.layered.metric import unit_length

#: How many rows are few; and most numbers of the padded centres, or directions, of all layers.
FEW, MOST_NUMBERS = 16, 2**20


class StackedFields:
    """Values of several fields, as each of them gives alone."""

    def __init__(self, fields: Sequence[ClassField]) -> None:
        self.layers = len(fields)
        metrics = [field.metric for field in fields]
        dimension = max(field.embeddings.shape[1] for field in fields)
        self._mean = pad_sequence([metric.mean for metric in metrics], batch_first=True)[:, None]
        self._directions = pad_sequence(
            [pad(m.directions, (0, dimension - m.directions.shape[1])) for m in metrics],
            batch_first=True,
        )  # (layers, D, d)
        gain_free = self._mean.new_tensor([metric.gain_free for metric in metrics])
        self._gain_free = gain_free.bool()[:, None, None] if gain_free.any() else None
        inverse = [1 / (field.bandwidth * field.bandwidth) for field in fields]
        self._inverse = self._mean.new_tensor(inverse)[:, None, None]
        centers = pad_sequence(
            [pad(f.embeddings, (0, dimension - f.embeddings.shape[1])) for f in fields],
            batch_first=True,
        )  # (layers, N, d)
        self._centers = centers.transpose(1, 2).contiguous()  # (layers, d, N)
        members = [field._members.T for field in fields]
        self._members = pad_sequence(members, batch_first=True).contiguous()  # (layers, N, classes)
        counts = [len(field.embeddings) for field in fields]
        self._absent = None
        if len(set(counts)) > 1:
            place = torch.arange(max(counts), device=centers.device)
            self._absent = place >= torch.tensor(counts, device=centers.device)[:, None, None]
        log_counts = torch.tensor([field._log_count for field in fields])
        self._offset = self._inverse[..., 0] + log_counts.to(self._mean)[:, None]

    @classmethod
    def of(cls, fields: Sequence[ClassField]) -> "StackedFields | None":
        """None where the fields are better evaluated one by one."""
        if len(fields) < 2 or fields[0].embeddings.device.type != "cpu":
            return None
        centers = max(len(field.embeddings) for field in fields)
        widest = max(field.embeddings.shape[1] for field in fields)
        numbers = len(fields) * centers * max(widest, fields[0].classes)
        return cls(fields) if centers < FEWEST_TILED and numbers <= MOST_NUMBERS else None

    def __call__(self, rows: Sequence[Tensor]) -> FieldValues:  # (n, D) of each layer
        """Posteriors (layers, n, classes) and log densities (layers, n)."""
        joint = pad_sequence([part.float().T for part in rows], batch_first=True).transpose(1, 2)
        if self._gain_free is not None:
            joint = torch.where(self._gain_free, unit_length(joint), joint)
        units = unit_length((joint - self._mean) @ self._directions)
        scores = (units * self._inverse) @ self._centers  # (layers, n, N)
        if self._absent is not None:
            scores = scores.masked_fill(self._absent, -math.inf)
        kernel = torch.softmax(scores, 2)
        by_class = kernel @ self._members
        total = by_class.sum(2, keepdim=True)
        # relative to the sum of all kernels; its logarithm is that of the nearest over its share
        log_density = scores.amax(2) + (total[..., 0] / kernel.amax(2)).log() - self._offset
        return FieldValues((by_class / total).clamp(min=SMALLEST), log_density)
