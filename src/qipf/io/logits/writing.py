"""Writing columns block by block into a file that is replaced atomically."""

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qipf.io.atomic import atomic_write, checked_output
from qipf.io.logits.parquet_files import pyarrow

#: Takes the columns of the next rows by name: values of one length, always under the same names.
Write = Callable[[Mapping[str, Any]], None]


@contextmanager
def table_writer(path: Path) -> Iterator[Write]:
    """A function that appends rows; the file appears, or is replaced, if the block succeeds.

    .csv and .parquet are written to disk block by block; the arrays of .npz and .npy are collected
    in memory first. An .npy holds one array: (n,) for one column, (n, columns) for several.
    """
    path = checked_output(path, tuple(_WRITERS))
    with atomic_write(path) as file, _WRITERS[path.suffix.lower()](file) as write:
        yield write


@contextmanager
def _csv(file: BinaryIO) -> Iterator[Write]:
    def write(columns: Mapping[str, Any]) -> None:
        text = io.StringIO(newline="")
        lines = csv.writer(text, lineterminator="\n")
        if file.tell() == 0:
            lines.writerow(columns)
        lines.writerows(zip(*map(_plain, columns.values()), strict=True))
        file.write(text.getvalue().encode())

    yield write


@contextmanager
def _parquet(file: BinaryIO) -> Iterator[Write]:
    arrow = pyarrow()
    with ExitStack() as stack:
        writer: Any = None

        def write(columns: Mapping[str, Any]) -> None:
            nonlocal writer
            rows = arrow.table(dict(columns))
            if writer is None:
                writer = stack.enter_context(arrow.parquet.ParquetWriter(file, rows.schema))
            writer.write_table(rows)

        yield write


@contextmanager
def _npz(file: BinaryIO) -> Iterator[Write]:
    parts: list[Mapping[str, Any]] = []
    yield parts.append
    with zipfile.ZipFile(file, "w") as archive:  # np.savez cannot write an array named "file"
        for name, array in _joined(parts).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


@contextmanager
def _npy(file: BinaryIO) -> Iterator[Write]:
    parts: list[Mapping[str, Any]] = []
    yield parts.append
    arrays = list(_joined(parts).values())
    np.save(file, arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1), allow_pickle=False)


def _joined(parts: list[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([_array(part[name]) for part in parts]) for name in parts[0]}


def _array(column: Any) -> NDArray[Any]:
    """A column as an array of numbers or of text, never of Python objects."""
    array = np.asarray(_plain(column))
    if array.dtype == object:
        return np.array(["" if value is None else str(value) for value in array])
    return array


def _plain(column: Any) -> Any:
    """A column as Python values: from an Arrow array, a numpy array or a list."""
    if hasattr(column, "to_pylist"):
        return column.to_pylist()
    return column.tolist() if hasattr(column, "tolist") else column


_WRITERS: dict[str, Callable[[BinaryIO], AbstractContextManager[Write]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".csv": _csv,
    ".parquet": _parquet,
}
