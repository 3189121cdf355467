"""Inputs and labels of the batches of a loader, in any of the usual containers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor

from qipf.errors import QIPFInputError, first_line

#: Inputs of the training data that a model keeps as an example for its export.
FEW = 16


def unpacked(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Tensor | None]:
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


def as_labels(labels: Any, number: int) -> Tensor:
    """The labels of a batch as a tensor."""
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise QIPFInputError(
            f"Labels of batch {number} are not numbers ({first_line(error)}). Pass the index of "
            "each true class."
        ) from error


def errors_in(logits: Tensor, labels: Any, number: int) -> Tensor | None:
    """Where the network errs; None without labels."""
    if labels is None:
        return None
    labels = as_labels(labels, number).to(logits.device)
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
    """The first rows, copied."""
    return tensor[:FEW].detach().clone() if tensor.ndim else tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)


def length_of(loader: Iterable[Any], purpose: str) -> int | None:
    """Number of batches, None if unknown; raises unless the loader is iterable."""
    if not isinstance(loader, Iterable):
        raise QIPFInputError(
            f"{purpose} needs an iterable of batches, such as a DataLoader, got "
            f"{type(loader).__name__}."
        )
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader over a stream has a length that raises
        return None
