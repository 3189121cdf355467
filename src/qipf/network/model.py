"""What all models around a network share: calls, calibration by a loader, export."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from qipf.calibration.accept_rule import AcceptRule
from qipf.calibration.mixin import CalibrationMixin, Prediction
from qipf.errors import QIPFInputError
from qipf.export.onnx import Expected, OnnxFile, checked_path, expected, write_onnx
from qipf.export.program import Example, checked_example, traced
from qipf.network.batches import batches, few_rows, mapped
from qipf.network.forward import device_of, evaluating, fingerprint, unchanged
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from typing_extensions import Self


class Scores(NamedTuple):
    """Outputs of the network for a batch, and the uncertainty of its predictions."""

    logits: Tensor  # (n, classes)
    uncertainty: Tensor  # (n,)
    probabilities: Tensor | None = None  # (n, classes)


class NetworkModel(CalibrationMixin, ABC):
    """A trained network and a score for its predictions.

    The network runs in evaluation mode and is left as it was: mode, gradients and hooks. Threads
    that call one network at the same time wait for each other.

    A model defines `fit`, `_scores`, `_graph`, `facts`, `state` and `from_state`. `fit` ends
    with `_set_fitted`.
    """

    net: nn.Module

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.fitted_with: str | None = None  # fingerprint of the network's weights at `fit`
        self._example: Example | None = None  # inputs that `fit` has seen, for export

    @abstractmethod
    def fit(self, loader: Iterable[Any]) -> "Self":
        """Fit to the network's training data."""

    @abstractmethod
    def _scores(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Scores:
        """Run the network, which is in evaluation mode, and score its predictions."""

    @abstractmethod
    def _graph(
        self, example: Example, rule: AcceptRule | None, max_centers: int | None
    ) -> tuple[nn.Module, dict[str, Any]]:
        """The model as a module of plain tensor operations, and what a file says about it."""

    def __call__(self, *inputs: Any, **options: Any) -> Prediction:
        """Run the network and score each prediction; arguments are the network's inputs."""
        found = self._scored(inputs, options)
        return self._prediction(found.logits, found.uncertainty, found.probabilities)

    def uncertainty(self, *inputs: Any, **options: Any) -> Tensor:  # (n,)
        """Uncertainty of each prediction; higher is less trustworthy."""
        return self._scored(inputs, options).uncertainty

    def p_values(self, *inputs: Any, **options: Any) -> Tensor:  # (n,)
        """Conformal p-value of each prediction; small is unusual.

        For a prediction like those of the calibration set, P(p ≤ t) ≤ t for every t; see
        `qipf.Calibration`.
        """
        p_values: Tensor = self._p_values(self.uncertainty(*inputs, **options))
        return p_values

    def accepts(self, *inputs: Any, **options: Any) -> Tensor:  # (n,)
        """True where the accept rule accepts the prediction, false where it abstains."""
        accepted: Tensor = self._accepted(self.uncertainty(*inputs, **options))
        return accepted

    def __repr__(self) -> str:
        about = [type(self.net).__name__]
        try:
            self._require_fitted()
        except QIPFNotFittedError:
            about.append("not fitted")
        if self.calibration_ is not None:
            about.append(f"calibrated on {len(self.calibration_):,} predictions")
        if self.detection_ is not None:
            about.append(f"error detection: {self.detection_}")
        if self.rule_ is not None:
            about.append(f"accepts {self.rule_.coverage:.1%}")
        return f"{type(self).__name__}({', '.join(about)})"

    def _scored(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Scores:
        self._require_fitted()
        if any(isinstance(part, np.ndarray) for part in (*inputs, *options.values())):
            raise QIPFInputError(
                "A network takes tensors, got a NumPy array. Pass torch.from_numpy(inputs)."
            )
        inputs, options = self._place((inputs, options))
        with evaluating(self.net):
            return self._scores(inputs, options)

    def calibrate(self, loader: Iterable[Any]) -> "Self":
        """Keep the uncertainties of held-out data, for p-values and accept rules.

        Batches as in `fit`, with labels for `accept_rule` and accuracy estimates. The data must
        not have been used to train the network or to fit the model.
        """
        self._require_fitted()
        unchanged(self.net, self.fitted_with)
        logits, scores, errors = [], [], []
        with torch.no_grad():
            for batch in batches(loader, "calibrate", "reading predictions"):
                found = self._scored(batch.inputs, batch.options)
                wrong = batch.errors(found.logits)
                logits.append(found.logits.cpu())
                scores.append(found.uncertainty.cpu())
                errors += [] if wrong is None else [wrong.cpu()]
        if not scores or not sum(map(len, scores)):
            raise QIPFInputError("The loader is empty: calibrate needs at least one prediction.")
        self._set_calibration(
            torch.cat(scores), torch.cat(errors) if errors else None, torch.cat(logits)
        )
        return self

    def export_onnx(
        self,
        path: Path | str,
        example: Any = None,
        *,
        rule: AcceptRule | None = None,
        max_centers: int | None = None,
        check: bool = True,
    ) -> OnnxFile:
        """Write the network and its uncertainty as one ONNX file, for a batch of any length.

        Parameters
        ----------
        path : the file, ``.onnx``; written atomically, after the check.
        example : a batch of the network's inputs: a tensor, a tuple of several, or a dict of
            keyword inputs. By default a few inputs that `fit` has seen.
        rule : its threshold adds the output ``accepted``; by default the model's own, if any.
        max_centers : condense the field to so many weighted centres, for a smaller, faster file;
            not for `LayeredQIPF`, which takes ``reduction="coreset"`` instead.
        check : run the file in ONNX Runtime, if installed, and compare with PyTorch.

        The outputs are ``logits``, ``uncertainty`` and more; see docs/export.md.
        """
        path = checked_path(path)
        program, few, metadata = self._traced(example, rule, max_centers)
        metadata["fingerprint"] = unchanged(self.net, self.fitted_with)
        want = self._expected(few, max_centers) if check else None
        return write_onnx(program, few.tensors, metadata, path, want)

    def export(
        self, example: Any = None, *, rule: AcceptRule | None = None, max_centers: int | None = None
    ) -> ExportedProgram:
        """The same graph as a `torch.export` program; ``program.module()(inputs)`` gives a dict.

        Parameters as in `export_onnx`.
        """
        return self._traced(example, rule, max_centers)[0]

    def _traced(
        self, example: Any, rule: AcceptRule | None, max_centers: int | None
    ) -> tuple[ExportedProgram, Example, dict[str, Any]]:
        self._require_fitted()
        if example is None and self._example is None:
            raise QIPFInputError(
                "This model has seen no inputs: it was loaded, or its field was fitted elsewhere. "
                "Pass example=<a batch of the network's inputs>."
            )
        few = checked_example(self._example if example is None else example, self, self._place)
        graph, metadata = self._graph(few, rule, max_centers)
        with evaluating(graph), evaluating(self.net):
            return traced(graph, few.tensors.values()), few, metadata

    def _expected(self, few: Example, max_centers: int | None) -> Expected:
        with torch.no_grad():
            found = self._scored(few.inputs, few.options)
        return expected(found.uncertainty, found.logits)

    def _place(self, values: Any) -> Any:
        """The values with all tensors on the network's device."""
        device = device_of(self.net)
        return mapped(values, lambda tensor: tensor.to(device))

    def _set_fitted(self, example: tuple[tuple[Any, ...], dict[str, Any]] | None) -> None:
        self._clear_calibration()
        self.fitted_with = fingerprint(self.net)
        self._example = None if example is None else Example(*mapped(example, few_rows))

    def _require_module(self) -> None:
        if not isinstance(self.net, nn.Module):
            raise QIPFInputError(f"net must be a torch.nn.Module, got {type(self.net).__name__}.")
