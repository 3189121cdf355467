"""Scores of logits and layer rows on one device, without synchronising with it in between."""

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.field.engines.base import blocks, full_precision
from qipf.layered.class_field import ClassField, FieldValues
from qipf.layered.error_model import ErrorModel, Evidence
from qipf.layered.fused_evidence import FusedEvidence, prepared
from qipf.layered.mixture import evidence_of, posteriors_of, rows_at_once
from qipf.layered.novelty import NoveltyModel, RowLengths
from qipf.layered.replays import Replays
from qipf.layered.stacked_layers import StackedLayers
from qipf.network.features import LayerSite, Rows
from qipf.network.replaying import allowed

#: Most rows at once in fused kernels, and in a CUDA graph.
PART, IN_GRAPH = 2**15, 2**11


class RowScores(NamedTuple):
    """Scores of a layered model for some predictions."""

    uncertainty: Tensor  # (n,)
    novelty: Tensor  # (n,)
    p_error: Tensor  # (n,) probability of an error
    probabilities: Tensor  # (n, classes) of the mixture
    checksum: Tensor  # () finite only if all logits, rows and scores are

    @classmethod
    def of(cls, scores: Tensor, probabilities: Tensor, checksum: Tensor) -> "RowScores":
        """From what `Scorer.scores` returns."""
        uncertainty, novelty, p_error = scores
        return cls(uncertainty, novelty, p_error, probabilities, checksum)


class FieldEvidence(NamedTuple):
    """Posteriors and log densities of the fields, and lengths of the rows."""

    posteriors: Tensor  # (n, 1 + layers, classes) that of the softmax first
    densities: Tensor  # (n, layers) logarithms
    lengths: Tensor  # (n, lengths) logarithms


class Scorer:
    """Fields, mixture weights and both scores, prepared on a device."""

    def __init__(
        self,
        fields: Mapping[LayerSite, ClassField],
        weights: Tensor,  # (1 + layers,)
        error: ErrorModel,
        lengths: RowLengths,
        novelty: NoveltyModel,
        device: torch.device,
    ) -> None:
        self.fields = {
            site: field if field.embeddings.device == device else field.to(device)
            for site, field in fields.items()
        }
        self.lengths = lengths.to(device)
        self._stacked = StackedLayers.of(self.fields, self.lengths)
        if self._stacked is not None:
            self.fields, self.lengths = self._stacked.fields, self._stacked.lengths
        self._made_of = (tuple(self.fields.values()), weights, error, self.lengths, novelty)
        self.sites = self.lengths.read_beside(self.fields)
        #: Widths of the rows of each layer that is read.
        self.widths = {site: field.metric.mean.shape[0] for site, field in self.fields.items()}
        self.widths |= self.lengths.widths  # of layers without a field too
        self.weights = weights.double().to(device)
        self.error, self.novelty = error.to(device), novelty.to(device)
        self.device, self.replays, self.network_replays = device, Replays(), Replays()

    def is_of(self, device: torch.device, *parts: object) -> bool:
        """Whether it was made for this device, and is of these fields, weights and scores."""
        same = (one is other for one, other in zip(self._made_of[1:], parts[1:], strict=True))
        return self.device == device and self._made_of[0] == parts[0] and all(same)

    @cached_property
    def _kernels(self) -> FusedEvidence | None:
        models = self.error, self.novelty
        return prepared(self.fields, self.weights, self.lengths, models, self.device)

    def _fused(self, logits: Tensor) -> FusedEvidence | None:
        """The evidence in CUDA kernels; None where they cannot run."""
        return None if logits.dtype == torch.float64 else self._kernels

    def posteriors(self, logits: Tensor, rows: Rows) -> FieldEvidence:
        """Posteriors and log densities of the fields, and lengths of the rows."""
        fields = self.fields.values()
        with full_precision(logits.device):
            found = None if self._stacked is None else self._stacked(rows)
            if found is not None:
                values = [FieldValues(*each) for each in zip(*found[:2], strict=True)]
                densities, lengths = found.log_density.T, found.lengths
            else:
                units = {site: f.metric.units(rows[site]) for site, f in self.fields.items()}
                own = zip(fields, units.values(), strict=True)
                values = [field.at_units(unit.vectors) for field, unit in own]
                none = logits.new_zeros(len(logits), 0)
                densities = torch.cat([none, *(each.log_density[:, None] for each in values)], 1)
                within = {site: unit.lengths for site, unit in units.items()}
                lengths = self.lengths(logits, rows, within)
            return FieldEvidence(posteriors_of(logits, fields, values), densities.double(), lengths)

    def __call__(self, logits: Tensor, rows: Rows) -> RowScores:  # (n, classes)
        """Both scores of each prediction, and the probabilities of the mixture."""
        inputs = (logits, *(rows[site] for site in self.sites))
        found = None
        if logits.is_cuda and 0 < len(logits) <= IN_GRAPH and self._fused(logits) and allowed():
            found = self.replays(self.scores, inputs)
        return RowScores.of(*(found or self.scores(*inputs)))

    def scores(self, logits: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Uncertainty, novelty and p_error (3, n), the mixture's probabilities, the checksum.

        In parts: with many classes the posteriors take much more memory than their mixture.
        """
        fused = self._fused(logits)
        size = PART if fused else rows_at_once(len(self.weights), logits.shape[1])
        compute = fused.scores if fused else self._scores
        parts = []
        for part in blocks(max(1, len(logits)), size):
            whole = len(logits) <= size
            own = rows if whole else [row[part] for row in rows]
            values = logits if whole else logits[part]
            parts.append(compute(values, dict(zip(self.sites, own, strict=True))))
        if len(parts) == 1:
            return parts[0]
        scores, probabilities, checksums = zip(*parts, strict=True)
        return torch.cat(scores, 1), torch.cat(probabilities), torch.stack(checksums).sum()

    def evidence(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Evidence]:
        """The mixture's probabilities (n, classes), and what both scores are computed from."""
        return self.evidence_of(logits, self.posteriors(logits, rows))

    def evidence_of(self, logits: Tensor, found: FieldEvidence) -> tuple[Tensor, Evidence]:
        """As `evidence`, from what `posteriors` returns."""
        posteriors, densities, lengths = found
        probabilities, evidence = evidence_of(logits, posteriors, densities, self.weights)
        return probabilities, evidence.beside(lengths)

    def _scores(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        probabilities, evidence = self.evidence(logits, rows)
        uncertainty = self.error(evidence)
        novelty = self.novelty(evidence)
        scores = torch.stack([uncertainty, novelty, torch.sigmoid(uncertainty)])
        # of a row with NaN or infinity both scores are NaN
        return scores, probabilities, scores.sum() + logits.sum()
