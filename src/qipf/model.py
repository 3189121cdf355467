"""wrap(): a network together with the field of its own predictions."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.base import clone
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qipf.arrays import require_finite
from qipf.errors import QIPFInputError, QIPFNotFittedError, unknown_name
from qipf.estimator import QIPF
from qipf.progress import progress

#: How the output of a layer becomes one row per example.
POOLINGS = ("mean", "flatten")


@dataclass(frozen=True)
class Prediction:
    """What a wrapped network says of a batch, and how far to trust it."""

    logits: Tensor  # (n, classes)
    labels: Tensor  # (n,) the class of the largest logit
    uncertainty: Tensor  # (n,) higher = less to be trusted


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
        _named_layer(net, layer)
    if field is not None and not isinstance(field, QIPF):
        raise QIPFInputError(f"field must be a QIPF, such as QIPF(orders=(1, 2)), got {field!r}.")
    if not callable(pooling) and pooling not in POOLINGS:
        raise unknown_name("pooling", pooling, POOLINGS)
    return WrappedModel(net, layer, QIPF() if field is None else field, pooling)


class WrappedModel:
    """A network and the field of its predictions. Made by `wrap`.

    The network is always run in evaluation mode and left as it was found: mode, gradients and
    hooks. `field` is the fitted `QIPF` once `fit` has run. One call at a time: two threads would
    change the network's mode under each other.
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

    def fit(self, loader: Iterable[Any]) -> WrappedModel:
        """Stream training data through the network and build the field from its predictions.

        `loader` yields batches: ``(inputs, labels)``, ``inputs`` alone, or a dict of keyword
        arguments with the labels under ``"labels"`` or ``"label"``. Inputs that are a tuple or a
        list are handed to the network one by one. Memory stays bounded, as in
        `QIPF.partial_fit`, whatever the loader's length. With labels the bandwidth is chosen by
        the detection of errors.
        """
        field = clone(self.field)
        labelled: bool | None = None
        total = _length(loader)
        with _evaluating(self.net), torch.no_grad():
            for number, batch in enumerate(progress(loader, "reading predictions", total)):
                inputs, options, labels = _unpacked(batch)
                with _NoProbabilities(self.layer is None and number == 0) as watch:
                    logits, rows = self._run(inputs, options, watch)
                require_finite(rows, f"the network's output for batch {number}")
                if labelled not in (None, labels is not None):
                    raise QIPFInputError(
                        f"Batch {number} {'has' if labels is not None else 'lacks'} labels, "
                        "unlike those before it. Label all batches or none."
                    )
                labelled = labels is not None
                wrong = _wrong(logits, labels, number)
                if rows.shape[0] > 0:
                    field.partial_fit(rows, wrong=wrong)
        if not hasattr(field, "offset_"):
            raise QIPFInputError("The loader is empty: fit needs at least two predictions.")
        self.field = field
        self._fitted = True
        return self

    def __call__(self, *inputs: Any, **options: Any) -> Prediction:
        """Run the network and judge each prediction.

        Gradients reach inputs that ask for them (``requires_grad``); otherwise none are kept.
        """
        if not self._fitted:
            raise QIPFNotFittedError(
                "This wrapped model is not fitted yet. Call fit(train_loader) first."
            )
        asked = any(tensor.requires_grad for tensor in _tensors((inputs, options)))
        with _evaluating(self.net), torch.set_grad_enabled(asked and torch.is_grad_enabled()):
            logits, rows = self._run(inputs, options, None)
            return Prediction(logits, logits.argmax(1), self.field.uncertainty(rows))

    def _run(
        self, inputs: tuple[Any, ...], options: dict[str, Any], watch: _NoProbabilities | None
    ) -> tuple[Tensor, Tensor]:
        """Logits, and the rows the field judges: the same, or those of the layer."""
        device = _device_of(self.net)
        inputs, options = _moved((inputs, options), device)
        if self.layer is None:
            logits = _logits_of(self.net(*inputs, **options))
            if watch is not None:
                watch.refuse(logits)
            return logits, logits.float() if logits.element_size() < 4 else logits
        # pooled as the layer runs: an activation in place may overwrite its output afterwards
        with _captured(self.net, self.layer, lambda output: self._pooled(output).clone()) as found:
            logits = _logits_of(self.net(*inputs, **options))
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
        layer = type(_named_layer(self.net, str(self.layer))).__name__
        if output.ndim == 3 and not layer.endswith("1d"):
            return output.mean(1)
        return output.flatten(2).mean(2)


