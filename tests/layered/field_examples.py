"""Rows of three classes that overlap, and their fields."""

import torch
from torch.nn import functional

from qipf.layered.class_field import ClassField
from qipf.layered.distillation import clustered_field
from qipf.layered.metric import Metric

PLAIN = Metric(torch.zeros(6), torch.eye(6), False)


def drawn(count, seed):
    """Rows of three classes that overlap, and their labels."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=random)
    rows = torch.randn(count, 6, generator=random)
    rows[torch.arange(count), labels] += 1.5
    return rows, labels


def whole(count=600, seed=0, bandwidth=0.3):
    rows, labels = drawn(count, seed)
    order = labels.argsort(stable=True)
    embeddings = functional.normalize(rows[order], dim=1)
    return ClassField(PLAIN, embeddings, labels[order], 3, bandwidth, order + 1000)


def clustered(full, size, seed=0):
    return clustered_field(full, size, torch.Generator().manual_seed(seed))
