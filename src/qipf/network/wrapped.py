"""wrap(): a network together with the field of its own predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sklearn.base import clone
from torch import Tensor, nn

from qipf.errors import QIPFInputError, unknown_name
from qipf.field.estimator import QIPF
from qipf.field.parameters import check_parameters
from qipf.network.batches import errors_in, few_rows, length_of, mapped, tensors_in, unpacked
from qipf.network.forward import (
    NoProbabilities,
    captured,
    device_of,
    evaluating,
    fingerprint,
    logits_of,
    named_layer,
)
from qipf.progress import progress
from qipf.validation.arrays import require_finite
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from qipf.calibration.rule import AcceptRule
    from qipf.export import OnnxFile

#: How the output of a layer becomes one row per example.
POOLINGS = ("mean", "flatten")


@dataclass(frozen=True)
class Prediction:
    """What a wrapped network says of a batch, and how far to trust it."""

    logits: Tensor  # (n, classes)
    labels: Tensor  # (n,) the class of the largest logit
    uncertainty: Tensor  # (n,) higher = less to be trusted
    accepted: Tensor | None = None  # (n,) true where the field's accept rule, if any, accepts


def wrap(
    net: nn.Module,
    layer: str | None = None,
    *,
    field: QIPF | None = None,
    pooling: str | Callable[[Tensor], Tensor] = "mean",
) -> WrappedModel:
    """Put a field around a trained network; fit it with a loader of training data.

    Parameters
    ----------
    net : any module whose output is logits (n, classes): a tensor, the first element of a tuple,
        the entry ``"logits"`` of a dict, or the attribute ``.logits`` of an object.
    layer : judge by the output of this named layer instead of by the logits.
    field : an unfitted `QIPF` with the parameters to use.
    pooling : how a layer's output of several dimensions becomes one row per example. ``"mean"``
        averages over positions: (n, channels, height, width, …) over everything after the
        channels, (n, tokens, channels) over the tokens; what a layer such as ``Conv1d`` or
        ``BatchNorm1d`` gives has its channels first. ``"flatten"`` keeps every number. Or a
        function from the layer's output to (n, d).

    >>> net = nn.Linear(4, 3)
    >>> inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    >>> model = wrap(net).fit(inputs.split(16))
    >>> model(inputs[:5]).uncertainty.shape
    torch.Size([5])
    """
    if not isinstance(net, nn.Module):
        raise QIPFInputError(f"net must be a torch.nn.Module, got {type(net).__name__}.")
    if layer is not None:
        named_layer(net, layer)
    if field is not None and not isinstance(field, QIPF):
        raise QIPFInputError(f"field must be a QIPF, such as QIPF(orders=(1, 2)), got {field!r}.")
    if not callable(pooling) and pooling not in POOLINGS:
        raise unknown_name("pooling", pooling, POOLINGS)
    return WrappedModel(net, layer, QIPF() if field is None else field, pooling)


class _Predicted(NamedTuple):
    """A batch of a loader, and what the network says of it."""

    inputs: tuple[Any, ...]
    options: dict[str, Any]  # inputs by keyword
    logits: Tensor  # (n, classes)
    rows: Tensor  # (n, d) to be judged: the logits, or a layer's output
    wrong: Tensor | None  # (n,) where the network erred, if there are labels


class WrappedModel:
    """A network and the field of its predictions. Made by `wrap`.

    The network is always run in evaluation mode and left as it was found: mode, gradients and
    hooks. `field` is the fitted `QIPF` once `fit` has run. Threads that call at once wait for each
    other.
    """

    def __init__(
        self,
        net: nn.Module,
        layer: str | None,
        field: QIPF,
        pooling: str | Callable[[Tensor], Tensor],
    ) -> None:
        self.net = net
        self.layer = layer
        self.pooling = pooling
        self.field = field
        self._fitted = hasattr(field, "offset_")
        self._fitted_with: str | None = None  # fingerprint of the network
        #: a few inputs and keyword inputs, for what traces the network
        self._example: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def fit(self, loader: Iterable[Any]) -> WrappedModel:
        """Stream training data through the network and build the field from its predictions.

        `loader` yields batches: ``(inputs, labels)``, ``inputs`` alone, or a dict of keyword
        arguments with the labels under ``"labels"`` or ``"label"``. Inputs that are a tuple or a
        list are handed to the network one by one. Memory stays bounded, as in
        `QIPF.partial_fit`, whatever the loader's length. With labels the bandwidth is chosen by
        the detection of errors and, where they are few, of correct predictions near an error.
        """
        field = clone(self.field)
        check_parameters(field)
        example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        with evaluating(self.net), torch.no_grad():
            for batch in self._predictions(loader, "fit"):
                if example is None:
                    example = mapped((batch.inputs, batch.options), few_rows)
                field._add(batch.rows, None, batch.wrong, fewest=1, logits=batch.logits)
        if not hasattr(field, "offset_"):
            raise QIPFInputError("The loader is empty: fit needs at least two predictions.")
        self.field = field
        self._fitted = True
        self._fitted_with = fingerprint(self.net)
        self._example = example
        return self

    def calibrate(self, loader: Iterable[Any]) -> WrappedModel:
        """Stream held-out data through the network, to judge other predictions by them.

        Batches as in `fit`; the data must not be those it was fitted on. Then
        ``model.field.p_values`` says how unusual a prediction is among them, and with labels
        ``model.field.accept_rule(max_risk=0.01)`` makes a rule, after which every `Prediction`
        says which of its rows are ``accepted``.
        """
        self._require_fitted()
        scores, errors = [], []
        with evaluating(self.net), torch.no_grad():
            for batch in self._predictions(loader, "calibrate"):
                scores.append(self.field.uncertainty(batch.rows).cpu())
                errors += [] if batch.wrong is None else [batch.wrong.cpu()]
        if not scores:
            raise QIPFInputError("The loader is empty: calibrate needs at least one prediction.")
        self.field._keep_held_out(torch.cat(scores), torch.cat(errors) if errors else None)
        return self

    def _predictions(self, loader: Iterable[Any], purpose: str) -> Iterator[_Predicted]:
        """What the network says of the loader's batches, one by one."""
        labelled: bool | None = None
        total = length_of(loader, purpose)
        for number, batch in enumerate(progress(loader, "reading predictions", total)):
            inputs, options, labels = unpacked(batch)
            with NoProbabilities(self.layer is None and number == 0) as watch:
                logits, rows = self._run(inputs, options, watch)
            require_finite(rows, f"the network's output for batch {number}")
            if labelled not in (None, labels is not None):
                raise QIPFInputError(
                    f"Batch {number} {'has' if labels is not None else 'lacks'} labels, "
                    "unlike those before it. Label all batches or none."
                )
            labelled = labels is not None
            wrong = errors_in(logits, labels, number)
            if rows.shape[0] > 0:
                yield _Predicted(inputs, options, logits, rows, wrong)

    def __call__(self, *inputs: Any, **options: Any) -> Prediction:
        """Run the network and judge each prediction.

        Gradients reach inputs that ask for them (``requires_grad``); otherwise none are kept.
        """
        self._require_fitted()
        asked = any(tensor.requires_grad for tensor in tensors_in((inputs, options)))
        with evaluating(self.net), torch.set_grad_enabled(asked and torch.is_grad_enabled()):
            logits, rows = self._run(inputs, options, None)
            uncertainty, rule = self.field.uncertainty(rows), self.field.rule_
            accepted = None if rule is None else rule(uncertainty)
            return Prediction(logits, logits.argmax(1), uncertainty, accepted)

    def _require_fitted(self) -> None:
        if not self._fitted:
            raise QIPFNotFittedError(
                "This wrapped model is not fitted yet. Call fit(train_loader) first."
            )

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
        path : the file, ``.onnx``. It appears whole and checked, or not at all.
        example : a batch of the network's inputs: a tensor, a tuple of several, or a dict of
            keyword inputs. By default, a few that `fit` has seen.
        rule : its threshold adds the output ``accepted``; by default the field's own, if any.
        max_centers : condense the field to so many weighted centres, for a smaller, faster file.
        check : run the file in ONNX Runtime, if that is installed, and compare with PyTorch.

        The outputs are ``logits``, ``uncertainty`` and ``modes``; see docs/export.md.
        """
        from qipf.export import export_model_onnx

        return export_model_onnx(
            self, path, example, rule=rule, max_centers=max_centers, check=check
        )

    def export(
        self,
        example: Any = None,
        *,
        rule: AcceptRule | None = None,
        max_centers: int | None = None,
    ) -> ExportedProgram:
        """The network and its uncertainty as a `torch.export` program, for a batch of any length.

        Parameters as in `export_onnx`. ``program.module()(inputs)`` returns a dict.
        """
        from qipf.export import export_model

        return export_model(self, example, rule=rule, max_centers=max_centers)

    def _run(
        self, inputs: tuple[Any, ...], options: dict[str, Any], watch: NoProbabilities | None
    ) -> tuple[Tensor, Tensor]:
        """Logits, and the rows the field judges: the same, or those of the layer."""
        inputs, options = self._placed(inputs, options)
        if self.layer is None:
            logits = logits_of(self.net(*inputs, **options))
            if watch is not None:
                watch.refuse(logits)
            return logits, logits.float() if logits.element_size() < 4 else logits
        # pooled as the layer runs: an activation in place may overwrite its output afterwards
        with captured(self.net, self.layer, lambda output: self._pooled(output).clone()) as found:
            logits = logits_of(self.net(*inputs, **options))
        if len(found) != 1:
            raise QIPFInputError(
                f"Layer {self.layer!r} ran {len(found)} times in one pass; a field needs a layer "
                "that runs once, in a network that is not compiled or traced."
            )
        rows = found[0]
        if rows.ndim != 2 or rows.shape[0] != logits.shape[0]:
            raise QIPFInputError(
                f"Layer {self.layer!r} gives shape {tuple(rows.shape)} after pooling for "
                f"{logits.shape[0]} predictions; one row per prediction is needed. Pass "
                "pooling=<function from the layer's output to (n, d)>."
            )
        return logits, rows

    def _placed(
        self, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs and keyword inputs where the network is."""
        device = device_of(self.net)
        return mapped((inputs, options), lambda tensor: tensor.to(device))

    def _pooled(self, output: Any) -> Tensor:
        if callable(self.pooling):
            return self.pooling(output)
        if isinstance(output, (tuple, list)):
            output = output[0]
        if not isinstance(output, Tensor):
            raise QIPFInputError(
                f"Layer {self.layer!r} returns {type(output).__name__}, not a tensor. Pass "
                "pooling=<function from it to (n, d)>."
            )
        if output.ndim <= 2:
            return output.reshape(output.shape[0], -1)
        if self.pooling == "flatten":
            return output.flatten(1)
        layer = type(named_layer(self.net, str(self.layer))).__name__
        if output.ndim == 3 and not layer.endswith("1d"):
            return output.mean(1)
        return output.flatten(2).mean(2)
