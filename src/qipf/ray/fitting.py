"""Fitting on a cluster: every block draws its sample and condenses its rows; here they are merged.

Every row draws a number, and the rows with the smallest numbers form the sample (see
`qipf.field.reservoir.Reservoir`). A block is told where the random sequence stands at its first row, so
its rows draw what they would have drawn one after the other on one machine. Hence with
``reduction="random"`` the field is the same, to the last bit, as the one `QIPF.fit` gives for all
rows in the dataset's order. With ``"coreset"`` the sample is the same too, and with it what is
usual; the centres are not: each block condenses its own rows, what comes out is merged in the
blocks' order, and the centres are fitted to that instead of to the rows. The field is close to the
local one, not equal to it. The same blocks always give the same field.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from qipf.errors import QIPFInputError
from qipf.field.bandwidth import nearness_to_error
from qipf.field.estimator import QIPF
from qipf.field.parameters import check_parameters, checked_random_state, reduction_for
from qipf.field.reservoir import PartialSample, RemoteSampler, TrainingRows
from qipf.io.logits.columns import AUTO, chosen_label
from qipf.io.logits.table import checked_labels
from qipf.progress import progress_bar
from qipf.ray.blocks import (
    NAME,
    checked_dataset,
    chosen_of,
    in_order,
    logits_of,
    uneven,
    values_of,
)
from qipf.ray.connection import RETRIES, WorkerPlan, cluster, got, ray

#: What to do about a block that no worker survives.
SMALLER = "Cut the dataset into smaller blocks: dataset.repartition(…)."


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
    field : the parameters, as a `QIPF` that need not be fitted; it is not changed. Its default
        condenses short rows, so give ``reduction="random"`` where the field must equal a local one.
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
    with cluster(workers=workers, accelerated=False) as plan, in_order(dataset):
        reduction = reduction_for(fresh, lambda: _dimension(dataset, chosen))
        seen = TrainingRows(int(fresh.max_centers), reduction, random)
        parts = _drawn_parts(dataset, seen, chosen, label, plan)
        with progress_bar("reading", unit="row") as bar:
            width = None
            for part in parts:
                width = width or part.first.shape[1]
                if part.first.shape[1] != width:
                    raise uneven()
                seen.merge(part, label is not None)
                bar.update(part.count)
    if seen.count < 2:
        raise QIPFInputError(f"{NAME} has {seen.count} rows, but at least 2 are needed.")
    return _settled(fresh, seen)


def _dimension(dataset: Any, chosen: list[str]) -> int:
    """How long the rows are; 0 where there is none."""
    if len(chosen) > 1:
        return len(chosen)
    first = next(iter(dataset.limit(1).iter_batches(batch_format="pyarrow")), None)
    return 0 if first is None else int(logits_of(first, tuple(chosen)).shape[1])


def _drawn_parts(
    dataset: Any, seen: TrainingRows, chosen: list[str], label: str | None, plan: WorkerPlan
) -> Iterator[PartialSample]:
    """What each block keeps, in order; a few blocks are under way at a time."""
    remote = ray().remote(_draw).options(**plan.needs, max_retries=RETRIES)
    under_way: deque[Any] = deque()
    for bundle in dataset.iter_internal_ref_bundles():
        for block, about in zip(bundle.block_refs, bundle.metadata, strict=True):
            if about.num_rows == 0:
                continue
            sampler = seen.remote_sampler(about.num_rows)
            under_way.append(remote.remote(block, tuple(chosen), label, sampler))
            if len(under_way) > 2 * plan.workers:
                yield got(under_way.popleft(), "A block", SMALLER)
    while under_way:
        yield got(under_way.popleft(), "A block", SMALLER)


def _draw(
    block: Any, columns: tuple[str, ...], label: str | None, sampler: RemoteSampler
) -> PartialSample:
    """The task of a worker."""
    torch.set_num_threads(1)
    logits = logits_of(block, columns)
    rows, nearness = torch.from_numpy(logits.copy()), None  # what Ray hands out is read-only
    if label is not None:
        classes = checked_labels(
            values_of(block, label), logits.shape[1], NAME, "row {} of a block".format
        )
        nearness = nearness_to_error(logits.argmax(1) != classes, rows)
    return sampler.sample(rows, nearness)


def _settled(field: QIPF, seen: TrainingRows) -> QIPF:
    """The field of these rows, which `partial_fit` may go on with."""
    sample = seen.sample
    field.n_features_in_ = sample.shape[1]
    field._seen, field._device = seen, field._compute_device(sample, None)
    field.n_samples_seen_ = seen.count
    field._settle()
    return field
