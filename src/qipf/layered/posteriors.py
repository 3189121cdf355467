"""What the softmax and every layer think of the class."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qipf.layered.class_field import ClassField
from qipf.network.features import LayerSite, Rows


def posteriors_of(
    logits: Tensor,  # (n, classes)
    rows: Rows,
    fields: Mapping[LayerSite, ClassField],
) -> tuple[Tensor, Tensor]:  # (n, 1 + layers, classes), (n, layers)
    """What the softmax, first, and the layers think of the class; how high the fields are."""
    softmax = torch.softmax(logits.double(), 1)
    judged = {site: field(rows[site]) for site, field in fields.items()}
    parts = [completed(judged[site].posterior, field, softmax) for site, field in fields.items()]
    heights = [found.log_density[:, None] for found in judged.values()]
    none = logits.new_zeros(len(logits), 0)
    return torch.stack([softmax, *parts], 1), torch.cat([none, *heights], 1).double()


def completed(
    posterior: Tensor,  # (n, classes) a layer's
    field: ClassField,
    softmax: Tensor,  # (n, classes)
) -> Tensor:  # (n, classes)
    """A layer's posterior on all classes: those it has no centres of it leaves to the softmax."""
    posterior = posterior.double()
    if field.complete:
        return posterior
    left = torch.where(field.known, 0.0, softmax)
    return torch.where(field.known, posterior * (1 - left.sum(1, keepdim=True)), softmax)
