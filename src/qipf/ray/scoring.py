"""Scoring on a cluster: a folder's shards, or a Ray Data dataset.

The field is sent once to every worker, which computes with the fastest engine it has; on a CPU,
with one thread. Blocks are padded to whole tiles as in a local run (see
`qipf.scoring.results.steady_results`), so that neither threads nor workers change a number.
"""

import copy
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import torch

from qipf.field.estimator import QIPF
from qipf.io.logits.columns import logit_columns
from qipf.progress import silence
from qipf.ray.blocks import NAME, checked_dataset, in_order, read_block
from qipf.ray.connection import (
    RETRIES,
    check_connection,
    cluster,
    connect,
    plan_workers,
    ray,
    run_tasks,
)
from qipf.scoring.results import require_new_names, result_names, steady_results
from qipf.scoring.shard_plan import Shard
from qipf.scoring.shards import Draft, Progress, Run, score_shard
from qipf.scoring.table import checked_field, require_width

#: Advice for a shard that no worker survives.
FEWER = "Finished shards are kept: run again, with fewer workers."


def on_ray(workers: int | None = None, address: str | None = None) -> Run:
    """The `run` argument of `qipf.scoring.score_shards` for a Ray cluster (see `cluster`).

    ``score_shards(field, "predictions", "scored", run=on_ray(workers=2))``. All machines must see
    both folders under the same paths. A shard whose worker is lost is started again on another;
    workers write drafts, of which the caller's process publishes one.
    """
    check_connection(address, workers)

    def run(
        field: QIPF, shards: Sequence[Shard], progress: Progress
    ) -> Generator[tuple[Shard, Draft], None, None]:
        if not shards:
            return
        with cluster(address, workers, accelerated=_may_use_gpus(field)) as plan:
            remote = ray().remote(max_calls=0, max_retries=RETRIES, **plan.needs)(_score_one)
            box = [ray().put(field.without_rows())]  # in a list it stays a reference
            results = run_tasks(
                lambda shard: remote.remote(box, _absolute(shard)),
                shards,
                plan.workers,
                lambda shard: str(shard.source),
                FEWER,
            )
            for shard, draft in results:
                yield shard, draft
                progress(shard.rows)

    return run


def _score_one(box: list[Any], shard: Shard) -> Draft:
    """The task of a worker."""
    return score_shard(_worker_field(box[0]), shard, int)


#: The field of this worker process, by its reference.
_fields: dict[Any, QIPF] = {}


def _worker_field(reference: Any) -> QIPF:
    """The field in a worker process, which is prepared for it once."""
    if reference not in _fields:
        silence()
        torch.set_num_threads(1)  # the other cores have their own workers
        _fields.clear()
        _fields[reference] = copy.deepcopy(ray().get(reference))  # Ray's arrays are read-only
    return _fields[reference]


def _may_use_gpus(field: QIPF) -> bool:
    return field.device == "auto" or torch.device(field.device).type == "cuda"


def _absolute(shard: Shard) -> Shard:
    """The same shard for a process with another working folder."""
    # a target that is a link itself is replaced, not the file it leads to
    target = shard.target.parent.resolve() / shard.target.name
    return replace(shard, source=shard.source.resolve(), target=target)


def score(
    dataset: Any,
    field: QIPF,
    columns: str | None = None,
    modes: bool = False,
    results: Sequence[str] | None = None,
    *,
    workers: int | None = None,
) -> Any:
    """A Ray Data dataset with the results of every row, and without the logits.

    Lazy, as Ray Data is: the work is done when the result is read. Rows stay in order; all other
    columns are kept. Workers that are lost are replaced, and their blocks scored again.

    Parameters
    ----------
    dataset : a `ray.data.Dataset`.
    field : a fitted field.
    columns : names or patterns of the logits' columns, separated by commas; ``logit*`` if not
        given. One column may also hold all logits of a row, as a list or tensor.
    modes : add the modes too, as `mode_1`, `mode_2`, … by their orders.
    results : which of `qipf.scoring.results.RESULTS` to add besides `uncertainty`; by default all
        that the field knows.
    workers : most workers; one for every GPU, or else CPU, if not given.
    """
    checked_field(field)
    dataset = checked_dataset(dataset)
    chosen = logit_columns(NAME, dataset.columns() or [], columns)
    if len(chosen) > 1:  # the length of lists is known when they are read
        require_width(NAME, len(chosen), field)
    names = result_names(field, modes, results)
    require_new_names(NAME, dataset.columns(), chosen, names)
    connect(None, workers)  # not closed: the work is done when the result is read
    plan = plan_workers(workers, _may_use_gpus(field))
    scored = dataset.map_batches(
        _Scorer,
        # in a list it stays a reference, which each worker resolves once
        fn_constructor_args=([ray().put(field.without_rows())], tuple(chosen), names),
        compute=ray().data.ActorPoolStrategy(min_size=1, max_size=plan.workers),
        batch_format="pyarrow",
        batch_size=None,
        **plan.needs,
    )
    return in_order(scored)


class _Scorer:
    """A worker of the dataset's pool."""

    def __init__(self, box: list[Any], columns: Sequence[str], names: Sequence[str]) -> None:
        self._field, self._columns, self._names = _worker_field(box[0]), columns, names

    def __call__(self, batch: Any) -> Any:
        logits = read_block(batch, self._columns).logits
        if batch.num_rows:  # empty lists have no length
            require_width(NAME, logits.shape[1], self._field)
        batch = batch.drop_columns(list(self._columns))  # first: a logit may have a result's name
        for name, values in steady_results(self._field, logits, self._names).items():
            batch = batch.append_column(name, [values])
        return batch
