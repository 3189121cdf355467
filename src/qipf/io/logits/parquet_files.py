"""Logits in Parquet files, one column per logit (needs pyarrow)."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qipf.errors import QIPFFileError, QIPFInputError, missing_extra
from qipf.io.inputs import checked_input, reading
from qipf.io.logits.columns import logit_and_label_columns, require_different
from qipf.io.logits.table import Block, Table, as_floats, checked_block, row_from, rows_per_block

#: Approximate most bytes of a block of rows, decoded.
BYTES_PER_BLOCK = 2**26

#: Row groups that are sampled for the size of a row, about, and rows sampled in each.
PROBES, PROBED = 8, 64

#: Bytes read ahead of each column: a row group may be larger than memory.
READ_AHEAD = 2**18


def pyarrow() -> Any:
    """Import pyarrow, or raise an error that says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("Parquet files need pyarrow", "parquet") from error
    return pyarrow


def open_parquet(path: Path, columns: str | None, labels: str | None, finite: bool = True) -> Table:
    """Open a Parquet file with columns of logits, perhaps a label, and others."""
    schema, rows = schema_and_rows(path)
    chosen, label = logit_and_label_columns(str(path), list(schema.names), columns, labels)
    require_numeric(path, schema, [*chosen, *([label] if label else [])])
    if rows == 0:
        raise QIPFInputError(f"{path} has no rows.")

    def blocks() -> Iterator[Block]:
        start = 0
        for batch in read_batches(path):
            yield batch_block(path, batch, chosen, start, label, finite)
            start += batch.num_rows

    return Table(str(path), rows, tuple(chosen), label is not None, blocks)


def require_numeric(path: Path, schema: Any, names: Sequence[str]) -> None:
    """Raise if one of these columns does not hold numbers."""
    types = pyarrow().types
    for name in names:
        kind = schema.field(name).type
        if not (types.is_floating(kind) or types.is_integer(kind)):
            hint = " One column for each logit is expected." if types.is_nested(kind) else ""
            raise QIPFInputError(f"{path}: the column {name!r} holds {kind}, not numbers.{hint}")


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file and read its footer."""
    arrow, path = pyarrow(), checked_input(path)
    with (
        reading(path),
        arrow.parquet.ParquetFile(path, buffer_size=READ_AHEAD, pre_buffer=False) as file,
    ):
        yield file


def schema_and_rows(path: Path) -> tuple[Any, int]:
    """Schema, whose names are text and differ, and number of rows of a Parquet file."""
    with parquet_file(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        require_different(str(path), schema.names)
    return schema, rows


def read_batches(path: Path) -> Generator[Any, None, None]:
    """Read a file in record batches whose size depends on the file alone."""
    with parquet_file(path) as file:
        most = rows_per_block(file.metadata.num_columns)
        size = max(1, min(most, BYTES_PER_BLOCK // _bytes_per_row(file)))
        rows = 0
        for batch in file.iter_batches(batch_size=size):
            rows += batch.num_rows
            yield batch
        if rows != file.metadata.num_rows:
            raise QIPFFileError(
                f"{path} is damaged: it declares {file.metadata.num_rows} rows and has {rows}."
            )


def _bytes_per_row(file: Any) -> int:
    """Largest mean size of a decoded row among samples of some row groups.

    The footer has the size on disk only: text that repeats is far larger in memory.
    """
    groups = file.metadata.num_row_groups
    widest = 1
    for group in range(0, groups, max(1, groups // PROBES)):
        first = next(file.iter_batches(batch_size=PROBED, row_groups=[group]), None)
        if first is not None and first.num_rows:
            widest = max(widest, first.nbytes // first.num_rows)
    return widest


def batch_block(
    path: Path,
    batch: Any,
    chosen: Sequence[str],
    start: int,
    label: str | None = None,
    finite: bool = True,
) -> Block:
    """Convert and check a record batch whose first row is row `start` of the file."""
    for name in chosen:
        if batch.column(name).null_count:
            row = start + int(np.flatnonzero(batch.column(name).is_null())[0])
            raise QIPFInputError(
                f"{path}, row {row}: {name} is null. Drop rows without a number, or fill them in."
            )
    # nulls among the labels become NaN, which is no class
    arrays = {
        name: as_floats(batch.column(name).to_numpy(zero_copy_only=False))
        for name in ([*chosen, label] if label else chosen)
    }
    logits = np.stack([arrays[name] for name in chosen], axis=1)
    others = {name: batch.column(name) for name in batch.schema.names if name not in arrays}
    truth = arrays[label] if label else None
    return checked_block(str(path), row_from(start), chosen, logits, truth, others, finite)
