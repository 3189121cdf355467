"""What is kept of a stream of rows: a uniform sample, and a field's training rows."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qipf.field.coreset import Coreset, CoresetStream
from qipf.field.engines.base import blocks

#: Rows kept out of the field, at most, to choose the bandwidth on.
HELD_OUT = 10_000


class Reservoir:
    """Keeps `capacity` rows of a stream, each with the same chance.

    Every row draws a number as it passes; the rows with the smallest numbers stay. What stays
    therefore does not depend on how the stream was cut into batches, nor does the order in which
    the others leave.

    >>> reservoir = Reservoir(capacity=2, random=np.random.RandomState(0))
    >>> for start in range(0, 100, 10):
    ...     left = reservoir.add(torch.arange(start, start + 10)[:, None])
    >>> reservoir.seen, tuple(reservoir.rows.shape), left.shape[0]
    (100, (2, 1), 10)
    """

    def __init__(self, capacity: int, random: np.random.RandomState) -> None:
        self.capacity = capacity
        self.seen = 0
        self._random = random
        self._rows: Tensor | None = None
        self._largest: list[tuple[float, int]] = []  # heap of (-number, place among the rows)

    def add(self, rows: Tensor) -> Tensor:  # (n, d) -> (n - rows still admitted to free places, d)
        """Let the next rows pass; those that leave, one for each that finds no free place."""
        rows = rows.detach().cpu()
        numbers = self._random.random_sample(rows.shape[0])
        kept = len(self._largest)
        free = min(self.capacity - kept, rows.shape[0])
        for row in range(free):
            heapq.heappush(self._largest, (-numbers[row], kept + row))
        pool = rows if self._rows is None else torch.cat([self._rows, rows])
        staying = np.arange(kept + free)
        leaving = np.arange(kept + free, kept + rows.shape[0])
        numbers = numbers[free:]
        for part in blocks(numbers.shape[0], 2**13):
            for row in part.start + np.flatnonzero(numbers[part] < -self._largest[0][0]):
                largest, place = self._largest[0]
                if numbers[row] < -largest:
                    heapq.heapreplace(self._largest, (-numbers[row], place))
                    staying[place], leaving[row] = leaving[row], staying[place]
        self.seen += rows.shape[0]
        self._rows = pool[torch.from_numpy(staying)]
        return pool[torch.from_numpy(leaving)]

    def skip(self, count: int) -> Any:
        """Leave the next `count` draws to a sample elsewhere, which begins at the state returned.

        What `RandomState.get_state` gives; what that sample keeps comes back with `merge`.
        """
        state = self._random.get_state()
        for part in blocks(count, 2**20):
            self._random.random_sample(part.stop - part.start)
        return state

    def merge(self, numbers: np.ndarray, rows: Tensor, count: int) -> Tensor:  # (s,), (s, d)
        """Let the next `count` rows pass, of which a sample elsewhere kept `rows`.

        `numbers` are what those drew: the sample becomes that of all rows in one place. Returns
        the rows that leave, of both samples.

        >>> here, there = (Reservoir(3, np.random.RandomState(seed)) for seed in (0, 1))
        >>> _ = here.add(torch.arange(5)[:, None]), there.add(torch.arange(5, 9)[:, None])
        >>> left = here.merge(there.numbers, there.rows, there.seen)
        >>> here.seen, tuple(here.rows.shape), tuple(left.shape)
        (9, (3, 1), (3, 1))
        """
        pool = rows if self._rows is None else torch.cat([self.rows, rows])
        drawn = np.concatenate([self.numbers, numbers])
        order = np.argsort(drawn, kind="stable")
        staying, leaving = order[: self.capacity], np.sort(order[self.capacity :])
        self._rows = pool[torch.from_numpy(staying)]
        self._largest = [(-float(drawn[at]), place) for place, at in enumerate(staying)]
        heapq.heapify(self._largest)
        self.seen += count
        return pool[torch.from_numpy(leaving)]

    @property
    def numbers(self) -> np.ndarray:  # (min(seen, capacity),)
        """What the rows of the sample drew, in their order: ascending."""
        return np.array([-number for number, _ in sorted(self._largest, reverse=True)])

    @property
    def rows(self) -> Tensor:  # (min(seen, capacity), d)
        """The sample, in the order of its draws: any leading part is a uniform sample too."""
        if self._rows is None:
            return torch.empty(0, 0)
        places = [place for _, place in sorted(self._largest, reverse=True)]
        return self._rows[torch.tensor(places, dtype=torch.long)]


@dataclass(frozen=True)
class Part:
    """What is kept of rows that pass elsewhere, for `TrainingRows.merge`."""

    count: int
    first: Tensor  # (1, d)
    varied: bool
    numbers: np.ndarray  # (s,) ascending: what the rows of the sample drew
    sample: Tensor  # (s, d + 1), nearness to an error as the last column
    others: Coreset | None  # the rows that left the sample


@dataclass(frozen=True)
class Lot:
    """All that rows must know to pass elsewhere as they would have here."""

    capacity: int  # of the sample
    state: Any  # of the random sequence at the first of them
    centers: int | None  # that rows outside the sample are condensed to; None drops them
    seed: int

    def drawn(self, rows: Tensor, nearness: np.ndarray | None) -> Part:  # (n, d), (n,)
        """Let the rows pass."""
        random = np.random.RandomState()
        random.set_state(self.state)
        sample = Reservoir(self.capacity, random)
        leaving = sample.add(_with_nearness(rows, nearness))
        others = None
        if self.centers is not None and leaving.shape[0]:
            stream = CoresetStream(self.centers, random_state=self.seed)
            stream.add(leaving[:, :-1])
            others = stream.result()
        first, varied = rows[:1].clone(), bool((rows != rows[:1]).any())
        return Part(rows.shape[0], first, varied, sample.numbers, sample.rows, others)


class TrainingRows:
    """What a field keeps of the training rows that pass: nothing of it depends on their batches.

    A uniform sample (all rows while they are few) serves to choose the bandwidth and to know what
    is usual. With ``"random"`` reduction the sample also gives the centres; with ``"coreset"``
    every row that leaves the sample enters a coreset.

    Rows may also pass elsewhere: `lot` tells what must be known there, and `merge` takes in what
    is kept of them, in the same order.

    >>> rows = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> here, both = (TrainingRows(9, "random", np.random.RandomState(0)) for _ in range(2))
    >>> here.add(rows, None)
    >>> for part in rows.split(25):
    ...     both.merge(both.lot(len(part)).drawn(part, None), labelled=False)
    >>> bool((both.sample == here.sample).all())
    True
    """

    def __init__(self, max_centers: int, reduction: str, random: np.random.RandomState) -> None:
        self.max_centers = max_centers
        self.varied = False
        self.labelled = False
        self._first: Tensor | None = None
        self._others: CoresetStream | None = None
        # drawn in any case: the sample is the same for all
        self._seed = int(random.randint(2**31 - 1))
        if reduction == "coreset":
            self._others = CoresetStream(max_centers, random_state=self._seed)
        capacity = HELD_OUT if reduction == "coreset" else max_centers + HELD_OUT
        self._sample = Reservoir(capacity, random)

    @property
    def count(self) -> int:
        """Rows that have passed."""
        return self._sample.seen

    def add(self, rows: Tensor, nearness: np.ndarray | None) -> None:  # (n, d), (n,)
        """Let the next rows pass, and how near they are to an error if known (of all or none)."""
        if self._first is None:
            self._first = rows[:1].detach().clone()
        self.varied = self.varied or bool((rows != self._first.to(rows.device)).any())
        self.labelled = nearness is not None
        leaving = self._sample.add(_with_nearness(rows, nearness))
        if self._others is not None:
            self._others.add(leaving[:, :-1])

    def lot(self, count: int) -> Lot:
        """For the next `count` rows, which pass elsewhere."""
        centers = None if self._others is None else 2 * self.max_centers
        return Lot(self._sample.capacity, self._sample.skip(count), centers, self._seed)

    def merge(self, part: Part, labelled: bool) -> None:
        """Take in what is kept of rows that passed elsewhere, and whether it is known who erred."""
        if self._first is None:
            self._first = part.first
        self.varied = self.varied or part.varied or bool((part.first != self._first).any())
        self.labelled = labelled
        leaving = self._sample.merge(part.numbers, part.sample, part.count)
        if self._others is not None:
            if part.others is not None:
                self._others.merge(part.others)
            self._others.add(leaving[:, :-1])

    @property
    def sample(self) -> Tensor:  # (s, d)
        """A uniform sample of the rows, in random order."""
        return self._sample.rows[:, :-1]

    def sample_nearness(self) -> np.ndarray | None:  # (s,)
        """How near to an error the rows of the sample are; see `qipf.field.bandwidth`."""
        return self._sample.rows[:, -1].numpy() if self.labelled else None

    def held_out(self) -> int:
        """How many rows at the end of the sample the bandwidth should be chosen on."""
        fifth = -(-self.count // 5)
        if self._others is None:
            fifth = max(self._sample.rows.shape[0] - self.max_centers, fifth)
        return min(HELD_OUT, fifth)

    def condensed(
        self, without: int, device: torch.device, bandwidth: float | None = None
    ) -> Coreset:
        """Centres for all rows but the last `without` of the sample; on `device`.

        Where they stand for more rows than they are, fitted to `bandwidth` if that is known.
        """
        if self._others is None:
            centers = self._inside(without)[: self.max_centers]
            whole = Coreset(centers, torch.ones(centers.shape[0], dtype=torch.float64))
        else:
            self._others.device = device
            whole = self._others.result(self._inside(without), bandwidth=bandwidth)
        return whole.on(device)

    def gathered(self, without: int, device: torch.device) -> Coreset:
        """All that is known of the rows but the last `without` of the sample; on `device`.

        As `condensed` where centres are rows; else the rows that a coreset is made of.
        """
        if self._others is None:
            return self.condensed(without, device)
        return self._others.gathered(self._inside(without)).on(device)

    def _inside(self, without: int) -> Tensor:
        sample = self.sample
        return sample[: sample.shape[0] - without]


def _with_nearness(rows: Tensor, nearness: np.ndarray | None) -> Tensor:  # (n, d + 1)
    """Rows with their nearness to an error as a last column, zero where nothing is known of it."""
    column = torch.zeros(rows.shape[0]) if nearness is None else torch.from_numpy(nearness)
    return torch.cat([rows.detach().cpu(), column[:, None].to(rows.dtype)], 1)
