"""Logits in numpy's files: .npz with the keys `logits` and `labels`, .npy with logits alone."""

import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.io.inputs import checked_input, reading
from qipf.io.logits.columns import AUTO, label_column, listed
from qipf.io.logits.table import (
    Block,
    Table,
    checked_block,
    checked_labels,
    row_from,
    rows_per_block,
)

#: Most bytes of an array's header, and how to read one by its format version.
LONGEST_HEADER = 2**14
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

#: Most bytes that one byte of an archive can stand for, by its method of compression.
_EXPANSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}

#: Bytes of an archive that are unpacked at a time.
PIECE = 2**18

#: The name, in error messages, of the array of an .npy file.
UNNAMED = "the array"


def open_numpy(path: Path, columns: str | None, labels: str | None, finite: bool = True) -> Table:
    """Open an .npy file, or an .npz file with logits (n, d), perhaps labels (n,), and others (n,).

    Parameters
    ----------
    columns : name of the array of logits in an .npz file.
    labels : name of the array of labels, "auto" or None.
    finite : whether logits that are NaN or infinite are an error.
    """
    single = path.suffix.lower() == ".npy"
    if single and (columns is not None or labels not in (None, AUTO)):
        raise QIPFInputError(
            f"{path} is one array without names: columns cannot be selected in it, and labels come "
            "from an .npy file of their own."
        )
    key = UNNAMED if single else columns or "logits"
    with _arrays(path) as arrays:
        if key not in arrays:
            raise QIPFInputError(
                f"{path} has no array {key!r}. It has: {listed([*arrays]) or 'none'}. Save it with "
                "np.savez(path, logits=…, labels=…), or name the array with --columns."
            )
        label = None if single else label_column(str(path), [*arrays], labels, what="array")
        count, dimension = _checked_shape(f"{path}: {key}", arrays[key])
        if label is not None and (shape := arrays[label].shape) != (count,):
            raise QIPFInputError(
                f"{path}: {label} must have shape ({count},), one entry per row of logits, "
                f"got {shape}."
            )
    names = tuple(f"logit_{k}" for k in range(dimension))

    def blocks() -> Iterator[Block]:
        size = rows_per_block(dimension)
        with _arrays(path) as arrays:
            logits, truth = arrays[key].read(), None if label is None else arrays[label].read()
            others = {
                name: array.read()
                for name, array in arrays.items()
                if name not in (key, label)
                and array.shape == (count,)
                and not array.dtype.hasobject
            }
            for start in range(0, count, size):
                part = slice(start, start + size)
                yield checked_block(
                    str(path),
                    row_from(start, "" if single else f" of {key}"),
                    names,
                    logits[part],
                    None if truth is None else truth[part],
                    {name: values[part] for name, values in others.items()},
                    finite,
                )

    return Table(str(path), count, names, label is not None, blocks)


def read_labels(path: Path, classes: int) -> NDArray[np.int64]:  # (n,)
    """Read labels from an .npy file of their own."""
    with _arrays(path) as arrays:
        if len(shape := arrays[UNNAMED].shape) != 1:
            raise QIPFInputError(f"{path}: labels must have shape (n,), got {shape}.")
        return checked_labels(arrays[UNNAMED].read(), classes, str(path), row_from(0))


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an .npz file."""
    if path.suffix.lower() != ".npz":
        raise QIPFInputError(f"Cannot read {str(path)!r}: a file in .npz is expected.")
    with reading(path), _arrays(path) as arrays:
        return {name: array.read() for name, array in arrays.items()}


class _Array(NamedTuple):
    """An array in a file, by its header, which fits the size of the file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], NDArray[Any]]


@contextmanager
def _arrays(path: Path) -> Iterator[Mapping[str, _Array]]:
    """The arrays in a file by name.

    The array of an .npy file is mapped, so that its rows are read when they are used.
    """
    path = checked_input(path)
    with open(path, "rb") as file:
        size = file.seek(0, io.SEEK_END)
        if path.suffix.lower() == ".npy":
            file.seek(0)
            shape, order, dtype, offset = _header(file, size)
            mapped = partial(np.memmap, path, dtype, "r", offset, shape, order)
            yield {UNNAMED: _Array(shape, dtype, _objects if dtype.hasobject else mapped)}
            return
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            found = [_member(archive, member, size) for member in members]
            names = [member.filename.removesuffix(".npy") for member in members]
            yield dict(zip(names, found, strict=True))


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, size: int) -> _Array:
    """An array in an archive of `size` bytes."""
    most = _EXPANSION.get(member.compress_type, 0) * member.compress_size
    if member.compress_size > size or member.file_size > most:
        raise ValueError(f"{member.filename} is not stored or deflated, or declares a false size")
    with archive.open(member) as file:
        shape, order, dtype, offset = _header(file, member.file_size)

    def read() -> NDArray[Any]:
        flat = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        with archive.open(member) as file:
            file.read(offset)
            for start in range(0, len(flat), PIECE):
                part = flat[start : start + PIECE]
                part[:] = np.frombuffer(file.read(len(part)), np.uint8)
        return flat.view(dtype).reshape(shape, order=order)

    return _Array(shape, dtype, _objects if dtype.hasobject else read)


def _objects() -> NoReturn:
    raise ValueError("it holds Python objects, which could run code; save numbers or text")


def _header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], Any, np.dtype, int]:
    """Shape, order and dtype of an array, and the position of its numbers, from its header."""
    head = io.BytesIO(file.read(LONGEST_HEADER))
    version = npy.read_magic(head)
    if version not in _HEADERS:  # 3.0 is of arrays with named fields only
        raise ValueError(f"arrays of format {version[0]}.{version[1]} are not read")
    shape, fortran, dtype = _HEADERS[version](head)
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its shape is {shape}")
    declared, offset = math.prod(shape) * dtype.itemsize, head.tell()
    if declared > size - offset and not dtype.hasobject:
        raise ValueError(f"it declares {declared} bytes of numbers and has {size - offset}")
    return shape, "F" if fortran else "C", dtype, offset


def _checked_shape(what: str, logits: _Array) -> tuple[int, int]:
    if len(logits.shape) != 2 or logits.shape[1] == 0:
        raise QIPFInputError(f"{what} must have shape (predictions, logits), got {logits.shape}.")
    if logits.shape[0] == 0:
        raise QIPFInputError(f"{what} has no rows.")
    if logits.dtype.kind not in "fiu":
        raise QIPFInputError(f"{what} must hold numbers, got {logits.dtype}.")
    count, dimension = logits.shape
    return count, dimension
