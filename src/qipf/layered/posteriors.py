"""Class probabilities of the softmax and of every layer."""

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
    """Posteriors of the softmax, first, and of the layers; log densities of the layers' fields."""
    softmax = torch.softmax(logits.double(), 1)
    found = {site: field(rows[site]) for site, field in fields.items()}
    posteriors = [
        completed(found[site].posterior, field, softmax) for site, field in fields.items()
    ]
    densities = [values.log_density[:, None] for values in found.values()]
    none = logits.new_zeros(len(logits), 0)
    return torch.stack([softmax, *posteriors], 1), torch.cat([none, *densities], 1).double()


def completed(
    posterior: Tensor,  # (n, classes) a layer's
    field: ClassField,
    softmax: Tensor,  # (n, classes)
) -> Tensor:  # (n, classes)
    """A layer's posterior of all classes; those without centres have the softmax's probability."""
    posterior = posterior.double()
    if field.complete:
        return posterior
    left = torch.where(field.known, 0.0, softmax)
    return torch.where(field.known, posterior * (1 - left.sum(1, keepdim=True)), softmax)
