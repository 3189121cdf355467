"""Fitting on a cluster: each block draws its sample and condenses its rows; results are merged.

Every row draws a number, and the rows with the smallest numbers form the sample (see
`qipf.field.reservoir.Reservoir`). A block gets the state of the random sequence at its first row,
so that its rows draw the same numbers as in one pass on one machine. Hence with
``reduction="random"`` the field is equal, to the last bit, to that of `QIPF.fit` for all rows in
the dataset's order. With ``"coreset"`` the sample is the same too; the centres are not: each block
condenses its own rows, the results are merged in the order of the blocks, and the centres are
fitted to these instead of to the rows. The field is close to the local one, not equal to it. The
same blocks always give the same field.
"""

from collections.abc import Iterator
from typing import Any

import torch

from qipf.errors import QIPFInputError
from qipf.field.bandwidth import nearness_to_error
from qipf.field.estimator import QIPF
from qipf.field.parameters import check_parameters, checked_random_state, reduction_for
from qipf.field.reservoir import PartialSample, RemoteSampler, TrainingRows
from qipf.io.logits.columns import AUTO, logit_and_label_columns
from qipf.progress import progress_bar
from qipf.ray.blocks import NAME, UNEQUAL, checked_dataset, in_order, read_block
from qipf.ray.connection import RETRIES, cluster, ray, run_tasks
from qipf.validation.labels import errors_of

#: Advice for a block that no worker survives.
SMALLER = "Cut the dataset into smaller blocks: dataset.repartition(…)."


def fit(
    dataset: Any,
    field: QIPF | None = None,
    columns: str | None = None,
    labels: str | None = AUTO,
    *,
    workers: int | None = None,
) -> QIPF:
    """Fit a field to a Ray Data dataset, which may be larger than the memory of one machine.

    Parameters
    ----------
    dataset : a `ray.data.Dataset` of training logits.
    field : the parameters, as a `QIPF` that need not be fitted; it is not changed. Its default
        condenses short rows, so give ``reduction="random"`` where the field must equal a local one.
    columns : names or patterns of the logits' columns, separated by commas; ``logit*`` if not
        given. One column may also hold all logits of a row, as a list or tensor.
    labels : the column of true classes; ``"auto"`` takes `labels` or `label` if there is one, None
        takes none.
    workers : most workers; one for every CPU if not given.
    """
    dataset = checked_dataset(dataset)
    chosen, label = logit_and_label_columns(NAME, dataset.columns() or [], columns, labels)
    fresh = QIPF() if field is None else QIPF(**field.get_params())
    check_parameters(fresh)
    random = checked_random_state(fresh.random_state)
    with cluster(workers=workers, accelerated=False) as plan:
        dataset = in_order(dataset)
        dataset.context.enable_progress_bars = False
        reduction = reduction_for(fresh, lambda: _dimension(dataset, chosen))
        seen = TrainingRows(int(fresh.max_centers), reduction, random)
        remote = ray().remote(_draw).options(**plan.needs, max_retries=RETRIES)
        parts = run_tasks(
            lambda job: remote.remote(*job, tuple(chosen), label),
            _blocks(dataset, seen),
            2 * plan.workers,  # so that workers are busy while parts are merged
            lambda _: "A block",
            SMALLER,
            ordered=True,
        )
        with progress_bar("reading", unit="row") as bar:
            width = None
            for _, part in parts:
                width = width or part.first.shape[1]
                if part.first.shape[1] != width:
                    raise QIPFInputError(UNEQUAL)
                seen.merge(part, label is not None)
                bar.update(part.count)
    if seen.count < 2:
        raise QIPFInputError(f"{NAME} has {seen.count} rows, but at least 2 are needed.")
    return fresh.fit_rows(seen)


def _dimension(dataset: Any, chosen: list[str]) -> int:
    """Length of the rows; 0 if there are none."""
    if len(chosen) > 1:
        return len(chosen)
    first = next(iter(dataset.limit(1).iter_batches(batch_format="pyarrow")), None)
    return 0 if first is None else int(read_block(first, chosen).logits.shape[1])


def _blocks(dataset: Any, seen: TrainingRows) -> Iterator[tuple[Any, RemoteSampler]]:
    """References of the blocks that have rows, each with the sampler of its rows."""
    for bundle in dataset.iter_internal_ref_bundles():
        for block, metadata in zip(bundle.block_refs, bundle.metadata, strict=True):
            if metadata.num_rows:
                yield block, seen.remote_sampler(metadata.num_rows)


def _draw(
    block: Any, sampler: RemoteSampler, columns: tuple[str, ...], label: str | None
) -> PartialSample:
    """The task of a worker."""
    torch.set_num_threads(1)
    rows = read_block(block, columns, label)
    logits, nearness = torch.from_numpy(rows.logits.copy()), None  # Ray's arrays are read-only
    if rows.labels is not None:
        wrong = errors_of(logits, rows.labels, "labels")
        nearness = nearness_to_error(wrong.numpy(), logits)
    return sampler.sample(logits, nearness)
