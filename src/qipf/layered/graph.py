"""A network with the fields of its layers, as a module of plain tensor operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qipf.field.graph import ExactConstants
from qipf.layered import LayeredQIPF
from qipf.layered.mixture import log_odds_of_error, mixed
from qipf.layered.posteriors import completed
from qipf.network.forward import device_of
from qipf.network.reading import passed


class LayersGraph(nn.Module):
    """Inputs in; logits, uncertainty and probabilities out.

    A row with NaN or infinity in its logits or layers, which `LayeredQIPF` would refuse, has NaN as
    its uncertainty. One batch holds a matrix of its rows times the centres for every layer.
    """

    def __init__(self, model: LayeredQIPF) -> None:
        super().__init__()
        device = device_of(model.net)
        self.net = model.net
        self._fields = {site: field.to(device) for site, field in model._fields().items()}
        self.weights: Tensor
        self.register_buffer("weights", model._weights(device))

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Logits (n, classes); uncertainty (n,) and probabilities (n, classes) in float64."""
        logits, rows = passed(self.net, inputs, tuple(self._fields))
        judged = {site: field.in_one(rows[site]) for site, field in self._fields.items()}
        with ExactConstants():
            softmax = torch.softmax(logits.double(), 1)
            posteriors = [
                completed(judged[site].posterior, field, softmax)
                for site, field in self._fields.items()
            ]
            probabilities = mixed(torch.stack([softmax, *posteriors], 1), self.weights)
            uncertainty = log_odds_of_error(probabilities, logits.argmax(1))
            finite = torch.isfinite(logits).all(1)
            for read in rows.values():
                finite = finite & torch.isfinite(read).all(1)
            uncertainty = torch.where(finite, uncertainty, torch.full_like(uncertainty, math.nan))
        return {"logits": logits, "uncertainty": uncertainty, "probabilities": probabilities}
