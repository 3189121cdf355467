"""Inputs and labels of the batches of a loader, in any of the usual containers."""

from collections.abc import Iterable, Iterator, Mapping
from inspect import signature
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn, strided
from torch.utils.data import DataLoader

from qipf.errors import QIPFInputError
from qipf.export.program import ROWS, Example
from qipf.progress import progress

#: Why a loader may be empty.
READ_ONCE = "A generator can be read only once: make a new one, or pass a list of its batches."

#: Names of the labels in a dict of inputs, as loaders of Hugging Face give them.
LABELS = ("labels", "label")


class Batch(NamedTuple):
    """A batch of a loader."""

    number: int
    inputs: Example
    labels: Any  # None if the batch has none


def batches(
    loader: Iterable[Any], net: nn.Module, purpose: str, description: str
) -> Iterator[Batch]:
    """The loader's batches, either all with labels or all without, with a progress bar."""
    if not isinstance(loader, Iterable) or isinstance(loader, (Tensor, np.ndarray, str)):
        raise QIPFInputError(
            f"{purpose} needs an iterable of batches, such as a DataLoader, got "
            f"{type(loader).__name__}."
        )
    if _is_one_batch(loader):
        loader = [loader]
    labelled: bool | None = None
    total = length_hint(loader) or None
    for number, batch in enumerate(progress(loader, description, total)):
        inputs, labels = _unpacked(batch)
        if labelled not in (None, labels is not None):
            raise QIPFInputError(
                f"Batch {number} {'has' if labels is not None else 'lacks'} labels, unlike those "
                "before it. Label all batches or none."
            )
        labelled = labels is not None
        found = arguments(net, (inputs,))
        for name, value in found.tensors.items():
            if value.layout is not strided:
                raise QIPFInputError(
                    f"Batch {number} has a sparse tensor as {name}. Pass {name}.to_dense()."
                )
        yield Batch(number, found, labels)


def _is_one_batch(loader: Iterable[Any]) -> bool:
    """Whether it is a pair of inputs and labels, not batches, which have equal shapes but for n."""
    if not isinstance(loader, (tuple, list)) or len(loader) != 2:
        return False
    inputs, labels = loader
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor) or inputs.ndim < 2:
        return False
    return inputs.shape != labels.shape and labels.shape in ((len(inputs),), (len(inputs), 1))


def _unpacked(batch: Any) -> tuple[Any, Any]:
    """Inputs and labels of a batch."""
    if isinstance(batch, Mapping):
        found = [batch[name] for name in LABELS if name in batch]
        return batch, found[0] if found else None
    if isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise QIPFInputError(
                f"A batch has {len(batch)} parts; (inputs, labels) or inputs alone is needed. "
                "Several inputs: ((first, second), labels)."
            )
        return batch[0], batch[1] if len(batch) == 2 else None
    return batch, None


def arguments(
    net: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any] | None = None
) -> Example:
    """The network's arguments in a call of a model.

    A single tuple or list holds several inputs. A single dict, or another mapping such as a
    `transformers.BatchEncoding`, holds keyword inputs; if the network takes none of these but one
    other argument, the dict is that argument. Labels in a mapping are left out.
    """
    alone = inputs[0] if len(inputs) == 1 and not options else None
    if isinstance(alone, Tensor) and not alone.is_meta:
        return Example((alone,), {})
    if isinstance(alone, Example):
        found = alone
    elif isinstance(alone, Mapping):
        found = _of_mapping(net, _unlabelled(alone))
    elif isinstance(alone, (tuple, list)):
        found = Example(tuple(alone), {})
    else:
        found = Example(inputs, _unlabelled(options or {}))
    for name, value in found.tensors.items():
        if value.is_meta:
            raise QIPFInputError(
                f"A network takes tensors with data, got {name} on the device meta."
            )
    for name, value in found.values.items():
        if isinstance(value, np.ndarray):
            raise QIPFInputError(
                f"A network takes tensors, got a NumPy array as {name}. Pass torch.from_numpy(...)."
            )
        if isinstance(value, (DataLoader, Iterator)):
            raise QIPFInputError(
                f"A network takes tensors, got {type(value).__name__} as {name}. Score it batch by "
                "batch: [model(inputs) for inputs, labels in loader]."
            )
    return found


def _unlabelled(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in LABELS}


def _of_mapping(net: nn.Module, options: dict[str, Any]) -> Example:
    taken = signature(net.forward)
    try:
        taken.bind(**options)
    except TypeError as error:
        needed = [part for part in taken.parameters.values() if part.default is part.empty]
        if len(needed) == 1 and not set(options) & set(taken.parameters):
            return Example((options,), {})
        raise QIPFInputError(
            f"The network cannot take the inputs {', '.join(options)} ({error}). Its forward takes "
            f"{', '.join(taken.parameters)}; labels in a dict are called {LABELS[0]!r}."
        ) from error
    return Example((), options)


def few_rows(example: Example) -> Example:
    """The first rows, copied: an example for an export."""
    return example.take(slice(ROWS)).mapped(lambda part: part.detach().clone())


def refuse_labels(labels: object, verb: str) -> None:
    """Raise for labels beside a loader, as scikit-learn's estimators take them."""
    if labels is not None:
        raise QIPFInputError(
            f"{verb} takes one loader of batches (inputs, labels). For two arrays: "
            f"{verb}([(inputs, labels)])."
        )
