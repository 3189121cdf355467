"""wrap: a network together with the field of its own predictions."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import clone
from torch import Tensor, nn

from qipf.calibration.rule import AcceptRule
from qipf.calibration.training_rows import TrainingSample
from qipf.errors import QIPFInputError, unknown_name
from qipf.export.onnx import Expected, expected, rounding_margins
from qipf.export.program import Example
from qipf.field.estimator import QIPF
from qipf.field.state import require_plain_seed
from qipf.io.container import Arrays
from qipf.io.schema import refuse, require, require_keys
from qipf.network.batches import READ_ONCE, batches, refuse_labels
from qipf.network.features import LayerSite, attention_mask, run_once
from qipf.network.forward import (
    call,
    evaluating,
    logits_of,
    named_layer,
    require_logits,
    unchanged,
    warn_if_random,
)
from qipf.network.model import NetworkModel, Scores
from qipf.network.pooling import flatten_pooling, mean_pooling
from qipf.network.tasks import IGNORED, TASKS, Task, check_task, task_of
from qipf.validation.arrays import require_finite, usable_rows
from qipf.validation.labels import class_logits
from qipf.validation.not_fitted import QIPFNotFittedError
from qipf.validation.parameters import is_integer, propagates

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
    task: str = "auto",
    ignore_index: int = IGNORED,
) -> "WrappedModel":
    """Put a field around a trained network; fit it with a loader of training data.

    Parameters
    ----------
    net : any module whose output is logits: a tensor, the first element of a tuple, the entry
        ``"logits"`` of a dict, or the attribute ``.logits`` of an object.
    layer : score the output of this named layer instead of the logits.
    field : a `QIPF` with the parameters to use, such as ``QIPF(nan_policy="propagate")``; a fitted
        one is used as it is.
    pooling : how a layer's output of several dimensions becomes one row per example. ``"mean"``
        averages over positions: (n, channels, height, width, …) over everything after the
        channels, (n, tokens, channels) over the tokens; the output of layers such as ``Conv1d``
        and ``BatchNorm1d`` has its channels first, and tokens at which an input
        ``attention_mask`` is 0 are left out. ``"flatten"`` keeps every number. Or a function from
        the layer's output to (n, d).
    task : ``"multiclass"``: logits (n, classes). ``"binary"``: one logit, (n, 1) or (n,), of class
        1 against class 0. ``"multilabel"``: logits (n, labels), every label of an input a
        prediction of its own. ``"segmentation"``: logits (n, classes, height, width), every pixel
        a prediction. ``"auto"`` decides by the first batch: one logit is binary, four dimensions
        are segmentation, labels (n, labels) of 0 and 1 are multilabel, everything else is
        multiclass.
        Where an input has several predictions, the field's ``reduction="auto"`` is ``"random"``.
    ignore_index : label of pixels, or of an input's labels, whose class is unknown.

    >>> net = nn.Linear(4, 3)
    >>> inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    >>> model = wrap(net).fit(inputs.split(16))
    >>> model(inputs[:5]).uncertainty.shape
    torch.Size([5])
    """
    field = QIPF() if field is None else field
    return WrappedModel(net, layer, field, pooling, task, ignore_index)


def _of_field(name: str) -> Any:
    return property(
        lambda model: getattr(model.field, name),
        lambda model, value: setattr(model.field, name, value),
    )


class WrappedModel(NetworkModel):
    """A network and the field of its predictions; made by `wrap`.

    Once `fit` has run, `field` is the fitted `QIPF` and `task_` the task. Calibration set and
    accept rule belong to the field.
    """

    calibration_ = _of_field("calibration_")
    detection_ = _of_field("detection_")
    rule_ = _of_field("rule_")
    nan_policy = _of_field("nan_policy")

    def __init__(
        self,
        net: nn.Module,
        layer: str | None,
        field: QIPF,
        pooling: str | Callable[[Tensor], Tensor],
        task: str = "auto",
        ignore_index: int = IGNORED,
    ) -> None:
        super().__init__(net)
        self.layer = layer
        self.pooling = pooling
        self.field = field
        self.task = task
        self.ignore_index = ignore_index
        self.task_: Task | None = None

    def fit(self, loader: Iterable[Any], labels: None = None) -> "Self":
        """Stream training data through the network and build the field from its predictions.

        `loader` yields batches: ``(inputs, labels)``, ``inputs`` alone, or a dict of keyword
        inputs with the labels under ``"labels"`` or ``"label"``. Inputs that are a tuple or a
        list are passed to the network one by one. Memory is bounded, as in `QIPF.partial_fit`,
        whatever the loader's length. With labels the bandwidth is chosen by the detection of
        errors and, where they are few, of correct predictions near an error.
        """
        refuse_labels(labels, "fit")
        self._check_parameters()
        field = clone(self.field)
        example: Example | None = None
        task: Task | None = None
        with torch.no_grad():
            for batch in batches(loader, self.net, "fit", "reading predictions"):
                inputs = self._placed(batch.inputs)
                run = partial(call, self.net, inputs, example)
                with evaluating(self.net):
                    first = None
                    if example is None:  # until a batch has rows
                        first = logits_of(run()) if self.layer else require_logits(run)
                    output, rows = self._outputs(inputs, run)
                    if first is not None:
                        warn_if_random(first, output)
                if task is None:
                    task = self._resolved(output, batch.labels)
                    if task.dense and field.reduction == "auto":
                        field.reduction = "random"  # far more rows than a coreset can be made of
                logits = task.rows(output)
                rows = _wide(logits) if rows is None else rows
                require_finite(rows, f"the network's output for batch {batch.number}")
                logits, wrong = class_logits(logits), None
                if batch.labels is not None:
                    truth = task.labels(batch.labels, output, f"labels of batch {batch.number}")
                    wrong = logits.argmax(1) != truth
                    if task.dense:
                        known = truth != task.ignore_index
                        rows, logits, wrong = rows[known], logits[known], wrong[known]
                if rows.shape[0] > 0:
                    example = example or inputs
                    field.partial_fit(rows, wrong=wrong, logits=logits)
        if example is None:
            raise QIPFInputError(
                f"The loader is empty: fit needs at least two predictions. {READ_ONCE}"
            )
        with self._changed() as model:
            model.field, model.task_ = field.build(), task
            model._set_fitted(example)
        return self

    def _decisions(self) -> QIPF:
        return self.field

    def training_sample(self) -> TrainingSample | None:
        """A sample of the training logits; none if the field is over another layer."""
        sample = self.field.training_sample() if self.layer is None else None
        return None if sample is None else sample._replace(rows=class_logits(sample.rows))

    def score_origin(self) -> float:
        """That of the field."""
        return self.field.score_origin()

    def _resolved(self, output: Tensor, labels: Any) -> Task:
        task = task_of(self.task, output, labels, self.ignore_index)
        if task.dense and self.layer is not None:
            raise QIPFInputError(
                f"layer= scores one row per input, and the task {task.name!r} has several "
                "predictions for each. Use qipf.wrap(net), which scores the logits."
            )
        return task

    def _task_of(self, output: Tensor) -> Task:
        return self.task_ or self._resolved(output, None)

    def _check_parameters(self) -> None:
        self._require_module()
        check_task(self.task)
        if not is_integer(self.ignore_index):
            raise QIPFInputError(f"ignore_index must be an integer, got {self.ignore_index!r}.")
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

    def _is_built(self) -> bool:
        return isinstance(self.field, QIPF) and self.field._is_built()

    def _scores(self, example: Example) -> Scores:
        # gradients reach inputs that require them; otherwise none are kept
        asked = any(tensor.requires_grad for tensor in example.tensors.values())
        with torch.set_grad_enabled(asked and torch.is_grad_enabled()):
            output, rows = self._run(example, partial(call, self.net, example, self._example))
            task, missing = self._task_of(output), None
            logits = rows if self.layer is None else output.reshape(len(output), -1)
            if propagates(self.nan_policy):
                (rows, _), missing = usable_rows([rows, logits])
            else:
                for part in (rows, logits):
                    require_finite(part, "the network's output for these inputs")
            both = (task.shaped(score, output) for score in self.field.both_scores(rows))
            if missing is not None:
                missing = task.shaped(missing, output)
            return Scores(output, *both)._replace(missing=missing)

    def _run(self, example: Example, run: Callable[[], Any]) -> tuple[Tensor, Tensor]:
        """The network's output, and the rows that the field scores."""
        output, rows = self._outputs(example, run)
        return output, _wide(self._task_of(output).rows(output)) if rows is None else rows

    def _outputs(self, example: Example, run: Callable[[], Any]) -> tuple[Tensor, Tensor | None]:
        """The network's output, and the pooled rows of the layer if one is named."""
        if self.layer is None:
            return logits_of(run()), None
        site, mask = LayerSite(self.layer), attention_mask(example)
        output, rows = run_once(self.net, run, [site], self._pool, REMEDY, mask)
        return output, rows[site]

    def _pool(self, layer: nn.Module, value: Any, mask: Tensor | None) -> Tensor:
        if callable(self.pooling):
            return self.pooling(value)
        return POOLINGS[self.pooling](layer, value, mask)

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
        return ModelGraph(self, graph, example), metadata

    def _expected(self, few: Example, max_centers: int | None) -> Expected:
        field = self.field if max_centers is None else self.field.condensed(max_centers)
        with evaluating(self.net), torch.no_grad():
            output, rows = self._run(few, partial(call, self.net, few))
            task, exact = self._task_of(output), rows.double()
            uncertainty, novelty = (task.shaped(s, output) for s in field.both_scores(exact))
            one, other = rounding_margins(field.both_scores, exact)
            margins = task.shaped(one, output), task.shaped(other, output)
            return expected(uncertainty, novelty, task.logits(output), margins)

    def facts(self) -> dict[str, str]:
        """Lines of the summary, by name."""
        facts = self.field.facts()
        facts["kind"] = "field of a wrapped model"
        facts["task"] = self.task if self.task_ is None else self.task_.name
        facts["layer"] = f"{self.layer or 'logits'}, pooling {self.pooling}"
        facts["network"] = f"weights {self.fitted_with or 'not recorded'}"
        return facts

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """Header and arrays of the model's file."""
        header, arrays = self.field.state()
        pooling = self.pooling if isinstance(self.pooling, str) else "function"
        weights = unchanged(self.net, self.fitted_with)
        network = {
            "layer": self.layer,
            "pooling": pooling,
            "task": self.task if self.task_ is None else self.task_.name,
            "ignore_index": int(self.ignore_index),
            "fingerprint": weights,
        }
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
        require_keys(
            path, "network", network, ("layer", "pooling", "task", "ignore_index", "fingerprint")
        )
        task, ignored = network["task"], network["ignore_index"]
        require(task in ("auto", *TASKS), path, "task", task)
        require(type(ignored) is int, path, "ignore_index", ignored)
        layer = network["layer"]
        if layer is not None and not isinstance(layer, str):
            refuse(path, f"its layer is {layer!r:.80}")
        if network["pooling"] not in list(POOLINGS) or not isinstance(network["fingerprint"], str):
            refuse(path, f"its pooling is {network['pooling']!r:.80}, or it has no fingerprint")
        field = QIPF.from_state({**header, "network": None}, arrays, path)
        model = cls(net, layer, field, network["pooling"], task, ignored)  # type: ignore[arg-type]
        model.task_ = None if task == "auto" else Task(task, ignored)
        model.fitted_with = network["fingerprint"]
        return model


class ModelGraph(nn.Module):
    """A network and its field as one module, for export.

    Its inputs stand for the tensors of the example, in their order; every other value of the
    example is a constant of the graph.
    """

    def __init__(self, model: WrappedModel, field: nn.Module, example: Example) -> None:
        super().__init__()
        self.net, self.field = model.net, field
        self._model, self._example = model, example

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Logits, and the field's outputs for them or for the layer's output."""
        filled = self._example.filled(tensors)
        run = partial(self.net, *filled.inputs, **filled.options)
        output, rows = self._model._run(filled, run)
        task = self._model._task_of(output)
        found = {name: task.shaped(part, output) for name, part in self.field(rows).items()}
        return {"logits": task.logits(output), **found}


def _wide(rows: Tensor) -> Tensor:
    """Rows in at least single precision."""
    return rows.float() if rows.element_size() < 4 else rows
