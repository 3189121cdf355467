"""What there is to do in a folder of shards, and what of it is done."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.logits.columns import chosen_columns
from qipf.io.logits.parquet_files import opened, require_numbers
from qipf.progress import progress, progress_bar
from qipf.scoring.provenance import Origin, file_digest, origin_of, read_origin
from qipf.scoring.table import Scored, require_new_names, require_width


@dataclass(frozen=True)
class Shard:
    """One file to judge; all that a process needs to know of it."""

    source: Path
    target: Path
    rows: int
    columns: tuple[str, ...]  # names of the logits
    modes: bool
    origin: Origin  # less the input, whose digest whoever reads it adds


def found_shards(
    field: QIPF, folder: Path, output: Path, columns: str | None, modes: bool
) -> list[Shard]:
    """The shards of a folder by name, each checked as far as its footer goes."""
    sources = _parquet_files(folder)
    if not sources:
        passed = any(folder.rglob("*.parquet"))
        hint = ", but for names that begin with . or _, which are passed over" if passed else ""
        raise QIPFInputError(f"There are no .parquet files in {folder}{hint}.")
    outside = output.resolve()
    if any(outside in source.resolve().parents for source in sources):  # by a link
        raise _overlap(folder, output)
    shards: list[Shard] = []
    first: dict[str, Any] = {}
    for source in progress(sources, "looking at shards"):
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
        require_new_names(str(source), schema.names, chosen, field, modes)
        target = output / source.relative_to(folder)
        origin = shards[0].origin if shards else origin_of(field, chosen, modes)
        shards.append(Shard(source, target, rows, tuple(chosen), modes, origin))
    return shards


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
    there = [shard for shard in shards if shard.target.exists()]
    finished: dict[Shard, Scored] = {}
    size = sum(_size(shard.source) for shard in there)
    with progress_bar("comparing finished shards with their input", size, unit="B") as bar:
        for shard in there:
            if shard.target.is_dir():
                raise QIPFInputError(
                    f"{shard.target} is a folder, but a shard is to be written there. Choose "
                    "another output folder."
                )
            said = read_origin(shard.target)
            now = replace(shard.origin, input=file_digest(shard.source, bar.update))
            if said is not None and said[0] == now:
                finished[shard] = said[1]
            elif not overwrite:
                raise QIPFInputError(
                    f"{shard.target} was "
                    f"{f'made {said[0].differs_from(now)}' if said else 'not made by qipf score'}. "
                    "Choose another output folder, or pass --overwrite to replace it."
                )
    return finished


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def require_apart(folder: Path, output: Path) -> None:
    """Refuse an output that would be taken for input, or could not be a folder."""
    if not folder.is_dir():
        raise QIPFInputError(f"There is no folder {folder}.")
    if output.exists() and not output.is_dir():
        raise QIPFInputError(f"{output} is a file; the output of a folder is a folder.")
    inside, outside = folder.resolve(), output.resolve()
    if inside == outside or inside in outside.parents or outside in inside.parents:
        raise _overlap(folder, output)


def _overlap(folder: Path, output: Path) -> QIPFInputError:
    return QIPFInputError(
        f"{output} and {folder} overlap: what is written would be taken for input. Choose an "
        "output folder beside it."
    )


def _parquet_files(folder: Path) -> list[Path]:
    """All of a folder and the folders in it, less what begins with a dot or an underscore.

    Links to folders are followed, as `pyarrow.dataset` does.
    """

    def refuse(error: OSError) -> None:  # rows must not go missing because nobody could look
        raise QIPFInputError(f"Cannot read {error.filename}: {error.strerror}.") from error

    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if name[0] not in "._"]
        here = Path(place).resolve()
        for name in folders:
            within = Path(place, name).resolve()
            if within == here or within in here.parents:
                raise QIPFInputError(
                    f"{Path(place, name)} links to a folder that it lies in. Remove the link."
                )
        found += [
            Path(place, name)
            for name in names
            if name[0] not in "._" and name.lower().endswith(".parquet")
        ]
    # a link to nothing stays, to be refused: somebody thinks that there are rows
    return sorted(path for path in found if path.is_file() or not path.exists())


def _difference(types: dict[str, Any], first: dict[str, Any]) -> str:
    name = next(name for name in [*first, *types] if types.get(name) != first.get(name))
    if name not in types:
        return f"it has no column {name!r}"
    if name not in first:
        return f"it has a column {name!r} more"
    return f"its column {name!r} holds {types[name]}, not {first[name]}"


def clear_leftovers(shards: Sequence[Shard]) -> None:
    """Remove the drafts that nobody will put in place: of runs that were killed, of lost workers.

    One that is still being written has no name from then on, and is gone when it is closed.
    """
    names: dict[Path, set[str]] = {}
    for shard in shards:
        names.setdefault(shard.target.parent, set()).add(shard.target.name)
    for folder, targets in names.items():
        for stray in folder.glob(".*.tmp"):
            begun = re.fullmatch(r"\.(.+)\.\d+(-[0-9a-f]+)?\.tmp", stray.name)
            if begun and begun[1] in targets:
                with suppress(OSError):  # hidden and harmless; the next run tries again
                    stray.unlink()
