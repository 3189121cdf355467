"""Fitting on a cluster: every block draws its sample and condenses its rows; here they are merged.

Every row draws a number, and the rows with the smallest numbers form the sample (see
`qipf.sampling.Reservoir`). A block is told where the random sequence stands at its first row, so
its rows draw what they would have drawn one after the other on one machine. Hence with
``reduction="random"`` the field is the same, to the last bit, as the one `QIPF.fit` gives for all
rows in the dataset's order. With ``"coreset"`` the sample is the same too, and with it what is
usual; the centres are not: each block condenses its own rows, what comes out is merged in the
blocks' order, and the centres are fitted to that instead of to the rows. The field is close to the
local one, not equal to it. The same blocks always give the same field.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qipf.coreset import Coreset, CoresetStream, merge
from qipf.distributed.blocks import NAME, checked_dataset, chosen_of, in_order, logits_of, values_of
from qipf.distributed.connecting import RETRIES, cluster, got, ray
from qipf.errors import QIPFInputError
from qipf.estimator import QIPF
from qipf.parameters import check_parameters, checked_random_state
from qipf.progress import progress_bar
from qipf.sampling import Reservoir, TrainingRows
from qipf.tables.columns import AUTO, chosen_label
from qipf.tables.table import checked_labels

#: What to do about a block that no worker survives.
SMALLER = "Cut the dataset into smaller blocks: dataset.repartition(…)."


@dataclass(frozen=True)
class Drawn:
    """What is kept of a block's rows, each with its error flag as a last column."""

    rows: int
    first: Tensor  # (1, d)
    varied: bool
    numbers: np.ndarray  # (s,) ascending: what the rows of the sample drew
    sample: Tensor  # (s, d + 1)
    others: Coreset | None  # what left the sample


def fit(
    dataset: Any,
    field: QIPF | None = None,
    columns: str | None = None,
    labels: str | None = AUTO,
    *,
    workers: int | None = None,
) -> QIPF:
    """The field of all rows of a Ray Data dataset, which need not fit in one machine's memory.

    Parameters
    ----------
    dataset : a `ray.data.Dataset` of training logits.
    field : the parameters, as a `QIPF` that need not be fitted; it is not changed.
    columns : names or patterns of the logits' columns, by comma; those named ``logit*`` if not
        given. One column may also hold all logits of a row, as a list or tensor.
    labels : the column of true classes; ``"auto"`` takes `labels` or `label` if there is one, None
        takes none.
    workers : how many, at most; one for every CPU if not given.
    """
    dataset = checked_dataset(dataset)
    chosen = chosen_of(dataset, columns)
    label = chosen_label(NAME, dataset.columns() or [], labels)
    if label in chosen:
        raise QIPFInputError(f"{NAME}'s column {label!r} is chosen as a logit and as the label.")
    fresh = QIPF() if field is None else QIPF(**field.get_params())
    check_parameters(fresh)
    random = checked_random_state(fresh.random_state)
    seen = _Merged(int(fresh.max_centers), fresh.reduction, random)
    with cluster(workers=workers, accelerated=False) as crew, in_order(dataset):
        blocks = _drawn_blocks(dataset, seen, chosen, label, crew.workers, crew.needs)
        with progress_bar("reading", unit="row") as bar:
            for block in blocks:
                seen.merge(block, label is not None)
                bar.update(block.rows)
    if seen.count < 2:
        raise QIPFInputError(f"{NAME} has {seen.count} rows, but at least 2 are needed.")
    return seen.settled(fresh)


def _drawn_blocks(
    dataset: Any, seen: _Merged, chosen: list[str], label: str | None, workers: int, needs: Any
) -> Iterator[Drawn]:
    """What each block keeps, in order; a few blocks are under way at a time."""
    remote = ray().remote(_draw).options(**needs, max_retries=RETRIES)
    under_way: deque[Any] = deque()
    for bundle in dataset.iter_internal_ref_bundles():
        for block, about in zip(bundle.block_refs, bundle.metadata, strict=True):
            if about.num_rows == 0:
                continue
            how = seen.how(about.num_rows)
            under_way.append(remote.remote(block, tuple(chosen), label, how))
            if len(under_way) > 2 * workers:
                yield got(under_way.popleft(), "A block", SMALLER)
    while under_way:
        yield got(under_way.popleft(), "A block", SMALLER)


