"""The fields of layers as modules of plain tensor operations, with a network or without."""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from qipf.calibration.rule import within
from qipf.export.program import ExactConstants, Example
from qipf.layered.class_field import ClassField
from qipf.layered.error_model import ErrorModel
from qipf.layered.mixture import evidence_of, posteriors_of
from qipf.layered.novelty import NoveltyModel, RowLengths
from qipf.network.features import LayerSite, Rows, attention_mask, run_once
from qipf.network.forward import device_of
from qipf.network.pooling import pooled_features
from qipf.network.tasks import single_logits
from qipf.validation.labels import class_logits


class MixtureGraph(nn.Module):
    """Scores of logits and rows of layers, for graphs that get them from somewhere.

    A row with NaN or infinity in its logits or layers gets NaN as its uncertainty and is not
    accepted. A batch needs memory for a matrix of its rows times the centres for every layer.
    """

    def __init__(
        self,
        fields: Mapping[LayerSite, ClassField],
        weights: Tensor,  # (1 + layers,)
        scores: tuple[ErrorModel, RowLengths, NoveltyModel],
        limits: Mapping[str, float],  # of an accept rule; empty without one
        device: torch.device,
    ) -> None:
        super().__init__()
        self._limits = dict(limits)
        self._fields = {site: field.to(device) for site, field in fields.items()}
        self.weights: Tensor
        self.register_buffer("weights", weights.to(device))
        error, lengths, novelty = scores
        self._error, self._lengths = error.to(device), lengths.to(device)
        self._novelty = novelty.to(device)

    def scored(self, logits: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Logits (n, classes), and in float64 the scores (n,) and probabilities (n, classes)."""
        units = {site: field.metric.units(rows[site]) for site, field in self._fields.items()}
        values = [field.in_one(units[site].vectors) for site, field in self._fields.items()]
        whitened = {site: own.lengths for site, own in units.items()}
        with ExactConstants():
            posteriors = posteriors_of(logits, self._fields.values(), values)
            none = torch.zeros_like(logits[:, :0]).double()
            densities = torch.cat([none, *(v.log_density[:, None].double() for v in values)], 1)
            probabilities, evidence = evidence_of(logits, posteriors, densities, self.weights)
            evidence = evidence.beside(self._lengths(logits, rows, whitened))
            uncertainty = self._error(evidence)
            novelty = self._novelty(evidence)
            finite = torch.isfinite(logits).all(1)
            for read in rows.values():
                finite = finite & torch.isfinite(read).all(1)
            uncertainty, novelty = (
                torch.where(finite, score, torch.full_like(score, math.nan))
                for score in (uncertainty, novelty)
            )
            results = {
                "logits": logits,
                "uncertainty": uncertainty,
                "probabilities": probabilities,
                "p_error": torch.sigmoid(uncertainty),
                "novelty": novelty,
            }
            if self._limits:
                results["accepted"] = within(uncertainty, novelty, **self._limits)
        return results


class LayersGraph(MixtureGraph):
    """Inputs of a network to logits, scores, probabilities and, with limits, accepted.

    The inputs stand for the tensors of the example, in their order.
    """

    def __init__(
        self,
        net: nn.Module,
        fields: Mapping[LayerSite, ClassField],
        weights: Tensor,  # (1 + layers,)
        scores: tuple[ErrorModel, RowLengths, NoveltyModel],
        example: Example,
        limits: Mapping[str, float],
    ) -> None:
        super().__init__(fields, weights, scores, limits, device_of(net))
        self.net, self._example = net, example
        self._sites = scores[1].read_beside(fields)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """The network's logits and their scores."""
        filled = self._example.filled(tensors)
        run = partial(self.net, *filled.inputs, **filled.options)
        sites, mask = self._sites, attention_mask(filled)
        output, rows = run_once(self.net, run, sites, mask=mask)
        return self.scored(single_logits(output), rows)


class FeaturesGraph(MixtureGraph):
    """Logits, and features of each layer, to the same outputs without the logits."""

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Scores of the logits, which are first; features are in the order of the fields."""
        logits, *features = tensors
        rows = (pooled_features(value) for value in features)
        results = self.scored(class_logits(logits), dict(zip(self._fields, rows, strict=True)))
        del results["logits"]  # an ONNX graph has no two values of one name
        return results
