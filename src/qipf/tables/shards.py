"""Judging a folder of Parquet shards: one output shard for each, whatever interrupts it.

Memory does not grow with a shard: rows are read, judged and written in blocks. A shard appears
whole, under the name of its input, or not at all; started again, a run keeps the shards that are
finished (see `qipf.tables.origins`) and does the rest. Shards that came from another field, other
options or another input are refused rather than mixed in, unless the caller lets go of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qipf.durable import locked, replaced
from qipf.errors import QIPFInputError
from qipf.estimator import QIPF
from qipf.progress import progress_bar
from qipf.tables.columns import chosen_columns
from qipf.tables.origins import Origin, as_metadata, file_digest, origin_of, read_origin
from qipf.tables.parquet_files import batches, logits_of, opened, pyarrow, require_numbers
from qipf.tables.probabilities import warn_of_probabilities
from qipf.tables.scoring import Scored, checked_field, require_width, result_names, steady_results


@dataclass(frozen=True)
class Shard:
    """One file to judge; all that a process needs to know of it."""

    source: Path
    target: Path
    rows: int
    columns: tuple[str, ...]  # names of the logits
    modes: bool
    origin: Origin  # less the input, whose digest whoever reads it adds


#: Told of rows as they are done.
Tell = Callable[[int], object]

#: Judges shards one by one or side by side, and yields each, in any order, when it is finished.
Run = Callable[[QIPF, Sequence[Shard], Tell], Generator[tuple[Shard, Scored], None, None]]


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
        `qipf.distributed.score_shards`).

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
    folder, output = _separate(Path(folder), Path(output))
    shards = found_shards(field, folder, output, columns, modes)
    with locked(output):
        done = finished_shards(shards, output, overwrite)
        kept = len(done)
        _clear_leftovers(shards)
        _warn_of_probabilities(shards)
        left = [shard for shard in shards if shard not in done]
        with progress_bar("scoring", sum(shard.rows for shard in shards), unit="row") as bar:
            bar.update(sum(scored.rows for scored in done.values()))
            try:
                with closing((run or _here)(field, left, bar.update)) as results:
                    done.update(results)
            finally:
                _clear_leftovers(left)  # of workers that were stopped in the middle
    total = Scored()
    for shard in shards:  # in one order, so that the mean is the same to the last digit
        total.join(done[shard])
    return ScoredShards(total, len(shards), kept)


def _here(
    field: QIPF, shards: Sequence[Shard], tell: Tell
) -> Generator[tuple[Shard, Scored], None, None]:
    for shard in shards:
        yield shard, score_shard(field, shard, tell)


def score_shard(field: QIPF, shard: Shard, tell: Tell) -> Scored:
    """Judge one shard, and write its scores under their name when all of them are there."""
    arrow = pyarrow()
    origin = replace(shard.origin, input=file_digest(shard.source))
    with opened(shard.source) as file:
        schema = _scored_schema(file.schema_arrow, shard.columns, result_names(field, shard.modes))
    total, start = Scored(), 0
    with replaced(shard.target) as file, arrow.parquet.ParquetWriter(file, schema) as writer:
        for batch in batches(shard.source):
            logits = logits_of(str(shard.source), batch, shard.columns, start)
            results = steady_results(field, logits, shard.modes)
            others = [batch.column(k) for k in _others(batch.schema, shard.columns)]
            writer.write_table(arrow.table([*others, *results.values()], schema=schema))
            total.add(results["uncertainty"], -field.offset_)
            start += batch.num_rows
            tell(batch.num_rows)
        writer.add_key_value_metadata(as_metadata(origin, total))
    return total


def _scored_schema(schema: Any, columns: Sequence[str], results: Sequence[str]) -> Any:
    arrow = pyarrow()
    kept = [schema.field(k) for k in _others(schema, columns)]
    added = [arrow.field(name, arrow.float64(), nullable=False) for name in results]
    return arrow.schema([*kept, *added], schema.metadata)


def _others(schema: Any, columns: Sequence[str]) -> list[int]:
    chosen = set(columns)
    return [k for k, name in enumerate(schema.names) if name not in chosen]


# ---------------------------------------------------------------------- what there is to do


def found_shards(
    field: QIPF, folder: Path, output: Path, columns: str | None, modes: bool
) -> list[Shard]:
    """The shards of a folder by name, each checked as far as its footer goes."""
    sources = _parquet_files(folder)
    if not sources:
        raise QIPFInputError(f"There are no .parquet files in {folder}.")
    shards: list[Shard] = []
    first: dict[str, Any] = {}
    for source in sources:
        with opened(source) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        types = dict(zip(schema.names, schema.types, strict=True))
        if len(types) != len(schema.names):
            raise QIPFInputError(f"{source} has columns of the same name. Rename them.")
        first = first or types
        if types != first:
            raise QIPFInputError(
                f"{source} differs from {sources[0]}: {_difference(types, first)}. Shards of one "
                "folder must have one schema; score others as a folder of their own."
            )
        # once for all: a pattern may take columns in the order of the file
        chosen = shards[0].columns if shards else chosen_columns(str(source), schema.names, columns)
        require_numbers(source, schema, chosen)
        require_width(str(source), len(chosen), field)
        taken = next((name for name in result_names(field, modes) if name in types), None)
        if taken is not None and taken not in chosen:
            raise QIPFInputError(f"{source} has a column {taken!r} already. Rename it first.")
        target = output / source.relative_to(folder)
        origin = shards[0].origin if shards else origin_of(field, chosen, modes)
        shards.append(Shard(source, target, rows, tuple(chosen), modes, origin))
    return shards


def _warn_of_probabilities(shards: Sequence[Shard]) -> None:
    """Once for all shards, by the first rows there are."""
    for shard in shards:
        if shard.rows:
            with closing(batches(shard.source)) as blocks:
                logits = logits_of(str(shard.source), next(blocks), shard.columns, 0)
            warn_of_probabilities(str(shard.source), logits)
            return


def finished_shards(
    shards: Sequence[Shard], output: Path, overwrite: bool = False
) -> dict[Shard, Scored]:
    """Those that need not be done again, with what their scores come to."""
    strangers = set(_parquet_files(output)) - {shard.target for shard in shards}
    if strangers:
        raise QIPFInputError(
            f"{min(strangers)} is not the output of any of these shards. Delete it, or choose "
            "another output folder."
        )
    finished: dict[Shard, Scored] = {}
    for shard in shards:
        if not shard.target.exists():
            continue
        said = read_origin(shard.target)
        now = replace(shard.origin, input=file_digest(shard.source))
        if said is not None and said[0] == now:
            finished[shard] = said[1]
        elif not overwrite:
            how = f"was made {said[0].differs_from(now)}" if said else "was not made by qipf score"
            raise QIPFInputError(
                f"{shard.target} {how}. Choose another output folder, or pass --overwrite to "
                "replace it."
            )
    return finished


def _separate(folder: Path, output: Path) -> tuple[Path, Path]:
    if not folder.is_dir():
        raise QIPFInputError(f"There is no folder {folder}.")
    if output.exists() and not output.is_dir():
        raise QIPFInputError(f"{output} is a file; the output of a folder is a folder.")
    inside, outside = folder.resolve(), output.resolve()
    if inside == outside or inside in outside.parents or outside in inside.parents:
        raise QIPFInputError(
            f"{output} and {folder} overlap: what is written would be taken for input. Choose "
            "an output folder beside it."
        )
    return folder, output


def _parquet_files(folder: Path) -> list[Path]:
    """All of a folder and the folders in it, less what begins with a dot or an underscore."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() == ".parquet"
        and path.is_file()
        and not any(part[0] in "._" for part in path.relative_to(folder).parts)
    )


def _difference(types: dict[str, Any], first: dict[str, Any]) -> str:
    name = next(name for name in [*first, *types] if types.get(name) != first.get(name))
    if name not in types:
        return f"it has no column {name!r}"
    if name not in first:
        return f"it has a column {name!r} more"
    return f"its column {name!r} holds {types[name]}, not {first[name]}"


def _clear_leftovers(shards: Sequence[Shard]) -> None:
    """Remove what runs that were killed had begun to write."""
    names: dict[Path, set[str]] = {}
    for shard in shards:
        names.setdefault(shard.target.parent, set()).add(shard.target.name)
    for folder, targets in names.items():
        for stray in folder.glob(".*.tmp"):
            begun = re.fullmatch(r"\.(.+)\.\d+(-[0-9a-f]+)?\.tmp", stray.name)
            if begun and begun[1] in targets:
                stray.unlink(missing_ok=True)
