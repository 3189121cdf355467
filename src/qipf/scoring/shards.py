"""Scoring a folder of Parquet shards: one output shard for each, resumable at any point.

Memory does not grow with a shard: rows are read, scored and written in blocks. An output shard is
written atomically, under the name of its input. A run that is started again keeps finished shards
(see `qipf.scoring.provenance`) and scores the rest. Shards of another field, other options or
another input raise an error, unless the caller asks to overwrite them.

The process that scores a shard, here or on another machine, writes a hidden draft beside its
target. Only the process that called `score_shards`, which holds the lock of the output folder,
publishes drafts, one for each shard: a lost worker that finishes late changes nothing.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from qipf.errors import QIPFError, QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.atomic import checked_name, draft_file, locked_folder, publish, remove_drafts
from qipf.io.logits.parquet_files import batch_block, parquet_file, pyarrow, read_batches
from qipf.progress import progress_bar
from qipf.scoring.provenance import as_metadata, unchanged
from qipf.scoring.results import RESULTS, steady_results
from qipf.scoring.shard_plan import Shard, find_shards, finished_shards
from qipf.scoring.table import Scored, checked_field
from qipf.validation.parameters import propagates


@dataclass(frozen=True)
class Draft:
    """The scores of a shard, complete and on disk, but not yet published."""

    path: Path
    scored: Scored


#: Called with the number of rows of each scored block.
Progress = Callable[[int], object]

#: Scores shards, and yields each with its draft, in any order.
Run = Callable[[QIPF, Sequence[Shard], Progress], Generator[tuple[Shard, Draft], None, None]]


@dataclass
class ScoredShards:
    """Summary of the scores of all shards."""

    total: Scored
    shards: int
    kept: int  # shards that were finished before


def score_shards(
    field: QIPF,
    folder: Path | str,
    output: Path | str,
    columns: str | None = None,
    modes: bool = False,
    results: Sequence[str] | None = None,
    *,
    overwrite: bool = False,
    run: Run | None = None,
) -> ScoredShards:
    """Write, for every Parquet shard in a folder, one with the results of its rows.

    Parameters
    ----------
    field : a fitted field.
    folder : Parquet files of one schema, in folders of any depth; names that begin with ``.`` or
        ``_`` are ignored, as by `pyarrow.dataset`.
    output : the folder to write; shards have the same paths in it, and the input's columns other
        than the logits.
    columns : which columns are the logits, as in `open_table`.
    modes : write the modes too, as `mode_1`, `mode_2`, … by their orders.
    results : which of `qipf.scoring.results.RESULTS` to write besides `uncertainty`; by default all
        that the field knows.
    overwrite : score shards again that came from another field, other options or another input,
        instead of raising an error.
    run : how the shards are scored; in this process by default (see also `qipf.ray.on_ray`).

    >>> import tempfile
    >>> import numpy as np, pyarrow as pa, pyarrow.parquet as pq
    >>> folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
    >>> field = QIPF().fit(rng.normal(size=(100, 2)))
    >>> (folder / "in").mkdir()
    >>> for part in "ab":
    ...     rows = pa.table({"id": [1, 2], "logit_0": [0.5, 9.0], "logit_1": [0.1, 9.0]})
    ...     pq.write_table(rows, folder / "in" / f"{part}.parquet")
    >>> score_shards(field, folder / "in", folder / "out").total.rows
    4
    >>> pq.read_table(folder / "out" / "b.parquet").column_names
    ['id', 'predicted', 'uncertainty', 'outlier', 'novelty']
    """
    checked_field(field)
    output = checked_name(output)
    shards = find_shards(field, checked_name(folder), output, columns, modes, results)
    with locked_folder(output):
        done = finished_shards(shards, output, overwrite)
        kept = len(done)
        remove_drafts(shard.target for shard in shards)
        left = [shard for shard in shards if shard not in done]
        with progress_bar("scoring", sum(shard.rows for shard in shards), unit="row") as bar:
            bar.update(sum(scored.rows for scored in done.values()))
            try:
                with closing((run or _run_here)(field, left, bar.update)) as drafts:
                    for shard, draft in drafts:
                        if shard not in done:
                            done[shard] = _publish(shard, draft)
            finally:
                remove_drafts(
                    shard.target for shard in shards
                )  # of workers that were stopped, or finished late
    total = Scored()
    for shard in shards:  # always in this order, so that the mean is the same to the last digit
        total.join(done[shard])
    return ScoredShards(total, len(shards), kept)


def _run_here(
    field: QIPF, shards: Sequence[Shard], progress: Progress
) -> Generator[tuple[Shard, Draft], None, None]:
    for shard in shards:
        yield shard, score_shard(field, shard, progress)


def score_shard(field: QIPF, shard: Shard, progress: Progress) -> Draft:
    """Score one shard, and write a draft of its output."""
    arrow = pyarrow()
    total, start, finite = Scored(), 0, not propagates(field.nan_policy)
    with draft_file(shard.target) as file, unchanged(shard.source) as digest:
        _require_as_planned(shard)
        others = [entry for entry in shard.schema if entry.name not in shard.columns]
        kinds = {name: arrow.from_numpy_dtype(kind) for name, kind in RESULTS.items()}
        added = [
            arrow.field(name, kinds.get(name, arrow.float64()), nullable=False)
            for name in shard.results
        ]
        schema = arrow.schema([*others, *added], shard.schema.metadata)
        with arrow.parquet.ParquetWriter(file, schema) as writer:
            for batch in read_batches(shard.source):
                block = batch_block(shard.source, batch, shard.columns, start, finite=finite)
                results = steady_results(field, block.logits, shard.results)
                columns = [*block.others.values(), *results.values()]
                writer.write_table(arrow.table(columns, schema=schema))
                total.add(results["uncertainty"], field.outlier_limit_, block.logits)
                start += batch.num_rows
                progress(batch.num_rows)
            writer.add_key_value_metadata(
                as_metadata(replace(shard.provenance, input=digest), total)
            )
    return Draft(Path(file.name), total)


def _require_as_planned(shard: Shard) -> None:
    with parquet_file(shard.source) as file:
        if file.metadata.num_rows != shard.rows or file.schema_arrow != shard.schema:
            raise QIPFInputError(f"{shard.source} was changed after the run began. Run again.")


def _publish(shard: Shard, draft: Draft) -> Scored:
    if not draft.path.exists():
        raise QIPFError(
            f"A worker wrote {draft.path}, but it does not exist here: all machines must see "
            f"{shard.target.parent} under the same path."
        )
    publish(draft.path, shard.target)
    return draft.scored
