"""torch.export programs of a graph module, with its constants in full precision."""

import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
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


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nested containers with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: mapped(part, change) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(mapped(part, change) for part in value)
    return value


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values in nested containers; parts of a container add to its name."""
    if isinstance(value, dict):
        parts: Iterable[tuple[Any, Any]] = value.items()
    elif type(value) in (tuple, list):
        parts = enumerate(value)
    else:
        yield name, value
        return
    for key, part in parts:
        yield from _named(f"{name}_{key}" if name else str(key), part)


class Example(NamedTuple):
    """Positional and keyword inputs of a network; tensors may be nested in dicts and tuples."""

    inputs: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """Tensors and everything else, by their names in a graph."""
        if len(self.inputs) == 1:
            (alone,) = self.inputs
            named = _named("" if isinstance(alone, dict) else "input", alone)
        else:
            named = _named("input", self.inputs)
        return {**dict(named), **dict(_named("", self.options))}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by their names in a graph."""
        if len(self.inputs) == 1 and isinstance(self.inputs[0], Tensor) and not self.options:
            return {"input": self.inputs[0]}  # most calls; as below
        return {name: part for name, part in self.values.items() if isinstance(part, Tensor)}

    @property
    def kinds(self) -> str:
        """Types of everything in it, for errors about inputs without tensors."""
        kinds = {type(part).__name__ for part in self.values.values()}
        return ", ".join(sorted(kinds)) or "nothing"

    @property
    def rows(self) -> int:
        """Length of the batch: that of the first tensor with dimensions."""
        return next((len(part) for part in self.tensors.values() if part.ndim), 0)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Example":
        """The example with every tensor changed."""
        return Example(*mapped(tuple(self), change))

    def on(self, device: torch.device) -> "Example":
        """The example with every tensor on a device."""
        if all([part.device == device for part in self.tensors.values()]):
            return self
        return self.mapped(lambda part: part.to(device))

    def filled(self, tensors: Iterable[Tensor]) -> "Example":
        """The example with other tensors, in the order of `tensors`."""
        given = iter(tensors)
        return self.mapped(lambda _: next(given))

    def take(self, rows: Any) -> "Example":
        """Some rows of the batch, by a slice or an index; other tensors are kept whole."""
        count = self.rows

        def taken(part: Tensor) -> Tensor:
            if not part.ndim or len(part) != count:
                return part
            return part[rows.to(part.device) if isinstance(rows, Tensor) else rows]

        return self.mapped(taken)

    @classmethod
    def joined(cls, examples: "list[Example]") -> "Example":
        """The rows of all examples, whose tensors have equal shapes after the first dimension.

        A tensor that has one row for each of them in every example is joined; others are shared.
        """
        counts = [example.rows for example in examples]
        parts = zip(*(example.tensors.values() for example in examples), strict=True)
        return examples[0].filled(
            torch.cat(part) if part[0].ndim and [len(own) for own in part] == counts else part[0]
            for part in parts
        )

    def shapes(self, batch: str | None = None) -> str:
        """Names, shapes and types of the tensors; `batch` stands for the number of rows."""
        return ", ".join(_described(name, part, batch) for name, part in self.tensors.items())


def _described(name: str, part: Tensor, batch: str | None) -> str:
    sizes = [str(size) for size in part.shape]
    if batch is not None and sizes:
        sizes[0] = batch
    shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    return f"{name} of shape {shape}, {str(part.dtype).removeprefix('torch.')}"


def checked_example(given: Example) -> Example:
    """An example of 2 to 16 rows; traced with one, a graph takes only one."""
    if not given.tensors:
        raise QIPFInputError(
            "example must be a batch of the network's inputs: a tensor, a tuple of several, or a "
            "dict of keyword inputs. It has no tensor."
        )
    lengths = {part.shape[0] if part.ndim else 0 for part in given.tensors.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise QIPFInputError(
            f"example must be a batch: tensors of one length, at least 1. Got {given.shapes()}."
        )
    return given.mapped(_few)


def with_tokens(example: Example) -> list[int]:
    """Places of the tensors whose second dimension is that of tokens: of integers (n, tokens)."""
    tensors = list(example.tensors.values())
    lengths = {part.shape[1] for part in tensors if part.ndim == 2 and not part.is_floating_point()}
    return [i for i, part in enumerate(tensors) if part.ndim > 1 and part.shape[1] in lengths]


def shortened(example: Example, places: Collection[int]) -> Example | None:
    """The example without its last tokens, in the tensors at the places `with_tokens`.

    None if fewer than two would be left, or a row without any.
    """
    tensors = list(example.tensors.values())
    mask = example.tensors.get("attention_mask")
    if not places or tensors[min(places)].shape[1] < 3:
        return None
    if mask is not None and not bool(mask[:, :-1].any(1).all()):
        return None
    return example.filled(
        part[:, :-1] if place in places else part for place, part in enumerate(tensors)
    )


def varying_tokens(program: ExportedProgram, example: Example) -> list[int]:
    """Those of the places `with_tokens` at which a program takes any number of tokens."""
    names = program.graph_signature.user_inputs
    inputs = {node.name: node for node in program.graph.nodes if node.name in names}
    shapes = [inputs[name].meta["val"].shape for name in names]
    free = [not str(sizes[1]).isdigit() if len(sizes) > 1 else False for sizes in shapes]
    return [place for place in with_tokens(example) if free[place]]


def traced(
    graph: nn.Module, tensors: Iterable[Tensor], varying: Iterable[int] = ()
) -> ExportedProgram:
    """The graph as a program whose tensors share a first dimension of any length.

    The second dimension may have any length too in the tensors at the places `varying`, unless the
    graph allows only one. The caller puts the graph's network into evaluation mode.
    """
    tensors, varying = tuple(tensors), frozenset(varying)
    batch = Dim("batch")
    dimensions: tuple[Any, ...] = tuple(
        {0: batch, 1: Dim.AUTO} if place in varying else {0: batch} for place in range(len(tensors))
    )
    several = any(
        part.kind is Parameter.VAR_POSITIONAL
        for part in signature(graph.forward).parameters.values()
    )
    shapes = (dimensions,) if several else dimensions
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(graph, tensors, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise QIPFError(
            "torch.export cannot trace the network. Its operations must not depend on the values "
            "or the number of its inputs (write x.shape[0] instead of len(x)): "
            f"{reason(error)}"
        ) from error
    with torch.inference_mode(False), torch.no_grad():
        # copies of what was made in inference mode: programs run outside of `no_grad` too
        for kept in (program.constants, program.state_dict):
            for name, value in kept.items():
                if isinstance(value, Tensor) and value.is_inference():
                    copy = value.clone()
                    kept[name] = nn.Parameter(copy) if isinstance(value, nn.Parameter) else copy
    return program


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


def _few(part: Tensor) -> Tensor:
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