@dataclass(frozen=True)
class How:
    """What a block must know to draw as it would have among all rows."""

    capacity: int  # of the sample
    state: Any  # of the random sequence at the block's first row
    centers: int | None  # that the others are condensed to; None drops them
    seed: int


def _draw(block: Any, columns: tuple[str, ...], label: str | None, how: How) -> Drawn:
    """The task of a worker."""
    torch.set_num_threads(1)
    logits = logits_of(block, columns)
    rows, wrong = torch.from_numpy(logits.copy()), np.zeros(len(logits), bool)
    if label is not None:
        classes = checked_labels(
            values_of(block, label), logits.shape[1], NAME, "row {} of a block".format
        )
        wrong = logits.argmax(1) != classes
    random = np.random.RandomState()
    random.set_state(how.state)
    reservoir = _OpenReservoir(how.capacity, random)
    flagged = torch.cat([rows, torch.from_numpy(wrong)[:, None].to(rows.dtype)], 1)
    leaving = reservoir.add(flagged)
    others = None
    if how.centers is not None and leaving.shape[0]:
        stream = CoresetStream(how.centers, random_state=how.seed)
        stream.add(leaving[:, :-1])
        others = stream.result()
    varied = bool((rows != rows[:1]).any())
    return Drawn(len(rows), rows[:1], varied, reservoir.numbers, reservoir.rows, others)


class _OpenReservoir(Reservoir):
    """A sample that tells what its rows drew, and takes rows that have drawn already."""

    @property
    def numbers(self) -> np.ndarray:  # (s,)
        """What the rows of the sample drew, in their order."""
        return np.array([-number for number, _ in sorted(self._largest, reverse=True)])

    def take(self, numbers: np.ndarray, rows: Tensor, count: int) -> Tensor:
        """Merge the sample of the next `count` rows in; the rows that do not stay."""
        pool = rows if self._rows is None else torch.cat([self.rows, rows])
        drawn = np.concatenate([self.numbers, numbers])
        order = np.argsort(drawn, kind="stable")
        staying, leaving = order[: self.capacity], np.sort(order[self.capacity :])
        self._rows = pool[torch.from_numpy(staying)]
        self._largest = [(-float(drawn[at]), place) for place, at in enumerate(staying)]
        heapq.heapify(self._largest)
        self.seen += count
        return pool[torch.from_numpy(leaving)]

    def skip(self, count: int) -> Any:
        """The random sequence's state before the next `count` draws, which are then behind it."""
        state = self._random.get_state()
        for start in range(0, count, 2**20):
            self._random.random_sample(min(2**20, count - start))
        return state


class _OpenStream(CoresetStream):
    """A coreset of a stream that takes other coresets in."""

    def take(self, part: Coreset) -> None:
        """Merge a coreset in, as the stream merges its own condensed chunks."""
        self.count += round(part.count)
        for place, waiting in enumerate(self._condensed):
            if waiting is None:
                self._condensed[place] = part
                return
            part = merge([waiting, part], 2 * self.size, random_state=self._seed)
            self._condensed[place] = None
        self._condensed.append(part)


class _Merged(TrainingRows):
    """A field's training rows, put together from what the blocks kept of theirs."""

    def __init__(self, max_centers: int, reduction: str, random: np.random.RandomState) -> None:
        super().__init__(max_centers, reduction, random)
        self._seed = 0 if self._others is None else self._others._seed
        self._sample: _OpenReservoir = _OpenReservoir(self._sample.capacity, random)
        if self._others is not None:
            self._others: _OpenStream | None = _OpenStream(max_centers, random_state=self._seed)

    def how(self, rows: int) -> How:
        """What the next block, of so many rows, must know."""
        centers = None if self._others is None else 2 * self.max_centers
        return How(self._sample.capacity, self._sample.skip(rows), centers, self._seed)

    def merge(self, block: Drawn, labelled: bool) -> None:
        """Let the rows of the next block pass."""
        if self._first is None:
            self._first = block.first
        self.varied = self.varied or block.varied or bool((block.first != self._first).any())
        self.labelled = labelled
        leaving = self._sample.take(block.numbers, block.sample, block.rows)
        if self._others is not None:
            if block.others is not None:
                self._others.take(block.others)
            self._others.add(leaving[:, :-1])

    def settled(self, field: QIPF) -> QIPF:
        """The field of these rows, which `partial_fit` may go on with."""
        sample = self.sample
        field.n_features_in_ = sample.shape[1]
        field._seen, field._device = self, field._compute_device(sample, None)
        field.n_samples_seen_ = self.count
        field._settle()
        return field
