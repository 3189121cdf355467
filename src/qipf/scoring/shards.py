"""Judging a folder of Parquet shards: one output shard for each, whatever interrupts it.

Memory does not grow with a shard: rows are read, judged and written in blocks. A shard appears
whole, under the name of its input, or not at all; started again, a run keeps the shards that are
finished (see `qipf.scoring.provenance`) and does the rest. Shards that came from another field, other
options or another input are refused rather than mixed in, unless the caller lets go of them.

Whoever judges a shard, in this process or on another machine, writes a hidden draft beside its
place. Only the process that called `score_shards`, which holds the output's lock, puts drafts in
place, one for each shard: a worker that was given up and comes late changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qipf.errors import QIPFError, QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.atomic import draft_file, locked_folder, publish
from qipf.io.logits.parquet_files import batches, logits_of, opened, pyarrow, require_numbers
from qipf.io.logits.probabilities import warn_of_probabilities
from qipf.progress import progress_bar
from qipf.scoring.provenance import Origin, as_metadata, as_read, read_origin
from qipf.scoring.shard_folders import (
    Shard,
    clear_leftovers,
    finished_shards,
    found_shards,
    require_apart,
)
from qipf.scoring.table import (
    Scored,
    checked_field,
    require_new_names,
    result_names,
    steady_results,
)


@dataclass(frozen=True)
class Draft:
    """The scores of a shard, whole and on the disk, but not yet under their name."""

    path: Path
    origin: Origin
    scored: Scored


#: Told of rows as they are done.
Tell = Callable[[int], object]

#: Judges shards one by one or side by side, and yields each, in any order, when it is written.
Run = Callable[[QIPF, Sequence[Shard], Tell], Generator[tuple[Shard, Draft], None, None]]


@dataclass
class ScoredShards:
    """What the scores of all shards come to."""

    total: Scored
    shards: int
    kept: int  # shards that were finished before


def score_shards(
    field: QIPF,
    folder: Path | str,
    output: Path | str,
    columns: str | None = None,
    modes: bool = False,
    *,
    overwrite: bool = False,
    run: Run | None = None,
) -> ScoredShards:
    """Write, for every Parquet shard in a folder, one with the uncertainty of its rows.

    Parameters
    ----------
    field : a fitted field.
    folder : Parquet files of one schema, in folders of any depth; names that begin with ``.`` or
        ``_`` are passed over, as `pyarrow.dataset` does.
    output : the folder to write; shards have the same places and names in it, and the input's
        columns other than the logits.
    columns : which columns are the logits, as in `open_table`.
    modes : write the modes too, as `mode_1`, `mode_2`, … by their orders.
    overwrite : do shards again that came from another field, other options or another input,
        instead of refusing them.
    run : how the work is done; in this process unless told otherwise (see
        `qipf.ray.on_ray`).

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
    ['id', 'uncertainty']
    """
    checked_field(field)
    folder, output = Path(folder), Path(output)
    require_apart(folder, output)
    shards = found_shards(field, folder, output, columns, modes)
    with locked_folder(output):
        done = finished_shards(shards, output, overwrite)
        kept = len(done)
        clear_leftovers(shards)
        _warn_of_probabilities(shards)
        left = [shard for shard in shards if shard not in done]
        with progress_bar("scoring", sum(shard.rows for shard in shards), unit="row") as bar:
            bar.update(sum(scored.rows for scored in done.values()))
            try:
                with closing((run or _here)(field, left, bar.update)) as results:
                    for shard, draft in results:
                        if shard not in done:
                            done[shard] = _put_in_place(shard, draft)
            finally:
                clear_leftovers(shards)  # of workers that were stopped, or came late
    total = Scored()
    for shard in shards:  # in one order, so that the mean is the same to the last digit
        total.join(done[shard])
    return ScoredShards(total, len(shards), kept)


def _here(
    field: QIPF, shards: Sequence[Shard], tell: Tell
) -> Generator[tuple[Shard, Draft], None, None]:
    for shard in shards:
        yield shard, score_shard(field, shard, tell)


def score_shard(field: QIPF, shard: Shard, tell: Tell) -> Draft:
    """Judge one shard, and write its scores beside their place."""
    arrow = pyarrow()
    total, start = Scored(), 0
    with draft_file(shard.target) as file, as_read(shard.source) as digest:
        origin = replace(shard.origin, input=digest)
        schema = _scored_schema(_schema_as_found(shard, field), shard, field)
        with arrow.parquet.ParquetWriter(file, schema) as writer:
            for batch in batches(shard.source):
                logits = logits_of(str(shard.source), batch, shard.columns, start)
                results = steady_results(field, logits, shard.modes)
                others = [batch.column(k) for k in _others(batch.schema, shard)]
                writer.write_table(arrow.table([*others, *results.values()], schema=schema))
                total.add(results["uncertainty"], -field.offset_)
                start += batch.num_rows
                tell(batch.num_rows)
            writer.add_key_value_metadata(as_metadata(origin, total))
    return Draft(Path(file.name), origin, total)


def _put_in_place(shard: Shard, draft: Draft) -> Scored:
    """Give a draft the name of its shard, if it is what its writer said."""
    if not draft.path.exists():
        raise QIPFError(
            f"A worker wrote {draft.path}, but it is not to be seen here: all machines must see "
            f"{shard.target.parent} under the same path."
        )
    if read_origin(draft.path) != (draft.origin, draft.scored):
        raise QIPFError(
            f"{draft.path} is not what a worker said it wrote for {shard.source}. Check the disk, "
            "and run again: finished shards are kept."
        )
    publish(draft.path, shard.target)
    return draft.scored


def _schema_as_found(shard: Shard, field: QIPF) -> Any:
    with opened(shard.source) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    if rows != shard.rows or not set(shard.columns) <= set(schema.names):
        raise QIPFInputError(f"{shard.source} was changed after the run began. Run again.")
    require_numbers(shard.source, schema, shard.columns)
    require_new_names(str(shard.source), schema.names, shard.columns, field, shard.modes)
    return schema


def _scored_schema(schema: Any, shard: Shard, field: QIPF) -> Any:
    arrow = pyarrow()
    kept = [schema.field(k) for k in _others(schema, shard)]
    names = result_names(field, shard.modes)
    added = [arrow.field(name, arrow.float64(), nullable=False) for name in names]
    return arrow.schema([*kept, *added], schema.metadata)


def _others(schema: Any, shard: Shard) -> list[int]:
    chosen = set(shard.columns)
    return [k for k, name in enumerate(schema.names) if name not in chosen]


def _warn_of_probabilities(shards: Sequence[Shard]) -> None:
    """Once for all shards, by the first rows there are."""
    for shard in shards:
        if shard.rows:
            with closing(batches(shard.source)) as blocks:
                logits = logits_of(str(shard.source), next(blocks), shard.columns, 0)
            warn_of_probabilities(str(shard.source), logits)
            return
