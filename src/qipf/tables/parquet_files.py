"""Logits in Parquet files: one column a logit (needs pyarrow)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFError, QIPFInputError
from qipf.tables.columns import chosen_columns, chosen_label
from qipf.tables.table import Block, Table, checked_labels, require_finite, rows_per_block


def pyarrow() -> Any:
    """The library that reads and writes Parquet, asked for only when it is needed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise QIPFError("Parquet files need pyarrow: pip install 'qipf[parquet]'.") from error
    return pyarrow


def open_parquet(path: Path, columns: str | None, labels: str | None) -> Table:
    """A Parquet file whose columns are logits, perhaps a label, and others to carry along."""
    arrow = pyarrow()
    with _opened(arrow, path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    names = list(schema.names)
    label = chosen_label(str(path), names, labels)
    chosen = chosen_columns(str(path), names, columns)
    if label in chosen:
        raise QIPFInputError(
            f"{path}: the column {label!r} is chosen as a logit and as the label. Narrow --columns."
        )
    for name in [*chosen, *([label] if label else [])]:
        kind = schema.field(name).type
        if not (arrow.types.is_floating(kind) or arrow.types.is_integer(kind)):
            raise QIPFInputError(f"{path}: the column {name!r} holds {kind}, not numbers.")
    if rows == 0:
        raise QIPFInputError(f"{path} has no rows.")

    def blocks() -> Iterator[Block]:
        start = 0
        size = rows_per_block(len(names))
        with _opened(arrow, path) as file:
            for batch in _batches(arrow, path, file, size):
                yield _block(str(path), batch, chosen, label, start)
                start += batch.num_rows

    return Table(str(path), rows, tuple(chosen), label is not None, blocks)


def _block(path: str, batch: Any, chosen: Sequence[str], label: str | None, start: int) -> Block:
    def where(row: int) -> str:
        return f"row {start + row}"

    logits = np.stack([_numbers(batch.column(name)) for name in chosen], axis=1)
    require_finite(logits, path, where, chosen)
    truth = None
    if label is not None:
        truth = checked_labels(_numbers(batch.column(label)), len(chosen), path, where)
    rest = [name for name in batch.schema.names if name not in chosen and name != label]
    return Block(logits, truth, {name: batch.column(name) for name in rest})


def _numbers(column: Any) -> NDArray[Any]:  # (n,)
    """A column as floats; what is missing becomes NaN."""
    values = column.to_numpy(zero_copy_only=False)
    return np.asarray(
        values, np.float32 if values.dtype in (np.float16, np.float32) else np.float64
    )


def _opened(arrow: Any, path: Path) -> Any:
    try:
        return arrow.parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise QIPFInputError(f"{path} is not a Parquet file ({_first_line(error)}).") from error


def _batches(arrow: Any, path: Path, file: Any, size: int) -> Iterator[Any]:
    try:
        yield from file.iter_batches(batch_size=size)
    except (arrow.ArrowException, OSError) as error:
        raise QIPFInputError(f"{path} is damaged ({_first_line(error)}).") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
