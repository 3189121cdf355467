"""torch.export: a graph module and an example of its inputs become a program."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from qipf.errors import QIPFError, QIPFInputError
from qipf.field.graph import ModelGraph
from qipf.network.forward import evaluating

#: Rows of an example that are used.
ROWS = 16


class Example(NamedTuple):
    """What a network is called with: positional and keyword inputs."""

    inputs: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names they have in the graph."""
        alone = len(self.inputs) == 1
        named = {("input" if alone else f"input_{i}"): part for i, part in enumerate(self.inputs)}
        return {
            name: part
            for name, part in {**named, **self.options}.items()
            if isinstance(part, Tensor)
        }

    @property
    def values(self) -> list[Any]:
        """Tensors and everything else."""
        return [*self.inputs, *self.options.values()]

    def mapped(self, change: Callable[[Any], Any]) -> Example:
        """Every value changed."""
        options = {name: change(part) for name, part in self.options.items()}
        return Example(tuple(change(part) for part in self.inputs), options)


class Model(Protocol):
    """A network with what judges it."""

    #: a few inputs and keyword inputs that it was fitted on
    _example: tuple[tuple[Any, ...], dict[str, Any]] | None

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """What it makes of a batch."""

    def _placed(
        self, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]: ...


def checked_example(model: Model, example: Any) -> Example:
    """An example that the network takes, of 2 to 16 rows: a graph of one row would stay at one."""
    given = _unpacked(model, example)
    tensors = given.tensors
    nested = [type(part).__name__ for part in given.values if isinstance(part, (tuple, list, dict))]
    if not tensors or nested:
        raise QIPFInputError(
            "example must be a tensor, a tuple of the network's inputs or a dict of its keyword "
            f"inputs, got {nested[0] + ' inside ' if nested else ''}{type(example).__name__}"
            f"{'' if nested else ' without a tensor'}."
        )
    shapes = ", ".join(f"{name} of shape {tuple(part.shape)}" for name, part in tensors.items())
    lengths = {part.shape[0] if part.ndim else 0 for part in tensors.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise QIPFInputError(
            f"example must be a batch: tensors of one length, at least 1. Got {shapes}."
        )
    few = Example(*model._placed(*given.mapped(_few)))
    try:
        model(*few.inputs, **few.options)
    except QIPFError:
        raise
    except Exception as error:
        raise QIPFInputError(
            f"The network cannot take the example ({shapes}): {reason(error)}"
        ) from error
    return few


def traced(graph: nn.Module, tensors: Iterable[Tensor]) -> ExportedProgram:
    """The graph as a program whose tensors share a first dimension of any length."""
    tensors = tuple(tensors)
    batch = Dim("batch")
    varying: tuple[Any, ...] = tuple({0: batch} for _ in tensors)
    shapes = (varying,) if isinstance(graph, ModelGraph) else varying
    try:
        with quiet(), evaluating(graph), torch.no_grad():
            return torch.export.export(graph, tensors, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise QIPFError(
            "torch.export cannot capture the network, whose steps must not depend on the values "
            f"or the number of its inputs: {reason(error)}"
        ) from error


def reason(error: BaseException) -> str:
    """The first line of what lies at the root of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines()]
    said = next((line for line in lines if line), "it does not say why")
    return f"{said.rstrip('.')} ({type(error).__name__})."


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' talk about themselves; what fails is raised all the same."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    unheard = StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(unheard), redirect_stderr(unheard):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _unpacked(model: Model, example: Any) -> Example:
    if example is None:
        if model._example is None:
            raise QIPFInputError(
                "This wrapped model has seen no input yet: its field was fitted elsewhere. Pass "
                "example=<a batch of the network's inputs>."
            )
        return Example(*model._example)
    if isinstance(example, Mapping):
        return Example((), dict(example))
    if isinstance(example, (tuple, list)):
        return Example(tuple(example), {})
    return Example((example,), {})


def _few(part: Any) -> Any:
    if not isinstance(part, Tensor):
        return part
    rows = part[:ROWS].detach()
    return torch.cat([rows, rows]) if rows.shape[0] == 1 else rows
