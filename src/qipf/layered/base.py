"""What models with fields of layers share: their mixture at rows of the layers, and its summary."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qipf.calibration.mixin import CalibrationMixin
from qipf.calibration.rule import AcceptRule
from qipf.errors import QIPFInputError, unknown_name
from qipf.layered.class_field import ClassField
from qipf.layered.distillation import distilled_size
from qipf.layered.effort import EFFORTS
from qipf.layered.error_model import ErrorModel
from qipf.layered.explanation import Explanation, explanations
from qipf.layered.mixture_fit import MOST_LAYERS
from qipf.layered.novelty import NoveltyModel, RowLengths, named_terms
from qipf.layered.scorer import FieldEvidence, RowScores, Scorer
from qipf.layered.state import LARGEST_SIZE, REDUCTIONS
from qipf.network.features import LayerSite, Rows
from qipf.validation.arrays import require_finite, usable_rows
from qipf.validation.parameters import (
    LARGEST_SEED,
    is_integer,
    propagates,
    require_positive_integer,
)

#: Default of `max_centers`, and number of examples that are condensed to fewer centres.
MOST_EXAMPLES = 60_000


class LayeredModel(CalibrationMixin):
    """Fields of layers, the weights of their mixture, and the scores.

    Attributes
    ----------
    layers_ : the layer sites that are read.
    fields_ : the layers' fields.
    weights_ : mixture weights of the softmax, first, and of the layers; they sum to one.
    error_model_ : uncertainty from the log-odds of the mixture, the softmax and the layers.
    lengths_ : the layers whose rows' lengths are read for the novelty, and how.
    novelty_model_ : novelty from the energy, the layers' log densities, lengths and the mixture.
    """

    layers_: tuple[LayerSite, ...]
    fields_: tuple[ClassField, ...]
    weights_: Tensor  # (1 + layers,)
    error_model_: ErrorModel
    lengths_: RowLengths
    novelty_model_: NoveltyModel

    drawn_as = "qipf_plus"

    layers: Any
    max_centers: int
    reduction: str
    max_dimension: int
    max_tuning: int
    effort: str
    random_state: int

    def layer_fields(self) -> dict[LayerSite, ClassField]:
        """The fields by layer site."""
        return dict(zip(self.layers_, self.fields_, strict=True))

    def _sites_read(self) -> tuple[LayerSite, ...]:
        """The layers with fields, and those whose lengths alone are read."""
        return self.lengths_.read_beside(self.layers_)

    def _check_sizes(self) -> None:
        """Raise `QIPFInputError` for parameters that no model can be fitted with."""
        for name in ("max_centers", "max_dimension", "max_tuning"):
            require_positive_integer(getattr(self, name), name)
            if getattr(self, name) >= LARGEST_SIZE:
                raise QIPFInputError(
                    f"{name} must be less than {LARGEST_SIZE}, got {getattr(self, name)!r:.80}."
                )
        if not is_integer(self.random_state) or not 0 <= self.random_state < LARGEST_SEED:
            raise QIPFInputError(
                f"random_state must be an integer from 0 to {LARGEST_SEED - 1}, got "
                f"{self.random_state!r}."
            )
        if not isinstance(self.reduction, str) or self.reduction not in REDUCTIONS:
            raise unknown_name("reduction", self.reduction, REDUCTIONS)
        if not isinstance(self.effort, str) or self.effort not in EFFORTS:
            raise unknown_name("effort", self.effort, EFFORTS)
        propagates(self.nan_policy)

    def _examples(self) -> int:
        """Number of training examples to keep."""
        centers = int(self.max_centers)
        return centers if self.reduction == "random" else max(centers, MOST_EXAMPLES)

    def _condensed(self, classes: int) -> int | None:
        """Number of centres that a layer's examples are condensed to; None for all of them."""
        centers = int(self.max_centers)
        if self._distillation_seed() is not None and centers == MOST_EXAMPLES:
            return distilled_size(classes)
        return None if self.reduction == "random" else centers

    def _most_tuning(self) -> int:
        """Largest number of examples to hold out."""
        return min(int(self.max_tuning), EFFORTS[self.effort].tuning)

    def _distillation_seed(self) -> int | None:
        return int(self.random_state) if self.reduction in ("auto", "distilled") else None

    def _most_layers(self) -> int | None:
        return None if self._distillation_seed() is None else MOST_LAYERS

    def _scorer(self, device: torch.device) -> Scorer:
        """What scores on this device; prepared once.

        Fields and lengths become those that it holds, on the device; on a CPU they share memory.
        """
        scores = (self.error_model_, self.lengths_, self.novelty_model_)
        parts = (self.fields_, self.weights_, *scores)
        scorer: Scorer | None = self.__dict__.get("_prepared")
        if scorer is None or not scorer.is_of(device, *parts):
            scorer = Scorer(self.layer_fields(), *parts[1:], device)
            self.fields_, self.lengths_ = tuple(scorer.fields.values()), scorer.lengths
            self._prepared = scorer
        return scorer

    def _row_scores(self, logits: Tensor, rows: Rows) -> RowScores:
        return self._scorer(logits.device)(logits, rows)

    def _checked_scores(
        self, logits: Tensor, rows: Rows, given: str
    ) -> tuple[RowScores, Tensor | None]:
        """Scores, and the mask of predictions that `nan_policy` leaves out.

        Raises for rows or classes that the fields do not have. NaN and infinity are looked for only
        if the sum of all scores is not finite, which is the only time that a GPU is waited for.
        """
        self._check_widths(logits, rows)
        found = self._row_scores(logits, rows)
        if math.isfinite(float(found.checksum)):
            return found, None
        logits, rows, missing = self._usable(logits, rows, given)
        return found if missing is None else self._row_scores(logits, rows), missing

    def _explained(
        self, logits: Tensor, rows: Rows, found: FieldEvidence, nearest: int
    ) -> list[Explanation]:
        scorer, scores = self._scorer(logits.device), (self.error_model_, self.novelty_model_)
        return explanations(
            logits,
            rows,
            found.posteriors,
            scorer.evidence_of(logits, found),
            scorer.weights,
            scores,
            self.layer_fields(),
            nearest,
            partial(self._p_values, score="novelty") if self._ranks_novelty else None,
        )

    def _usable(self, logits: Tensor, rows: Rows, given: str) -> tuple[Tensor, Rows, Tensor | None]:
        """Logits, rows, and the mask of predictions that `nan_policy` leaves out.

        Raises for rows or classes that the fields do not have.
        """
        self._check_widths(logits, rows)
        if propagates(self.nan_policy):
            (logits, *filled), missing = usable_rows([logits, *rows.values()])
            return logits, dict(zip(rows, filled, strict=True)), missing
        require_finite(logits, f"The {given} for these inputs")
        for site in self._sites_read():
            require_finite(rows[site], f"{site} for these inputs")
        return logits, rows, None

    def _check_widths(self, logits: Tensor, rows: Rows) -> None:
        for site, width in self._scorer(logits.device).widths.items():
            if rows[site].shape[1] != width:
                raise QIPFInputError(
                    f"{site} gives {rows[site].shape[1]} numbers; the model was fitted with "
                    f"{width}. Pass inputs of the same size as in fit, or fit again."
                )
        if self.fields_ and self.fields_[0].classes != logits.shape[1]:
            raise QIPFInputError(
                f"There are {logits.shape[1]} logits; the model was fitted with "
                f"{self.fields_[0].classes}. Pass the same classes as in fit, or fit again."
            )

    def _graph_metadata(self, rule: AcceptRule | None, max_centers: int | None) -> dict[str, Any]:
        """What an exported file says about the model; its limits, if there is a rule."""
        if max_centers is not None:
            raise QIPFInputError(
                "max_centers= is for fields of logits. For a smaller file fit "
                f"{type(self).__name__}(..., max_centers=500): a layer has 1,500 by default."
            )
        metadata: dict[str, Any] = {
            "centers": max((len(field.embeddings) for field in self.fields_), default=0),
            "layers": tuple(map(str, self.layers_)),
            "weights": tuple(self.weights_.tolist()),
            "error_model": self.error_model_.parameters(),
            "novelty_model": self.novelty_model_.parameters(),
        }
        return metadata | self._limits(rule)

    def facts(self) -> dict[str, str]:
        """Lines of the summary, by name."""
        layers = [
            f"{site}, weight {weight:.3f}, {len(field.embeddings):,} "
            f"{'weighted ' if bool((field.counts != 1).any()) else ''}centres, bandwidth "
            f"{field.bandwidth:.4g}, {len(field.metric.mean)} numbers projected to "
            f"{field.embeddings.shape[1]}"
            for (site, field), weight in zip(
                self.layer_fields().items(), self.weights_.tolist()[1:], strict=True
            )
        ]
        names = ("layers", "max_centers", "reduction", "max_dimension", "max_tuning", "effort")
        error, novelty = self.error_model_, self.novelty_model_.log_odds
        last = f"-log density of {self.layers_[-1]}" if self.layers_ else None
        columns = ("constant", "mixture", "softmax", *map(str, self.layers_))
        return {
            "kind": "fields of layers",
            "softmax": f"weight {float(self.weights_[0]):.3f}",
            "layers": "\n".join(layers) or "none",
            "uncertainty": "near the training data "
            + _listed(zip(columns, error.near.parameters(), strict=True))
            + "; far from it "
            + _listed(zip(columns[:2], error.far.parameters(), strict=True)),
            "novelty": _listed(named_terms(novelty.parameters(), last)),
            "parameters": ", ".join(f"{name}={getattr(self, name)}" for name in names),
        }


def _listed(terms: Iterable[tuple[str, float]]) -> str:
    """The parameters of a score that are not zero, with their names."""
    return ", ".join(f"{value:.3g} {name}" for name, value in terms if value)
