"""Inputs of examples that are kept while a loader is read."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from qipf.export.program import Example


class KeptInputs:
    """Inputs on the CPU, by the place of their example in the loader.

    They stay in the batches that they came in. A batch of which less than half is still kept is
    copied without the rest, so that memory is bounded by what is kept.

    >>> kept = KeptInputs()
    >>> kept.add([4, 7, 9], Example((torch.tensor([[4.0], [7.0], [9.0]]),), {}))
    >>> kept.remove([7])
    >>> kept.joined([9, 4]).inputs[0].tolist()
    [[9.0], [4.0]]
    """

    def __init__(self) -> None:
        self._batches: dict[int, Example] = {}
        self._members: dict[int, list[int]] = {}  # places of a batch that are kept
        self._rows: dict[int, tuple[int, int]] = {}  # place -> batch, row
        self._added = 0

    def add(self, places: Sequence[int], inputs: Example) -> None:
        """Keep these inputs, in the order of the places."""
        self._store(self._added, list(places), inputs.mapped(lambda part: part.cpu()))
        self._added += 1

    def remove(self, places: Iterable[int]) -> None:
        """Forget the inputs of these examples."""
        changed = {self._rows.pop(place)[0] for place in places}
        for batch in changed:
            left = [place for place in self._members[batch] if place in self._rows]
            self._members[batch] = left
            inputs = self._batches[batch]
            if not left:
                del self._batches[batch], self._members[batch]
            elif 2 * len(left) < inputs.rows:
                rows = torch.tensor([self._rows[place][1] for place in left])
                self._store(batch, left, inputs.take(rows))

    def shapes(self, place: int) -> tuple[Any, ...]:
        """Shapes of one row of each tensor of an example."""
        inputs = self._batches[self._rows[place][0]]
        return tuple(part.shape[1:] for part in inputs.tensors.values())

    def joined(self, places: Sequence[int]) -> Example:
        """The inputs of examples of equal shapes, as one batch in this order."""
        by_batch: dict[int, list[int]] = {}
        for number, place in enumerate(places):
            by_batch.setdefault(self._rows[place][0], []).append(number)
        parts = [
            self._batches[batch].take(torch.tensor([self._rows[places[n]][1] for n in numbers]))
            for batch, numbers in by_batch.items()
        ]
        order = torch.tensor([number for numbers in by_batch.values() for number in numbers])
        return Example.joined(parts).take(order.argsort())

    def _store(self, batch: int, places: list[int], inputs: Example) -> None:
        self._batches[batch], self._members[batch] = inputs, places
        self._rows |= {place: (batch, row) for row, place in enumerate(places)}
