"""Logits in numpy's files: .npz with the keys `logits` and `labels`, .npy with logits alone."""

import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.io.logits.columns import AUTO, label_column, listed
from qipf.io.logits.table import (
    Block,
    Table,
    checked_block,
    checked_labels,
    row_from,
    rows_per_block,
)

#: Errors of numpy and zipfile for a file that is not what its suffix says.
UNREADABLE = (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, NotImplementedError)

#: The name, in error messages, of the array of an .npy file.
UNNAMED = "the array"


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
        count, dimension = _checked_shape(f"{path}: {key}", array(key))
        if label is not None and (shape := array(label).shape) != (count,):
            raise QIPFInputError(
                f"{path}: {label} must have shape ({count},), one entry per row of logits, "
                f"got {shape}."
            )
    names = tuple(f"logit_{k}" for k in range(dimension))

    def blocks() -> Iterator[Block]:
        size = rows_per_block(dimension)
        with _arrays(path) as (_, array):
            logits, truth = array(key), None if label is None else array(label)
            others = {}
            for name in (name for name in present if name not in (key, label)):
                with suppress(QIPFInputError):  # an array of objects, say, is not carried along
                    others[name] = array(name)
            others = {name: values for name, values in others.items() if values.shape == (count,)}
            for start in range(0, count, size):
                part = slice(start, start + size)
                yield checked_block(
                    str(path),
                    row_from(start, "" if single else f" of {key}"),
                    names,
                    logits[part],
                    None if truth is None else truth[part],
                    {name: values[part] for name, values in others.items()},
                )

    return Table(str(path), count, names, label is not None, blocks)


def read_labels(path: Path, classes: int) -> NDArray[np.int64]:  # (n,)
    """Read labels from an .npy file of their own."""
    with _arrays(path) as (_, array):
        labels = array(UNNAMED)
        if labels.ndim != 1:
            raise QIPFInputError(f"{path}: labels must have shape (n,), got {labels.shape}.")
        return checked_labels(labels, classes, str(path), row_from(0))


@contextmanager
def _arrays(path: Path) -> Iterator[tuple[list[str], Callable[[str], NDArray[Any]]]]:
    """Names of the arrays in a file, and a function that reads one of them.

    The array of an .npy file is mapped, so that its rows are read when they are used.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise QIPFInputError(f"{path} is not a sound {path.suffix} file ({error}).") from error
    if isinstance(found, np.ndarray):
        yield [UNNAMED], lambda name: found
        return

    def array(name: str) -> NDArray[Any]:
        try:
            return np.asarray(found[name])
        except (*UNREADABLE, zlib.error) as error:
            raise QIPFInputError(f"{path}: {name} cannot be read ({error}).") from error

    with found:
        yield list(found.files), array


def _checked_shape(what: str, logits: NDArray[Any]) -> tuple[int, int]:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise QIPFInputError(f"{what} must have shape (predictions, logits), got {logits.shape}.")
    if logits.shape[0] == 0:
        raise QIPFInputError(f"{what} has no rows.")
    if logits.dtype.kind not in "fiu":
        raise QIPFInputError(f"{what} must hold numbers, got {logits.dtype}.")
    return logits.shape
