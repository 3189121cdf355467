"""Samples of a stream of rows: a uniform sample, and the training rows that a field keeps."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qipf.field.coreset import CoresetStream
from qipf.field.engines.base import blocks
from qipf.field.kernel import Coreset

#: Rows kept out of the field, at most, to choose the bandwidth on; fewer where so many would have
#: more than this many numbers, since every factor that is tried evaluates the field at all of them.
HELD_OUT, HELD_NUMBERS = 10_000, 2**21

#: Tensors of equal length, by name: the values of so many rows.
Values = Mapping[Any, Tensor]

#: Name of the training rows in a reservoir.
ROWS = "rows"


class Reservoir:
    """Uniform sample of a stream: the `capacity` rows with the smallest random numbers.

    Every row comes with a random number and named values. Neither the sample nor the order in
    which `add` returns the other rows depends on how the stream is cut into batches.

    >>> reservoir, random = Reservoir(capacity=2), np.random.RandomState(0)
    >>> for start in range(0, 100, 10):
    ...     evicted = reservoir.add(random.rand(10), {"x": torch.arange(start, start + 10)})
    >>> len(reservoir), len(evicted["x"])
    (2, 10)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._numbers = np.empty(0)  # (s,) by place
        self._stored: dict[Any, Tensor] = {}  # by place; longer than the sample while it grows
        self._largest: list[tuple[float, int]] = []  # heap of (-number, place)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def numbers(self) -> np.ndarray:  # (min(seen, capacity),)
        """Random numbers of the sample, ascending."""
        return np.sort(self._numbers)

    @property
    def values(self) -> dict[Any, Tensor]:  # each (min(seen, capacity), ...)
        """Values of the sample, by ascending number: any leading part is a uniform sample too."""
        order = torch.from_numpy(np.argsort(self._numbers, kind="stable"))
        return {name: stored[order] for name, stored in self._stored.items()}

    def candidates(self, numbers: np.ndarray) -> np.ndarray:  # (n,)
        """Indices of those of the next rows that would stay if the stream ended with them."""
        pool = np.concatenate([self._numbers, numbers])
        if len(pool) <= self.capacity:
            return np.arange(len(numbers))
        limit = np.partition(pool, self.capacity - 1)[self.capacity - 1]
        return np.flatnonzero(numbers <= limit)

    def add(self, numbers: np.ndarray, values: Values) -> dict[Any, Tensor]:  # (n,), (n, ...)
        """Add rows; return the rows that were evicted or rejected."""
        kept = len(self)
        full = min(self.capacity, kept + len(numbers))
        pool = np.concatenate([self._numbers, numbers])
        for place in range(kept, full):
            heapq.heappush(self._largest, (-pool[place], place))
        staying, leaving = np.arange(full), np.arange(full, len(pool))
        waiting = pool[full:]
        for part in blocks(len(waiting), 2**13):
            for row in part.start + np.flatnonzero(waiting[part] < -self._largest[0][0]):
                largest, place = self._largest[0]
                if waiting[row] < -largest:
                    heapq.heapreplace(self._largest, (-waiting[row], place))
                    staying[place], leaving[row] = leaving[row], staying[place]
        self._numbers = pool[staying]
        entering, evicted = np.flatnonzero(staying >= kept), np.flatnonzero(leaving < kept)
        index = (entering, staying[entering] - kept, evicted, leaving[evicted])
        entering_to, entering_from, evicted_to, evicted_from = map(torch.from_numpy, index)
        rejected = torch.from_numpy(np.maximum(leaving - kept, 0))
        others = {}
        for name, value in values.items():
            stored = self._room(name, value, kept, full)
            value = value.detach().to(stored)
            others[name] = value[rejected]
            others[name][evicted_to] = stored[evicted_from]
            stored[entering_to] = value[entering_from]
        return others

    def _room(self, name: Any, value: Tensor, kept: int, size: int) -> Tensor:
        """The tensor that stores a value, with room for `size` rows."""
        stored = self._stored.get(name, value[:0].detach().cpu())
        dtype = torch.promote_types(stored.dtype, value.dtype)
        if len(stored) < size or stored.dtype != dtype:
            # twice as long each time: copying stays linear in the number of rows
            length = min(self.capacity, max(size, 2 * kept))
            larger = stored.new_empty((length, *value.shape[1:]), dtype=dtype)
            larger[:kept] = stored[:kept]
            self._stored[name] = larger
        return self._stored.setdefault(name, stored)

    def merge(self, numbers: np.ndarray, values: Values) -> dict[Any, Tensor]:  # (s,), (s, ...)
        """Add the sample that another reservoir kept of the next rows; return the evicted rows.

        The sample becomes that of all rows in one reservoir.

        >>> here, there, random = Reservoir(3), Reservoir(3), np.random.RandomState(0)
        >>> _ = here.add(random.rand(5), {"x": torch.arange(5)})
        >>> _ = there.add(random.rand(4), {"x": torch.arange(5, 9)})
        >>> evicted = here.merge(there.numbers, there.values)
        >>> here.values["x"].shape, evicted["x"].shape
        (torch.Size([3]), torch.Size([3]))
        """
        own, pool = self.values, np.concatenate([self.numbers, numbers])
        both = {name: torch.cat([own[name], v]) if own else v for name, v in values.items()}
        order = np.argsort(pool, kind="stable")
        staying, leaving = order[: self.capacity], np.sort(order[self.capacity :])
        self._numbers = pool[staying]
        self._stored = {name: value[torch.from_numpy(staying)] for name, value in both.items()}
        self._largest = [(-number, place) for place, number in enumerate(self._numbers)]
        heapq.heapify(self._largest)
        return {name: value[torch.from_numpy(leaving)] for name, value in both.items()}