class _NoProbabilities(TorchFunctionMode):
    """Watches one forward pass, to know, not guess, that its output is a softmax."""

    ACTIVATIONS = frozenset(
        {
            torch.softmax, torch.Tensor.softmax, nn.functional.softmax,
            torch.log_softmax, torch.Tensor.log_softmax, nn.functional.log_softmax,
            torch.sigmoid, torch.Tensor.sigmoid, nn.functional.sigmoid,
        }
    )  # fmt: skip

    def __init__(self, active: bool) -> None:
        super().__init__()
        self.active = active
        self.activated: list[tuple[Any, str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.active and func in self.ACTIVATIONS:
            self.activated.append((output, func.__name__))
        return output

    def refuse(self, logits: Tensor) -> None:
        for output, name in self.activated:
            if output is logits:
                raise QIPFInputError(
                    f"The network ends in {name}: its output is activated, but the field needs "
                    "raw logits. Remove the activation, or pass layer=<the layer before it>."
                )


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; every module's own mode comes back afterwards."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _captured(net: nn.Module, layer: str, pool: Callable[[Any], Tensor]) -> Iterator[list[Tensor]]:
    """The pooled outputs of a layer while the network runs."""
    found: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        found.append(pool(output))

    handle = _named_layer(net, layer).register_forward_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def _named_layer(net: nn.Module, layer: str) -> nn.Module:
    layers = {name: module for name, module in net.named_modules(remove_duplicate=False) if name}
    if layer in layers:
        return layers[layer]
    near = difflib.get_close_matches(str(layer), layers, n=3, cutoff=0.4) or list(layers)[:10]
    raise QIPFInputError(
        f"The network has no layer {layer!r}. Close: {', '.join(near) or 'none: it has no layers'}."
    )


def _logits_of(output: Any) -> Tensor:
    """The logits in whatever a network returns."""
    found = output
    if isinstance(output, Mapping) and "logits" in output:
        found = output["logits"]
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise QIPFInputError(
            f"The network returns {type(output).__name__}, in which no logits were found. Return a "
            "tensor, a tuple that starts with one, a dict with 'logits', or an object with .logits."
        )
    if found.ndim != 2:
        raise QIPFInputError(
            f"The network's logits have shape {tuple(found.shape)}; (predictions, classes) is "
            "needed."
        )
    return found


def _unpacked(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Tensor | None]:
    """Inputs, keyword inputs and labels of a batch."""
    if isinstance(batch, Mapping):
        options = dict(batch)
        labels = options.pop("labels", options.pop("label", None))
        return (), options, labels
    if isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise QIPFInputError(
                f"A batch has {len(batch)} parts; (inputs, labels) or inputs alone is needed."
            )
        inputs = tuple(batch[0]) if isinstance(batch[0], (tuple, list)) else (batch[0],)
        return inputs, {}, batch[1] if len(batch) == 2 else None
    return (batch,), {}, None


def _wrong(logits: Tensor, labels: Any, number: int) -> Tensor | None:
    """Where the network erred; None when nothing is known."""
    if labels is None:
        return None
    try:
        labels = torch.as_tensor(labels, device=logits.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise QIPFInputError(
            f"Labels of batch {number} are not numbers ({str(error).splitlines()[0]}). Pass the "
            "index of each true class."
        ) from error
    if labels.shape != (logits.shape[0],):
        raise QIPFInputError(
            f"Labels of batch {number} have shape {tuple(labels.shape)}, but the batch has "
            f"{logits.shape[0]} predictions. One class per prediction is needed."
        )
    if labels.numel() and not bool(((labels >= 0) & (labels < logits.shape[1])).all()):
        raise QIPFInputError(
            f"Labels of batch {number} must be classes 0..{logits.shape[1] - 1}, got values from "
            f"{labels.min()} to {labels.max()}."
        )
    return logits.argmax(1) != labels


def _device_of(net: nn.Module) -> torch.device:
    for tensor in (*net.parameters(), *net.buffers()):
        return tensor.device
    return torch.device("cpu")


def _moved(value: Any, device: torch.device) -> Any:
    """The same nest of containers with its tensors on the device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(part, device) for part in value)
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a nest of containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _length(loader: Iterable[Any]) -> int | None:
    if not isinstance(loader, Iterable):
        raise QIPFInputError(
            f"fit needs an iterable of batches, such as a DataLoader, got {type(loader).__name__}."
        )
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader over a stream has a length that it cannot tell
        return None
