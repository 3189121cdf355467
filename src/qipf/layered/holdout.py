"""One pass over a loader: training rows for the fields, and other inputs to tune them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.layered.class_field import LARGEST_TABLE
from qipf.network.batches import as_labels, length_of, unpacked
from qipf.network.features import Rows
from qipf.progress import progress

#: One example in so many, at most, is for tuning and never a centre.
ONE_IN = 5

#: Examples held until the next clearing, in capacities.
SLACK = 1.25

#: Names of what is kept of an example, beside its rows.
INPUTS, LABELS = "inputs", "labels"


class Kept:
    """A uniform sample of a stream: the examples with the smallest of their random numbers.

    `numbers`, `places` (which examples of the stream they are) and `values` (rows or inputs, and
    labels) are in the order of the numbers once `settle` was called. Until then somewhat more than
    the capacity is held, so that newcomers need not move everything else each time.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.numbers, self.places = np.empty(0), np.empty(0, np.int64)
        self.values: dict[Any, Tensor] = {}
        self._newcomers: list[dict[Any, Tensor]] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def welcome(self, numbers: np.ndarray) -> np.ndarray:
        """Which of these newcomers would stay, were they the last; no others need computing."""
        pool = np.concatenate([self.numbers, numbers])
        if len(pool) <= self.capacity:
            return np.arange(len(numbers))
        limit = np.partition(pool, self.capacity - 1)[self.capacity - 1]
        return np.flatnonzero(numbers <= limit)

    def add(self, numbers: np.ndarray, places: np.ndarray, values: dict[Any, Tensor]) -> None:
        """Take newcomers in; those with the largest numbers leave, now or later."""
        self._newcomers.append({name: value.detach().cpu() for name, value in values.items()})
        self.numbers = np.concatenate([self.numbers, numbers])
        self.places = np.concatenate([self.places, places])
        if len(self.numbers) > SLACK * self.capacity:
            self.settle()

    def settle(self) -> None:
        """Let those leave whose numbers are too large."""
        staying = np.argsort(self.numbers, kind="stable")[: self.capacity]
        index = torch.from_numpy(staying)
        parts = [self.values, *self._newcomers] if self.values else self._newcomers
        names = list(parts[0]) if parts else []
        self.values = {name: torch.cat([part[name] for part in parts])[index] for name in names}
        self.numbers, self.places = self.numbers[staying], self.places[staying]
        self._newcomers = []

    def cut(self, staying: np.ndarray) -> None:
        """Keep those at these positions."""
        index = torch.from_numpy(staying)
        self.numbers, self.places = self.numbers[staying], self.places[staying]
        self.values = {name: value[index] for name, value in self.values.items()}


def gathered(
    loader: Iterable[Any],
    read: Callable[[Tensor], tuple[Tensor, Rows]],  # inputs -> logits, rows
    centers: int,
    tuning: int,
    random: np.random.RandomState,
) -> tuple[Kept, Kept, int]:
    """Rows of at most `centers` examples, inputs of at most `tuning` others, and the classes.

    Both are drawn from all examples; what is for tuning is then taken out of the rows. Only
    examples that may stay are run through the network. What stays does not depend on how the
    stream was cut into batches.
    """
    fields, held = Kept(centers + tuning), Kept(tuning)
    classes = start = 0
    seen: list[int] = []  # the lowest and the highest label of each batch
    for number, batch in enumerate(progress(loader, "reading layers", length_of(loader, "fit"))):
        inputs, labels = _checked(batch, number)
        n = len(inputs)
        numbers = random.random_sample((n, 2))
        places = np.arange(start, start + n)
        start += n
        seen += [int(labels.min()), int(labels.max())] if n else []
        for kept, drawn in ((held, numbers[:, 1]), (fields, numbers[:, 0])):
            index = kept.welcome(drawn)
            if not len(index):
                continue
            chosen = torch.from_numpy(index)
            values: dict[Any, Tensor] = {LABELS: labels[chosen]}
            if kept is held:
                values[INPUTS] = inputs[chosen.to(inputs.device)]
            else:
                logits, rows = read(inputs[chosen.to(inputs.device)])
                require_numbers(logits, rows, places[index])
                classes = logits.shape[1]
                values |= rows
            kept.add(drawn[index], places[index], values)
    if start < 2:
        raise QIPFInputError(
            f"The loader holds {start} examples; LayeredQIPF needs at least a few dozen."
        )
    _check_classes(classes, min(seen), max(seen))
    fields.settle()
    held.settle()
    held.cut(np.arange(min(len(held), start // ONE_IN)))
    centers = min(centers, LARGEST_TABLE // classes)
    fields.cut(np.flatnonzero(~np.isin(fields.places, held.places))[:centers])
    return fields, held, classes


def require_numbers(logits: Tensor, rows: Rows, places: np.ndarray) -> None:
    """Refuse NaN and infinity in what the network made of these examples of the loader."""
    for found in (logits, *rows.values()):
        good = torch.isfinite(found).all(1)
        if not bool(good.all()):
            first = int(places[int((~good).nonzero()[0])])
            raise QIPFInputError(
                f"Example {first} of the loader makes the network, or one of its layers, give NaN "
                "or infinity. Drop or repair it first."
            )


def _checked(batch: Any, number: int) -> tuple[Tensor, Tensor]:
    inputs, options, labels = unpacked(batch)
    if options or len(inputs) != 1 or not isinstance(inputs[0], Tensor) or inputs[0].ndim < 2:
        raise QIPFInputError(
            f"Batch {number} is not (inputs, labels) with one tensor of inputs, (n, ...). Layers "
            "of networks with several inputs can be judged one by one: qipf.wrap(net, layer=...)."
        )
    if labels is None:
        raise QIPFInputError(
            f"Batch {number} has no labels. The layers' fields are made by class: yield "
            "(inputs, labels), or use qipf.wrap(net), which needs none."
        )
    labels = as_labels(labels, number).cpu()
    if labels.shape != (len(inputs[0]),) or labels.is_floating_point() or labels.is_complex():
        raise QIPFInputError(
            f"Labels of batch {number} have shape {tuple(labels.shape)} and type {labels.dtype}; "
            f"({len(inputs[0])},) whole numbers are needed, one class an input."
        )
    return inputs[0], labels.long()


def _check_classes(classes: int, lowest: int, highest: int) -> None:
    if classes < 2:
        raise QIPFInputError(
            f"The network gives {classes} number an input; logits of at least two classes are "
            "needed."
        )
    if lowest < 0 or highest >= classes:
        raise QIPFInputError(
            f"Labels must be classes 0..{classes - 1}, got values from {lowest} to {highest}."
        )
