"""Logits in numpy's files: .npz with the keys `logits` and `labels`, .npy with logits alone."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.io.logits.columns import chosen_label, listed
from qipf.io.logits.table import Block, Table, checked_labels, require_finite, rows_per_block

#: What may go wrong inside numpy and zipfile with a file that is not what its name says.
UNREADABLE = (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, NotImplementedError)


class ArrayRows:
    """The rows of an array in a file, read in order without holding them all."""

    def __init__(self, path: str, name: str, file: BinaryIO) -> None:
        self.path, self.name, self._file = path, name, file
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, self._by_columns, self.dtype = read(file)
        except UNREADABLE as error:
            raise QIPFInputError(f"{path}: {name} is not a numpy array ({error}).") from error
        if self.dtype.hasobject:
            raise QIPFInputError(
                f"{path}: {name} holds Python objects, which are not read. Save it as numbers."
            )
        self._left = self.shape[0] if self.shape else 0
        self._whole: NDArray[Any] | None = None

    def take(self, count: int) -> NDArray[Any]:
        """The next `count` rows, fewer at the end."""
        count = min(count, self._left)
        if self._by_columns:
            if self._whole is None:  # no row is complete before the last column has been read
                self._whole = self._read(self.shape[0]).reshape(self.shape[::-1]).T
            start = self.shape[0] - self._left
            rows = self._whole[start : start + count]
        else:
            rows = self._read(count).reshape(count, *self.shape[1:])
        self._left -= count
        return rows

    def _read(self, count: int) -> NDArray[Any]:
        size = count * int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        try:
            data = self._file.read(size)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise QIPFInputError(f"{self.path}: {self.name} is damaged ({error}).") from error
        if len(data) != size:
            raise QIPFInputError(f"{self.path}: {self.name} is cut short.")
        return np.frombuffer(data, self.dtype)


def open_npy(path: Path) -> Table:
    """One array (n, d) of logits."""

    def blocks() -> Iterator[Block]:
        with open(path, "rb") as file:
            logits = ArrayRows(str(path), "the array", file)
            yield from _blocks(str(path), "row {}".format, logits, None, {})

    with open(path, "rb") as file:
        rows = ArrayRows(str(path), "the array", file)
        return _table(path, rows, False, blocks)


def open_npz(path: Path, columns: str | None, labels: str | None) -> Table:
    """Arrays by name: logits (n, d), labels (n,); others with n entries are carried along."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise QIPFInputError(f"{path} is not an .npz file ({error}).") from error
    with archive:
        names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
        key = columns or "logits"
        if key not in names:
            raise QIPFInputError(
                f"{path} has no array {key!r}. It has: {listed(names) or 'none'}. Save it with "
                "np.savez(path, logits=…, labels=…), or name the array with --columns."
            )
        label = chosen_label(str(path), names, labels, what="array")
        with archive.open(f"{key}.npy") as file:
            logits = ArrayRows(str(path), key, file)  # type: ignore[arg-type]
        count = logits.shape[0] if logits.shape else 0
        others = [
            name
            for name in names
            if name not in (key, label) and _shape(path, archive, name) == (count,)
        ]
        if label is not None:
            _require_length(str(path), label, _shape(path, archive, label), count)

    def blocks() -> Iterator[Block]:
        with ExitStack() as stack:
            inside = stack.enter_context(zipfile.ZipFile(path))

            def rows(name: str) -> ArrayRows:
                file = stack.enter_context(inside.open(f"{name}.npy"))
                return ArrayRows(str(path), name, file)  # type: ignore[arg-type]

            truth = None if label is None else rows(label)
            carried = {name: rows(name) for name in others}
            yield from _blocks(str(path), f"row {{}} of {key}".format, rows(key), truth, carried)

    return _table(path, logits, label is not None, blocks)


def _table(path: Path, logits: ArrayRows, labelled: bool, blocks: Any) -> Table:
    if len(logits.shape) == 2 and logits.shape[0] == 0:
        raise QIPFInputError(f"{path}: {logits.name} has no rows.")
    if len(logits.shape) != 2 or 0 in logits.shape:
        raise QIPFInputError(
            f"{path}: {logits.name} must have shape (predictions, logits), got {logits.shape}."
        )
    if logits.dtype.kind not in "fiu":
        raise QIPFInputError(f"{path}: {logits.name} must hold numbers, got {logits.dtype}.")
    names = tuple(f"logit_{k}" for k in range(logits.shape[1]))
    return Table(str(path), logits.shape[0], names, labelled, blocks)


def _blocks(
    path: str,
    where: Any,
    logits: ArrayRows,
    labels: ArrayRows | None,
    others: dict[str, ArrayRows],
) -> Iterator[Block]:
    dimension = logits.shape[1]
    columns = [f"logit_{k}" for k in range(dimension)]
    size, start = rows_per_block(dimension), 0
    while len(rows := logits.take(size)):

        def place(row: int, start: int = start) -> str:
            return str(where(start + row))

        numbers = rows.astype(np.float32 if rows.dtype.itemsize <= 2 else _wide(rows.dtype))
        require_finite(numbers, path, place, columns)
        truth = None
        if labels is not None:
            truth = checked_labels(labels.take(size), dimension, path, place)
        yield Block(numbers, truth, {name: array.take(size) for name, array in others.items()})
        start += len(rows)


def _wide(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float32 if dtype.kind == "f" and dtype.itemsize == 4 else np.float64


def _shape(path: Path, archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """An array's shape; an array that cannot be read has none."""
    with archive.open(f"{name}.npy") as file:
        try:
            array = ArrayRows(str(path), name, file)  # type: ignore[arg-type]
        except QIPFInputError:
            return ()
    return tuple(array.shape)


def _require_length(path: str, name: str, shape: tuple[int, ...], count: int) -> None:
    if shape != (count,):
        raise QIPFInputError(
            f"{path}: {name} must have shape ({count},), one entry per row of logits, got {shape}."
        )


def read_labels(path: Path, classes: int) -> NDArray[np.int64]:  # (n,)
    """Labels from an .npy file of their own."""
    with open(path, "rb") as file:
        labels = ArrayRows(str(path), "the array", file)
        if len(labels.shape) != 1:
            raise QIPFInputError(f"{path}: labels must have shape (n,), got {labels.shape}.")
        return checked_labels(labels.take(labels.shape[0]), classes, str(path), "row {}".format)
