"""Inputs and labels of the batches of a loader, in any of the usual containers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import length_hint
from typing import Any, NamedTuple

from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.export.program import ROWS
from qipf.progress import progress
from qipf.validation.labels import errors_of


class Batch(NamedTuple):
    """A batch of a loader."""

    number: int
    inputs: tuple[Any, ...]
    options: dict[str, Any]  # keyword inputs
    labels: Any

    def errors(self, logits: Tensor) -> Tensor | None:  # (n, classes) -> (n,)
        """True where the network errs; None without labels."""
        if self.labels is None:
            return None
        return errors_of(logits, self.labels, f"labels of batch {self.number}")


def batches(loader: Iterable[Any], purpose: str, description: str) -> Iterator[Batch]:
    """The loader's batches, either all with labels or all without, with a progress bar."""
    if not isinstance(loader, Iterable):
        raise QIPFInputError(
            f"{purpose} needs an iterable of batches, such as a DataLoader, got "
            f"{type(loader).__name__}."
        )
    labelled: bool | None = None
    total = length_hint(loader) or None
    for number, batch in enumerate(progress(loader, description, total)):
        inputs, options, labels = _unpacked(batch)
        if labelled not in (None, labels is not None):
            raise QIPFInputError(
                f"Batch {number} {'has' if labels is not None else 'lacks'} labels, unlike those "
                "before it. Label all batches or none."
            )
        labelled = labels is not None
        yield Batch(number, inputs, options, labels)


def _unpacked(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
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


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nested containers with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: mapped(part, change) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(mapped(part, change) for part in value)
    return value


def few_rows(tensor: Tensor) -> Tensor:
    """The first rows, copied: an example for an export."""
    return tensor[:ROWS].detach().clone() if tensor.ndim else tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
