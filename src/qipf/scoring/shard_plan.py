"""The shards of a folder: which there are, and which of them are finished."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.logits.columns import logit_columns
from qipf.io.logits.parquet_files import require_numeric, schema_and_rows
from qipf.progress import progress, progress_bar
from qipf.scoring.provenance import Provenance, file_digest, provenance_of, read_provenance
from qipf.scoring.results import require_new_names, result_names
from qipf.scoring.table import Scored, require_width


@dataclass(frozen=True)
class Shard:
    """One file to score, with everything that a worker needs to know of it."""

    source: Path
    target: Path
    rows: int
    schema: Any  # pyarrow's, of the source
    columns: tuple[str, ...]  # names of the logits
    results: tuple[str, ...]  # names of the columns to add
    provenance: Provenance  # without the input, whose digest is added when it is read


def find_shards(
    field: QIPF,
    folder: Path,
    output: Path,
    columns: str | None,
    modes: bool = False,
    results: Sequence[str] | None = None,
) -> list[Shard]:
    """The shards of a folder, sorted by name, each checked by its footer."""
    if not folder.is_dir():
        raise QIPFInputError(f"There is no folder {folder}.")
    if output.exists() and not output.is_dir():
        raise QIPFInputError(f"{output} is a file; the output of a folder is a folder.")
    sources = _parquet_files(folder)
    _require_separate(folder, output, sources)
    if not sources:
        ignored = any(folder.rglob("*.parquet"))
        hint = ", except names that begin with . or _, which are ignored" if ignored else ""
        raise QIPFInputError(f"There are no .parquet files in {folder}{hint}.")
    shards: list[Shard] = []
    for source in progress(sources, "looking at shards"):
        schema, rows = schema_and_rows(source)
        target = output / source.relative_to(folder)
        if shards:
            _require_same(source, schema, shards[0])
            shards.append(
                replace(shards[0], source=source, target=target, rows=rows, schema=schema)
            )
            continue
        # once for all shards: a pattern may select columns in the order of the file
        chosen = logit_columns(str(source), schema.names, columns)
        require_numeric(source, schema, chosen)
        require_width(str(source), len(chosen), field)
        names = result_names(field, modes, results)
        require_new_names(str(source), schema.names, chosen, names)
        provenance = provenance_of(field, chosen, names)
        shards.append(Shard(source, target, rows, schema, tuple(chosen), names, provenance))
    return shards


def finished_shards(
    shards: Sequence[Shard], output: Path, overwrite: bool = False
) -> dict[Shard, Scored]:
    """The shards that need not be scored again, with the summaries of their scores."""
    unknown = set(_parquet_files(output)) - {shard.target for shard in shards}
    if unknown:
        raise QIPFInputError(
            f"{min(unknown)} is not the output of any of these shards. Delete it, or choose "
            "another output folder."
        )
    existing = [shard for shard in shards if shard.target.exists()]
    finished: dict[Shard, Scored] = {}
    size = sum(shard.source.stat().st_size for shard in existing if shard.source.exists())
    with progress_bar("comparing finished shards with their input", size, unit="B") as bar:
        for shard in existing:
            if shard.target.is_dir():
                raise QIPFInputError(
                    f"{shard.target} is a folder, but a shard is to be written there. Choose "
                    "another output folder."
                )
            found = read_provenance(shard.target)
            now = replace(shard.provenance, input=file_digest(shard.source, bar.update))
            if found is not None and found[0] == now:
                finished[shard] = found[1]
            elif not overwrite:
                how = "not made by qipf score"
                if found:
                    how = f"made with another {', '.join(found[0].differences(now))}"
                raise QIPFInputError(
                    f"{shard.target} was {how}. Choose another output folder, or pass --overwrite "
                    "to replace it."
                )
    return finished


def _require_separate(folder: Path, output: Path, sources: Sequence[Path]) -> None:
    """Raise if output files would be taken for input; links may lead a source into the output."""
    inside, outside = folder.resolve(), output.resolve()
    parents = {parent for source in sources for parent in source.resolve().parents}
    if outside in {inside, *inside.parents, *parents} or inside in outside.parents:
        raise QIPFInputError(
            f"{output} and {folder} overlap: output files would be taken for input. Choose an "
            "output folder beside it."
        )


def _parquet_files(folder: Path) -> list[Path]:
    """All Parquet files below a folder, except names that begin with a dot or an underscore.

    Links to folders are followed, as `pyarrow.dataset` does.
    """

    def fail(error: OSError) -> None:  # rows must not be omitted silently
        raise QIPFInputError(f"Cannot read {error.filename}: {error.strerror}.") from error

    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        folders[:] = [name for name in folders if name[0] not in "._"]
        for name in folders:
            if Path(place).resolve().is_relative_to(Path(place, name).resolve()):
                raise QIPFInputError(
                    f"{Path(place, name)} links to a folder that contains it. Remove the link."
                )
        names = [
            name for name in names if name[0] not in "._" and name.lower().endswith(".parquet")
        ]
        found += [Path(place, name) for name in names]
    # broken links and pipes stay, and raise when they are opened: their rows would be missing
    return sorted(found)


def _require_same(source: Path, schema: Any, first: Shard) -> None:
    types, others = (dict(zip(s.names, s.types, strict=True)) for s in (schema, first.schema))
    for name in {**others, **types}:
        found, expected = (str(each.get(name, "missing")) for each in (types, others))
        if found != expected:
            raise QIPFInputError(
                f"{source} differs from {first.source}: its column {name!r} is {found}, not "
                f"{expected}. Shards of one folder must have one schema; score others as a folder "
                "of their own."
            )
