"""wrap: a network together with the field of its own predictions."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import clone
from torch import Tensor, nn

from qipf.calibration.accept_rule import AcceptRule
from qipf.errors import QIPFInputError, unknown_name
from qipf.export.onnx import Expected, expected, rounding_margin
from qipf.export.program import Example
from qipf.field.estimator import QIPF
from qipf.field.state import require_plain_seed
from qipf.io.container import Arrays
from qipf.io.schema import refuse, require_keys
from qipf.network.batches import batches, tensors_in
from qipf.network.features import LayerSite, flatten_pooling, mean_pooling, run_once
from qipf.network.forward import evaluating, logits_of, named_layer, require_logits, unchanged
from qipf.network.model import NetworkModel, Scores
from qipf.validation.arrays import require_finite
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from typing_extensions import Self

#: How the output of a layer becomes one row per example.
POOLINGS = {"mean": mean_pooling, "flatten": flatten_pooling}

#: Advice for a layer whose output does not become one row per example.
REMEDY = "Name another layer, or pass pooling=<function from the layer's output to (n, d)>."


def wrap(
    net: nn.Module,
    layer: str | None = None,
    *,
    field: QIPF | None = None,
    pooling: str | Callable[[Tensor], Tensor] = "mean",
) -> "WrappedModel":
    """Put a field around a trained network; fit it with a loader of training data.

    Parameters
    ----------
    net : any module whose output is logits (n, classes): a tensor, the first element of a tuple,
        the entry ``"logits"`` of a dict, or the attribute ``.logits`` of an object.
    layer : score the output of this named layer instead of the logits.
    field : a `QIPF` with the parameters to use; a fitted one is used as it is.
    pooling : how a layer's output of several dimensions becomes one row per example. ``"mean"``
        averages over positions: (n, channels, height, width, …) over everything after the
        channels, (n, tokens, channels) over the tokens; the output of layers such as ``Conv1d``
        and ``BatchNorm1d`` has its channels first. ``"flatten"`` keeps every number. Or a
        function from the layer's output to (n, d).

    >>> net = nn.Linear(4, 3)
    >>> inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    >>> model = wrap(net).fit(inputs.split(16))
    >>> model(inputs[:5]).uncertainty.shape
    torch.Size([5])
    """
    return WrappedModel(net, layer, QIPF() if field is None else field, pooling)


def _of_field(name: str) -> Any:
    return property(
        lambda model: getattr(model.field, name),
        lambda model, value: setattr(model.field, name, value),
    )


class WrappedModel(NetworkModel):
    """A network and the field of its predictions; made by `wrap`.

    `field` is the fitted `QIPF` once `fit` has run. Calibration set and accept rule belong to it.
    """

    calibration_ = _of_field("calibration_")
    detection_ = _of_field("detection_")
    rule_ = _of_field("rule_")

    def __init__(
        self,
        net: nn.Module,
        layer: str | None,
        field: QIPF,
        pooling: str | Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(net)
        self.layer = layer
        self.pooling = pooling
        self.field = field

    def fit(self, loader: Iterable[Any]) -> "Self":
        """Stream training data through the network and build the field from its predictions.

        `loader` yields batches: ``(inputs, labels)``, ``inputs`` alone, or a dict of keyword
        arguments with the labels under ``"labels"`` or ``"label"``. Inputs that are a tuple or a
        list are passed to the network one by one. Memory is bounded, as in `QIPF.partial_fit`,
        whatever the loader's length. With labels the bandwidth is chosen by the detection of
        errors and, where they are few, of correct predictions near an error.
        """
        self._check_parameters()
        field = clone(self.field)
        example = None
        with torch.no_grad():
            for batch in batches(loader, "fit", "reading predictions"):
                inputs, options = self._place((batch.inputs, batch.options))
                with evaluating(self.net):
                    if self.layer is None and batch.number == 0:
                        require_logits(partial(self.net, *inputs, **options))
                    logits, rows = self._run(inputs, options)
                require_finite(rows, f"the network's output for batch {batch.number}")
                wrong = batch.errors(logits)
                if rows.shape[0] > 0:
                    example = example or (inputs, options)
                    field.partial_fit(rows, wrong=wrong, logits=logits)
        if example is None:
            raise QIPFInputError("The loader is empty: fit needs at least two predictions.")
        self.field = field.build()
        self._set_fitted(example)
        return self

    def _check_parameters(self) -> None:
        self._require_module()
        if self.layer is not None:
            named_layer(self.net, self.layer)
        if not isinstance(self.field, QIPF):
            raise QIPFInputError(
                f"field must be a QIPF, such as QIPF(orders=(1, 2)), got {self.field!r}."
            )
        named = isinstance(self.pooling, str) and self.pooling in POOLINGS
        if not named and not callable(self.pooling):
            raise unknown_name("pooling", self.pooling, POOLINGS)

    def _require_fitted(self) -> None:
        if not isinstance(self.field, QIPF) or not self.field.__sklearn_is_fitted__():
            raise QIPFNotFittedError(
                "This wrapped model is not fitted yet. Call fit(train_loader) first."
            )

    def _scores(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Scores:
        # gradients reach inputs that require them; otherwise none are kept
        asked = any(tensor.requires_grad for tensor in tensors_in((inputs, options)))
        with torch.set_grad_enabled(asked and torch.is_grad_enabled()):
            logits, rows = self._run(inputs, options)
            require_finite(rows, "the network's output for these inputs")
            return Scores(logits, self.field.uncertainty(rows))

    def _run(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Logits, and the rows that the field scores: the same, or those of the layer."""
        run = partial(self.net, *inputs, **options)
        if self.layer is None:
            logits = logits_of(run())
            return logits, logits.float() if logits.element_size() < 4 else logits
        site = LayerSite(self.layer)
        logits, rows = run_once(self.net, run, [site], self._pool, REMEDY)
        return logits, rows[site]

    def _pool(self, layer: nn.Module, value: Any) -> Tensor:
        if callable(self.pooling):
            return self.pooling(value)
        return POOLINGS[self.pooling](layer, value)

    def _graph(
        self, example: Example, rule: AcceptRule | None, max_centers: int | None
    ) -> tuple[nn.Module, dict[str, Any]]:
        field, graph = self.field.graph(rule, max_centers)
        metadata = {
            **graph.metadata(field),
            "layer": self.layer or "logits",
            "pooling": self.pooling if isinstance(self.pooling, str) else "function",
        }
        graph = graph.to(next(iter(example.tensors.values())).device)
        return ModelGraph(self.net, self._run, graph, example), metadata

    def _expected(self, few: Example, max_centers: int | None) -> Expected:
        field = self.field if max_centers is None else self.field.condensed(max_centers)
        with evaluating(self.net), torch.no_grad():
            logits, rows = self._run(few.inputs, few.options)
            exact = rows.double()
            margin = rounding_margin(field.uncertainty, exact)
            return expected(field.uncertainty(exact), logits, margin)

    def facts(self) -> dict[str, str]:
        """Lines of the summary, by name."""
        facts = self.field.facts()
        facts["kind"] = "field of a wrapped model"
        facts["layer"] = f"{self.layer or 'logits'}, pooling {self.pooling}"
        facts["network"] = f"weights {self.fitted_with or 'not recorded'}"
        return facts

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Header and arrays of the model's file."""
        header, arrays = self.field.state()
        pooling = self.pooling if isinstance(self.pooling, str) else "function"
        weights = unchanged(self.net, self.fitted_with)
        network = {"layer": self.layer, "pooling": pooling, "fingerprint": weights}
        return {**header, "kind": "model", "network": network}, arrays

    def _require_saveable(self) -> None:
        require_plain_seed(self.field.random_state)
        if not isinstance(self.pooling, str):
            raise QIPFInputError(
                "pooling is a function, which a file cannot hold. Save model.field, and after "
                "loading it: qipf.wrap(net, layer, field=field, pooling=function)."
            )

    @classmethod
    def from_state(
        cls, header: dict[str, Any], arrays: Arrays, path: str, net: nn.Module | None = None
    ) -> "WrappedModel":
        """The model in a file's header and arrays; without `net` it can only be described."""
        network = header["network"]
        require_keys(path, "network", network, ("layer", "pooling", "fingerprint"))
        layer = network["layer"]
        if layer is not None and not isinstance(layer, str):
            refuse(path, f"its layer is {layer!r:.80}")
        if network["pooling"] not in POOLINGS or not isinstance(network["fingerprint"], str):
            refuse(path, f"its pooling is {network['pooling']!r:.80}, or it has no fingerprint")
        field = QIPF.from_state({**header, "network": None}, arrays, path)
        model = cls(net, layer, field, network["pooling"])  # type: ignore[arg-type]
        model.fitted_with = network["fingerprint"]
        return model


class ModelGraph(nn.Module):
    """A network and its field as one module, for export.

    Its inputs stand for the tensors of the example, in their order; every other value of the
    example is a constant of the graph.
    """

    def __init__(
        self, net: nn.Module, run: Callable[..., Any], field: nn.Module, example: Example
    ) -> None:
        super().__init__()
        self.net, self.field = net, field
        self._run, self._example = run, example

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Logits (n, classes), and the field's outputs for them or for the layer's output."""
        given = iter(tensors)
        filled = self._example.mapped(
            lambda part: next(given) if isinstance(part, Tensor) else part
        )
        logits, rows = self._run(*filled)
        return {"logits": logits, **self.field(rows)}
