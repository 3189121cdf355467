"""One pass over a loader: training rows for the fields, and other inputs to tune them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.layered.taps import Tap
from qipf.loading import length_of, unpacked
from qipf.progress import progress

#: Every so many-th example, at random, is for tuning and never a centre.
ONE_IN = 5

Rows = dict[Tap, Tensor]


@dataclass
class Kept:
    """A uniform sample of a stream, in the order of its draws: examples with a place each."""

    capacity: int
    numbers: np.ndarray  # (k,) the random numbers that let them stay
    places: np.ndarray  # (k,) which examples of the stream they are
    values: dict[Any, Tensor]  # rows or inputs, and labels

    @classmethod
    def empty(cls, capacity: int) -> Kept:
        """Nothing yet."""
        return cls(capacity, np.empty(0), np.empty(0, np.int64), {})

    def welcome(self, numbers: np.ndarray) -> np.ndarray:
        """Which of these newcomers would stay, were they the last; no others need computing."""
        pool = np.concatenate([self.numbers, numbers])
        if len(pool) <= self.capacity:
            return np.arange(len(numbers))
        limit = np.partition(pool, self.capacity - 1)[self.capacity - 1]
        return np.flatnonzero(numbers <= limit)

    def add(self, numbers: np.ndarray, places: np.ndarray, values: dict[Any, Tensor]) -> None:
        """Take newcomers in; those with the largest numbers leave."""
        pool = np.concatenate([self.numbers, numbers])
        staying = np.argsort(pool, kind="stable")[: self.capacity]
        index = torch.from_numpy(staying)
        for name, value in values.items():
            value = value.detach().cpu()
            before = self.values.get(name)
            self.values[name] = (value if before is None else torch.cat([before, value]))[index]
        self.numbers = pool[staying]
        self.places = np.concatenate([self.places, places])[staying]


LABELS = "labels"


def gathered(
    loader: Iterable[Any],
    read: Callable[[Tensor], tuple[Tensor, Rows]],  # inputs -> logits, rows
    centers: int,
    tuning: int,
    random: np.random.RandomState,
) -> tuple[Kept, Kept, int]:
    """Rows of at most `centers` examples, inputs of at most `tuning` others, and the classes.

    Only examples that stay are run through the network. What stays does not depend on how the
    stream was cut into batches.
    """
    fields, held = Kept.empty(centers), Kept.empty(tuning)
    classes = start = 0
    for number, batch in enumerate(progress(loader, "reading layers", length_of(loader, "fit"))):
        inputs, labels = _checked(batch, number)
        n = len(inputs)
        numbers = random.random_sample((n, 2))
        apart = numbers[:, 1] < 1 / ONE_IN
        places = np.arange(start, start + n)
        start += n
        for kept, mine in ((held, apart), (fields, ~apart)):
            index = np.flatnonzero(mine)
            index = index[kept.welcome(numbers[index, 0])]
            if not len(index):
                continue
            chosen = torch.from_numpy(index)
            values: dict[Any, Tensor] = {LABELS: labels[chosen]}
            if kept is held:
                values["inputs"] = inputs[chosen]
            else:
                logits, rows = read(inputs[chosen.to(inputs.device)])
                classes = logits.shape[1]
                values |= rows
            kept.add(numbers[index, 0], places[index], values)
    if not len(fields.numbers):
        raise QIPFInputError(
            f"The loader holds {start} examples; LayeredQIPF needs at least a few dozen."
        )
    _check_labels(fields, held, classes)
    return fields, held, classes


def _checked(batch: Any, number: int) -> tuple[Tensor, Tensor]:
    inputs, options, labels = unpacked(batch)
    if options or len(inputs) != 1 or not isinstance(inputs[0], Tensor):
        raise QIPFInputError(
            f"Batch {number} is not (inputs, labels) with one tensor of inputs. Layers of networks "
            "with several inputs can be judged one by one: qipf.wrap(net, layer=...)."
        )
    if labels is None:
        raise QIPFInputError(
            f"Batch {number} has no labels. The layers' fields are made by class: yield "
            "(inputs, labels), or use qipf.wrap(net), which needs none."
        )
    labels = torch.as_tensor(labels).cpu()
    if labels.shape != (len(inputs[0]),) or labels.is_floating_point():
        raise QIPFInputError(
            f"Labels of batch {number} have shape {tuple(labels.shape)} and type {labels.dtype}; "
            f"({len(inputs[0])},) whole numbers are needed, one class an input."
        )
    return inputs[0], labels.long()


def _check_labels(fields: Kept, held: Kept, classes: int) -> None:
    labels = torch.cat([kept.values[LABELS] for kept in (fields, held) if kept.values])
    if bool(((labels < 0) | (labels >= classes)).any()):
        raise QIPFInputError(
            f"Labels must be classes 0..{classes - 1}, got values from {int(labels.min())} to "
            f"{int(labels.max())}."
        )
