"""Logits in numpy's files: .npz with the keys `logits` and `labels`, .npy with logits alone."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.io.logits.columns import AUTO, label_column, listed
from qipf.io.logits.table import Block, Table, checked_block, row_from, rows_per_block
from qipf.io.logits.values import checked_labels

#: Errors of numpy and zipfile for a file that is not what its suffix says.
UNREADABLE = (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, NotImplementedError)

#: The name, in error messages, of the array of an .npy file.
UNNAMED = "the array"


class ArrayRows:
    """The rows of an array in a file, read in order in constant memory."""

    def __init__(self, path: Path, name: str, file: BinaryIO) -> None:
        self._what, self._file = f"{path}: {name}", file
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, self._fortran, self.dtype = read(file)
        except UNREADABLE as error:
            raise QIPFInputError(f"{self._what} is not a numpy array ({error}).") from error
        if self.dtype.hasobject:
            raise QIPFInputError(
                f"{self._what} holds Python objects, which are not read. Save it as numbers."
            )
        self._next = 0
        self._all: NDArray[Any] | None = None

    def take(self, count: int) -> NDArray[Any]:
        """The next `count` rows, fewer at the end."""
        start = self._next
        self._next = min(start + count, self.shape[0])
        if not self._fortran:
            return self._read(self._next - start).reshape(-1, *self.shape[1:])
        if self._all is None:  # in this order no row is complete before the whole array is read
            self._all = self._read(self.shape[0]).reshape(self.shape[::-1]).T
        return self._all[start : self._next]

    def _read(self, count: int) -> NDArray[Any]:
        size = count * int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        try:
            data = self._file.read(size)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise QIPFInputError(f"{self._what} is damaged ({error}).") from error
        if len(data) != size:
            raise QIPFInputError(f"{self._what} is cut short.")
        return np.frombuffer(data, self.dtype)


def open_numpy(path: Path, columns: str | None, labels: str | None) -> Table:
    """Open an .npy file, or an .npz file with logits (n, d), perhaps labels (n,), and others (n,).

    Parameters
    ----------
    columns : name of the array of logits in an .npz file.
    labels : name of the array of labels, "auto" or None.
    """
    single = path.suffix.lower() == ".npy"
    if single and (columns is not None or labels not in (None, AUTO)):
        raise QIPFInputError(
            f"{path} is one array without names: columns cannot be selected in it, and labels come "
            "from an .npy file of their own."
        )
    key = UNNAMED if single else columns or "logits"
    with _arrays(path) as (present, array):
        if key not in present:
            raise QIPFInputError(
                f"{path} has no array {key!r}. It has: {listed(present) or 'none'}. Save it with "
                "np.savez(path, logits=…, labels=…), or name the array with --columns."
            )
        label = None if single else label_column(str(path), present, labels, what="array")
        logits = array(key)
        _require_logits(f"{path}: {key}", logits)
        count, dimension = logits.shape
        if label is not None and (shape := array(label).shape) != (count,):
            raise QIPFInputError(
                f"{path}: {label} must have shape ({count},), one entry per row of logits, "
                f"got {shape}."
            )
        rest = [name for name in present if name not in (key, label)]
        others = [name for name in rest if _readable_shape(array, name) == (count,)]
    names = tuple(f"logit_{k}" for k in range(dimension))

    def blocks() -> Iterator[Block]:
        size = rows_per_block(dimension)
        with _arrays(path) as (_, array):
            logits, truth = array(key), None if label is None else array(label)
            carried = {name: array(name) for name in others}
            for start in range(0, count, size):
                yield checked_block(
                    str(path),
                    row_from(start, "" if single else f" of {key}"),
                    names,
                    logits.take(size),
                    None if truth is None else truth.take(size),
                    {name: rows.take(size) for name, rows in carried.items()},
                )

    return Table(str(path), count, names, label is not None, blocks)


def read_labels(path: Path, classes: int) -> NDArray[np.int64]:  # (n,)
    """Read labels from an .npy file of their own."""
    with _arrays(path) as (_, array):
        labels = array(UNNAMED)
        if len(labels.shape) != 1:
            raise QIPFInputError(f"{path}: labels must have shape (n,), got {labels.shape}.")
        return checked_labels(labels.take(labels.shape[0]), classes, str(path), row_from(0))


@contextmanager
def _arrays(path: Path) -> Iterator[tuple[list[str], Callable[[str], ArrayRows]]]:
    """Names of the arrays in a file, and a function that opens one of them."""
    with ExitStack() as stack:
        if path.suffix.lower() == ".npy":
            file = stack.enter_context(open(path, "rb"))
            yield [UNNAMED], lambda name: ArrayRows(path, name, file)
            return
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
        except (zipfile.BadZipFile, OSError) as error:
            raise QIPFInputError(f"{path} is not an .npz file ({error}).") from error

        def array(name: str) -> ArrayRows:
            member = stack.enter_context(archive.open(f"{name}.npy"))
            return ArrayRows(path, name, cast(BinaryIO, member))

        yield [name[:-4] for name in archive.namelist() if name.endswith(".npy")], array


def _require_logits(what: str, logits: ArrayRows) -> None:
    if len(logits.shape) != 2 or logits.shape[1] == 0:
        raise QIPFInputError(f"{what} must have shape (predictions, logits), got {logits.shape}.")
    if logits.shape[0] == 0:
        raise QIPFInputError(f"{what} has no rows.")
    if logits.dtype.kind not in "fiu":
        raise QIPFInputError(f"{what} must hold numbers, got {logits.dtype}.")


def _readable_shape(array: Callable[[str], ArrayRows], name: str) -> tuple[int, ...] | None:
    try:
        return tuple(array(name).shape)
    except QIPFInputError:
        return None
