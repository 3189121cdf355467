"""torch.export programs of a graph module, with its constants in full precision."""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import Parameter, signature
from io import StringIO
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode

from qipf.errors import QIPFError, QIPFInputError

#: Rows of an example that are used.
ROWS = 16


class Example(NamedTuple):
    """Positional and keyword inputs of a network."""

    inputs: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by their names in the graph."""
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

    def mapped(self, change: Callable[[Any], Any]) -> "Example":
        """The example with `change` applied to every value."""
        inputs = tuple(change(part) for part in self.inputs)
        return Example(inputs, {name: change(part) for name, part in self.options.items()})


def checked_example(
    example: Any, run: Callable[..., object], place: Callable[[Any], Any]
) -> Example:
    """An example of 2 to 16 rows that the network accepts; traced with one, a graph takes only one.

    `run` calls the model, `place` moves nested tensors to its device.
    """
    given = _unpacked(example)
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
    few = Example(*place(tuple(given.mapped(_few))))
    try:
        run(*few.inputs, **few.options)
    except QIPFError:
        raise
    except Exception as error:
        raise QIPFInputError(
            f"The network cannot take the example ({shapes}): {reason(error)}"
        ) from error
    return few


def traced(graph: nn.Module, tensors: Iterable[Tensor]) -> ExportedProgram:
    """The graph as a program whose tensors share a first dimension of any length.

    The caller puts the graph's network into evaluation mode.
    """
    tensors = tuple(tensors)
    batch = Dim("batch")
    varying: tuple[Any, ...] = tuple({0: batch} for _ in tensors)
    several = any(
        part.kind is Parameter.VAR_POSITIONAL
        for part in signature(graph.forward).parameters.values()
    )
    shapes = (varying,) if several else varying
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(graph, tensors, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise QIPFError(
            "torch.export cannot trace the network. Its operations must not depend on the values "
            f"or the number of its inputs: {reason(error)}"
        ) from error


def reason(error: BaseException) -> str:
    """The first line of the message of an error's root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines()]
    text = next((line for line in lines if line), "no message")
    return f"{text.rstrip('.')} ({type(error).__name__})."


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output and warnings of the exporters; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    hidden = StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(hidden), redirect_stderr(hidden):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _unpacked(example: Any) -> Example:
    if isinstance(example, Example):
        return example
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


class ExactConstants(TorchFunctionMode):
    """Record Python numbers in a graph as float64 tensors.

    The ONNX exporter writes a Python number as float32: π loses half its digits, and 1e300 becomes
    infinity.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = next((value.device for value in args if isinstance(value, Tensor)), None)

        def exact(value: Any) -> Any:
            if not isinstance(value, float):
                return value
            return torch.tensor(value, dtype=torch.float64, device=device)

        given = [exact(value) for value in args]
        if func is torch.full_like:
            like, value = given
            return torch.zeros_like(like) + value
        if func is torch.nan_to_num:
            values, nan, highest, lowest = given
            return torch.where(torch.isnan(values), nan, values.clamp(lowest, highest))
        return func(*given, **{name: exact(value) for name, value in (kwargs or {}).items()})
