"""Scoring on a cluster: a folder's shards, or a Ray Data dataset.

The field travels once to every worker, which computes with the fastest engine it has; on a CPU,
with one thread. Blocks are filled up to whole tiles as in the local run (see
`qipf.scoring.table.steady_results`), so that neither threads nor workers change a number.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from qipf.field.estimator import QIPF
from qipf.progress import silence
from qipf.ray.blocks import (
    NAME,
    checked_dataset,
    chosen_of,
    known_width,
    logits_of,
    ordered,
)
from qipf.ray.connection import (
    RETRIES,
    checked_workers,
    cluster,
    connected,
    got,
    plan_of,
    ray,
    require_connection,
)
from qipf.scoring.shard_folders import Shard
from qipf.scoring.shards import Draft, Run, Tell, score_shard
from qipf.scoring.table import checked_field, require_new_names, require_width, steady_results

#: What to do about a shard that no worker survives.
FEWER = "Finished shards are kept: run again, with fewer workers."

#: Seconds that stopped workers are given to end.
ENDING = 10.0

# ---------------------------------------------------------------------- shards


def on_ray(workers: int | None = None, address: str | None = None) -> Run:
    """A way for `qipf.io.logits.score_shards` to run: on a Ray cluster (see `cluster`).

    ``score_shards(field, "predictions", "scored", run=on_ray(workers=2))``. All machines must see
    both folders under the same paths. A shard whose worker is lost is begun again on another;
    workers write drafts, of which the caller's process puts one in place.
    """
    checked_workers(workers)
    require_connection(address)
    ray()  # told now, if it is missing

    def run(
        field: QIPF, shards: Sequence[Shard], tell: Tell
    ) -> Generator[tuple[Shard, Draft], None, None]:
        if not shards:
            return
        with cluster(address, workers, accelerated=_may_use_gpus(field)) as plan:
            remote = ray().remote(max_calls=0, max_retries=RETRIES, **plan.needs)(_score_one)
            box = [ray().put(_slim(field))]  # in a list it stays a reference
            yield from _written(remote, box, shards, plan.workers, tell)

    return run


def _written(
    remote: Any, box: list[Any], shards: Sequence[Shard], workers: int, tell: Tell
) -> Iterator[tuple[Shard, Draft]]:
    """Each shard when its draft is there; as many are under way as there are workers."""
    waiting = list(shards)[::-1]
    busy: dict[Any, Shard] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                shard = waiting.pop()
                busy[remote.remote(box, _absolute(shard))] = shard
            for reference in ray().wait(list(busy))[0]:
                shard = busy.pop(reference)
                yield shard, got(reference, str(shard.source), FEWER)
                tell(shard.rows)
    finally:
        for reference in busy:  # nobody waits for them any more
            ray().cancel(reference, force=True)
        if busy:  # until they have ended: what they were writing is cleared next
            ray().wait(list(busy), num_returns=len(busy), timeout=ENDING)


def _score_one(box: list[Any], shard: Shard) -> Draft:
    """The task of a worker."""
    return score_shard(_own(box[0]), shard, lambda _: None)


#: The field that this worker holds, by its reference.
_held: dict[Any, QIPF] = {}


def _own(reference: Any) -> QIPF:
    if reference not in _held:
        _held.clear()
        _held[reference] = _settled_in(ray().get(reference))
    return _held[reference]


def _settled_in(field: QIPF) -> QIPF:
    """A field made at home in a worker process."""
    silence()
    torch.set_num_threads(1)  # the machine's other cores have workers of their own
    return copy.deepcopy(field)  # what Ray hands out is read-only


def _slim(field: QIPF) -> QIPF:
    """The field without the training rows that it may still hold."""
    slim = copy.copy(field)
    slim.__dict__.pop("_seen", None)
    return slim


def _may_use_gpus(field: QIPF) -> bool:
    return field.device == "auto" or torch.device(field.device).type == "cuda"


def _absolute(shard: Shard) -> Shard:
    """The same shard for a process with another working folder."""
    # a target that is a link itself is replaced, not what it leads to
    target = shard.target.parent.resolve() / shard.target.name
    return replace(shard, source=shard.source.resolve(), target=target)


# ---------------------------------------------------------------------- datasets


def score(
    dataset: Any,
    field: QIPF,
    columns: str | None = None,
    modes: bool = False,
    *,
    workers: int | None = None,
) -> Any:
    """A Ray Data dataset with the uncertainty of every row, and without the logits.

    Lazy, as Ray Data is: the work is done when the result is read. Rows stay in order; all other
    columns are carried along. Workers that are lost are replaced, and their blocks done again.

    Parameters
    ----------
    dataset : a `ray.data.Dataset`.
    field : a fitted field.
    columns : names or patterns of the logits' columns, by comma; those named ``logit*`` if not
        given. One column may also hold all logits of a row, as a list or tensor.
    modes : add the modes too, as `mode_1`, `mode_2`, … by their orders.
    workers : how many, at most; one for every GPU, or else CPU, if not given.
    """
    checked_field(field)
    dataset = checked_dataset(dataset)
    chosen = chosen_of(dataset, columns)
    width = known_width(dataset, chosen)
    if width is not None:
        require_width(NAME, width, field)
    require_new_names(NAME, dataset.columns(), chosen, field, modes)
    checked_workers(workers)
    connected(None, workers)  # and stay: the work is done when the result is read
    plan = plan_of(workers, _may_use_gpus(field))
    scored = dataset.map_batches(
        _Scorer,
        # in a list it stays a reference, which each worker follows once
        fn_constructor_args=([ray().put(_slim(field))], tuple(chosen), modes),
        compute=ray().data.ActorPoolStrategy(min_size=1, max_size=plan.workers),
        batch_format="pyarrow",
        batch_size=None,
        **plan.needs,
    )
    return ordered(scored)


class _Scorer:
    """A worker of the dataset's pool."""

    def __init__(self, box: list[Any], columns: Sequence[str], modes: bool) -> None:
        self._field, self._columns, self._modes = _own(box[0]), columns, modes

    def __call__(self, batch: Any) -> Any:
        logits = logits_of(batch, self._columns)
        if batch.num_rows:  # lists have a width of their own, and without rows none
            require_width(NAME, logits.shape[1], self._field)
        batch = batch.drop_columns(list(self._columns))  # first: a logit may have a result's name
        for name, values in steady_results(self._field, logits, self._modes).items():
            batch = batch.append_column(name, [values])
        return batch
