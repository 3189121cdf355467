"""Logits in Parquet files: one column a logit (needs pyarrow)."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFError, QIPFInputError, first_line
from qipf.io.logits.columns import chosen_columns, chosen_label
from qipf.io.logits.table import Block, Table, checked_labels, require_finite, rows_per_block

#: Bytes of a block of rows, about, by the size of some of them.
BYTES_PER_BLOCK = 2**26

#: Row groups that are looked into for the size of a row, about, and rows in each.
PROBES, PROBED = 8, 64

#: Bytes read ahead of each column: a row group may be larger than memory.
READ_AHEAD = 2**18


def pyarrow() -> Any:
    """The library that reads and writes Parquet, asked for only when it is needed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise QIPFError("Parquet files need pyarrow: pip install 'qipf[parquet]'.") from error
    return pyarrow


def open_parquet(path: Path, columns: str | None, labels: str | None) -> Table:
    """A Parquet file whose columns are logits, perhaps a label, and others to carry along."""
    with opened(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    names = list(schema.names)
    label = chosen_label(str(path), names, labels)
    chosen = chosen_columns(str(path), names, columns)
    if label in chosen:
        raise QIPFInputError(
            f"{path}: the column {label!r} is chosen as a logit and as the label. Narrow --columns."
        )
    require_numbers(path, schema, [*chosen, *([label] if label else [])])
    if rows == 0:
        raise QIPFInputError(f"{path} has no rows.")

    def blocks() -> Iterator[Block]:
        start = 0
        for batch in batches(path):
            yield _block(str(path), batch, chosen, label, start)
            start += batch.num_rows

    return Table(str(path), rows, tuple(chosen), label is not None, blocks)


def require_numbers(path: Path, schema: Any, names: Sequence[str]) -> None:
    """Refuse columns that hold anything else."""
    types = pyarrow().types
    for name in names:
        kind = schema.field(name).type
        if not (types.is_floating(kind) or types.is_integer(kind)):
            hint = " One column for each logit is expected." if types.is_nested(kind) else ""
            raise QIPFInputError(f"{path}: the column {name!r} holds {kind}, not numbers.{hint}")


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A Parquet file, its footer read."""
    arrow = pyarrow()
    try:
        file = arrow.parquet.ParquetFile(path, buffer_size=READ_AHEAD, pre_buffer=False)
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's word, not Arrow's
            raise QIPFInputError(f"Cannot read {path}: {os.strerror(error.errno)}.") from error
        raise QIPFInputError(f"{path} is not a Parquet file ({first_line(error)}).") from error
    with file:
        yield file


def batches(path: Path) -> Generator[Any, None, None]:
    """A file's rows, in blocks whose size follows from the file alone."""
    arrow = pyarrow()
    with opened(path) as file:
        try:
            most = rows_per_block(file.metadata.num_columns)
            size = max(1, min(most, BYTES_PER_BLOCK // _bytes_per_row(file)))
            yield from file.iter_batches(batch_size=size)
        except (arrow.ArrowException, OSError) as error:
            raise QIPFInputError(f"{path} is damaged ({first_line(error)}).") from error


def _bytes_per_row(file: Any) -> int:
    """Of the widest rows among the first of some row groups, decoded.

    What the footer says is the size on the disk: text that repeats is far larger in memory.
    """
    groups = file.metadata.num_row_groups
    widest = 1
    for group in range(0, groups, max(1, groups // PROBES)):
        first = next(file.iter_batches(batch_size=PROBED, row_groups=[group]), None)
        if first is not None and first.num_rows:
            widest = max(widest, first.nbytes // first.num_rows)
    return widest


def logits_of(
    path: str, batch: Any, chosen: Sequence[str], start: int
) -> NDArray[Any]:  # (n, len(chosen))
    """The logits of a block whose first row is row `start` of the file."""
    for name in chosen:
        if batch.column(name).null_count:
            row = start + int(np.flatnonzero(batch.column(name).is_null())[0])
            raise QIPFInputError(
                f"{path}, row {row}: {name} is null. Drop rows without a number, or fill them in."
            )
    logits = np.stack([_numbers(batch.column(name)) for name in chosen], axis=1)
    require_finite(logits, path, lambda row: f"row {start + row}", chosen)
    return logits


def _block(path: str, batch: Any, chosen: Sequence[str], label: str | None, start: int) -> Block:
    logits = logits_of(path, batch, chosen, start)
    truth = None
    if label is not None:
        classes = _numbers(batch.column(label))
        truth = checked_labels(classes, len(chosen), path, lambda row: f"row {start + row}")
    rest = [name for name in batch.schema.names if name not in chosen and name != label]
    return Block(logits, truth, {name: batch.column(name) for name in rest})


def _numbers(column: Any) -> NDArray[Any]:  # (n,)
    """A column as floats; what is missing becomes NaN."""
    values = column.to_numpy(zero_copy_only=False)
    return np.asarray(
        values, np.float32 if values.dtype in (np.float16, np.float32) else np.float64
    )