@dataclass(frozen=True)
class PartialSample:
    """What is kept of rows that were sampled in another process, for `TrainingRows.merge`."""

    count: int
    first: Tensor  # (1, d)
    varied: bool
    numbers: np.ndarray  # (s,) random numbers of the sample, ascending
    sample: dict[Any, Tensor]  # rows (s, d + 1), nearness to an error as the last column
    others: Coreset | None  # of the rows outside the sample


@dataclass(frozen=True)
class RemoteSampler:
    """Samples rows in another process as `TrainingRows.add` would have here."""

    capacity: int  # of the sample
    state: Any  # of the random sequence at the first of the rows
    centers: int | None  # that rows outside the sample are condensed to; None drops them
    seed: int

    def sample(self, rows: Tensor, nearness: np.ndarray | None) -> PartialSample:  # (n, d), (n,)
        """Sample the rows."""
        random = np.random.RandomState()
        random.set_state(self.state)
        reservoir = Reservoir(self.capacity)
        evicted = reservoir.add(random.random_sample(len(rows)), _with_nearness(rows, nearness))
        others = None
        if self.centers is not None and len(evicted[ROWS]):
            stream = CoresetStream(self.centers, random_state=self.seed)
            stream.add(evicted[ROWS][:, :-1])
            others = stream.result()
        first, varied = rows[:1].clone(), bool((rows != rows[:1]).any())
        return PartialSample(len(rows), first, varied, reservoir.numbers, reservoir.values, others)


class TrainingRows:
    """The training rows that a field keeps; nothing depends on how they are cut into batches.

    A uniform sample (all rows while they are few) serves to choose the bandwidth and to know the
    usual uncertainties. With ``"random"`` reduction the sample also gives the centres; with
    ``"coreset"`` every row that leaves the sample enters a coreset.

    Other processes can sample parts of the stream: `remote_sampler` gives what they need, and
    `merge` adds their results, in the same order.

    >>> rows = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> here, both = (TrainingRows(9, "random", np.random.RandomState(0)) for _ in range(2))
    >>> here.add(rows, None)
    >>> for part in rows.split(25):
    ...     both.merge(both.remote_sampler(len(part)).sample(part, None), labelled=False)
    >>> bool((both.sample == here.sample).all())
    True
    """

    def __init__(self, max_centers: int, reduction: str, random: np.random.RandomState) -> None:
        self.max_centers = max_centers
        self.count = 0  # rows so far
        self.varied = False  # whether they differ
        self.labelled = False
        self.are_logits = True  # or outputs of a layer, or any other rows
        self._first: Tensor | None = None
        self._others: CoresetStream | None = None
        # drawn in any case: the sample is the same for every reduction
        self._seed = int(random.randint(2**31 - 1))
        self._random = random
        if reduction == "coreset":
            self._others = CoresetStream(max_centers, random_state=self._seed)
        capacity = HELD_OUT if reduction == "coreset" else max_centers + HELD_OUT
        self._reservoir = Reservoir(capacity)

    def add(self, rows: Tensor, nearness: np.ndarray | None) -> None:  # (n, d), (n,)
        """Add rows, with their nearness to an error if known (for all rows or none)."""
        self._count(rows, len(rows), nearness is not None)
        numbers = self._random.random_sample(len(rows))
        evicted = self._reservoir.add(numbers, _with_nearness(rows, nearness))
        if self._others is not None:
            self._others.add(evicted[ROWS][:, :-1])

    def remote_sampler(self, count: int) -> RemoteSampler:
        """A sampler of the next `count` rows for another process; skips their random numbers."""
        state = self._random.get_state()
        for part in blocks(count, 2**20):
            self._random.random_sample(part.stop - part.start)
        centers = None if self._others is None else 2 * self.max_centers
        return RemoteSampler(self._reservoir.capacity, state, centers, self._seed)

    def merge(self, part: PartialSample, labelled: bool) -> None:
        """Add rows that a `RemoteSampler` sampled; `labelled`: whether their errors are known."""
        self._count(part.first, part.count, labelled)
        self.varied = self.varied or part.varied
        evicted = self._reservoir.merge(part.numbers, part.sample)
        if self._others is not None:
            if part.others is not None:
                self._others.merge(part.others)
            self._others.add(evicted[ROWS][:, :-1])

    def _count(self, rows: Tensor, count: int, labelled: bool) -> None:
        if self._first is None:
            self._first = rows[:1].detach().clone()
        self.varied = self.varied or bool((rows != self._first.to(rows.device)).any())
        self.count += count
        self.labelled = labelled

    @property
    def sample(self) -> Tensor:  # (s, d)
        """A uniform sample of the rows, in random order."""
        return self._reservoir.values[ROWS][:, :-1]

    def sample_nearness(self) -> np.ndarray | None:  # (s,)
        """Nearness of the sample's rows to an error; see `qipf.field.bandwidth`."""
        return self._reservoir.values[ROWS][:, -1].numpy() if self.labelled else None

    def held_out(self) -> int:
        """Number of rows at the end of the sample to choose the bandwidth on."""
        fifth = -(-self.count // 5)
        if self._others is None:
            fifth = max(len(self._reservoir) - self.max_centers, fifth)
        assert self._first is not None  # rows were added
        return min(HELD_OUT, fifth, max(1, HELD_NUMBERS // self._first.shape[1]))

    def condensed(
        self, without: int, device: torch.device, bandwidth: float | None = None
    ) -> Coreset:
        """Centres for all rows but the last `without` of the sample; on `device`.

        Centres that stand for more rows than they are, are fitted to `bandwidth` if it is known.
        """
        if self._others is None:
            whole = Coreset.of_rows(self._inside(without)[: self.max_centers])
        else:
            self._others.device = device
            whole = self._others.result(self._inside(without), bandwidth=bandwidth)
        return whole.to(device)

    def weighted_rows(self, without: int, device: torch.device) -> Coreset:
        """The rows that `condensed` makes its centres of, with their weights; on `device`."""
        if self._others is None:
            return self.condensed(without, device)
        return self._others.weighted_rows(self._inside(without)).to(device)

    def _inside(self, without: int) -> Tensor:
        sample = self.sample
        return sample[: sample.shape[0] - without]


def _with_nearness(rows: Tensor, nearness: np.ndarray | None) -> dict[Any, Tensor]:
    """Rows with their nearness to an error as a last column; zero where it is unknown."""
    column = torch.zeros(rows.shape[0]) if nearness is None else torch.from_numpy(nearness)
    return {ROWS: torch.cat([rows.detach().cpu(), column[:, None].to(rows.dtype)], 1)}
