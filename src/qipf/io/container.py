"""A safetensors file with a JSON header: arrays and plain values, never code.

The header stands in the file's metadata under ``"qipf"`` and carries a digest of itself and of the
arrays, by which damage is detected. Everything a file declares about itself is compared with its
true size before memory is allocated for it.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from qipf.errors import QIPFFileError
from qipf.io.inputs import checked_input, reading

#: Most bytes of a file; the numbers in it take as much memory.
LARGEST_FILE = 2**32

#: Most bytes of the header; that of a field has about a thousand.
LARGEST_HEADER = 2**22

#: Most arrays; a `LayeredQIPF` has six per layer.
MOST_ARRAYS = 4096

#: Axes of an array, and its types.
MOST_AXES = 2
_DTYPES: dict[str, np.dtype] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}

_METADATA, _KEY = "__metadata__", "qipf"

Arrays = dict[str, NDArray[Any]]


def encode(header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The bytes of a file; the same content gives the same bytes."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    signed = {**header, "digest": content_digest(header, arrays)}
    return safetensors.numpy.save(arrays, {_KEY: _canonical(signed)})


def read_file(path: Path | str) -> tuple[dict[str, Any], Arrays]:
    """Read the header and the arrays of a file, and check its sizes and its digest."""
    path = checked_input(path)
    with reading(path), open(path, "rb") as file:
        return _read(file, os.fstat(file.fileno()).st_size, str(path))


def decode(data: bytes, path: str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a file's bytes; `path` is its name in error messages."""
    return _read(io.BytesIO(data), len(data), path)


def _read(file: IO[bytes], size: int, path: str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of an open file; its numbers are read once, into the arrays."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        _fail(path, "it is cut short, or not a safetensors file, such as save() and qipf fit write")
    if length > LARGEST_HEADER:
        _fail(path, f"its header claims {length} bytes, more than {LARGEST_HEADER}")
    if size > LARGEST_FILE:
        _fail(path, f"it has {size} bytes, more than {LARGEST_FILE}")
    entries = _object(file.read(length), path)
    metadata = entries.pop(_METADATA, None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(_KEY), str):
        _fail(path, "it was not written by qipf.save")
    header = _object(metadata[_KEY].encode("utf-8", "surrogatepass"), path)
    layout = _checked_layout(entries, size - 8 - length, path)
    arrays: Arrays = {}
    for name, (dtype, shape) in layout.items():
        arrays[name] = np.empty(shape, dtype)
        if file.readinto(_bytes_of(arrays[name])) != arrays[name].nbytes:  # type: ignore[attr-defined]
            _fail(path, "it is cut short")
    digest = header.pop("digest", None)
    if not isinstance(digest, str) or digest != content_digest(header, arrays):
        raise QIPFFileError(f"{path} is damaged: its content does not match its digest.")
    return header, arrays


def _checked_layout(
    entries: dict[str, Any], size: int, path: str
) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Types and shapes of the arrays, in the order of the file, whose numbers have `size` bytes."""
    if len(entries) > MOST_ARRAYS:
        _fail(path, f"it holds {len(entries)} arrays, more than {MOST_ARRAYS}")
    places: dict[str, list[int]] = {}
    layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    for name, entry in entries.items():
        try:
            dtype, shape, places[name] = entry["dtype"], entry["shape"], entry["data_offsets"]
            begin, end = places[name]
            whole = all(type(value) is int and value >= 0 for value in (*shape, begin, end))
            known = dtype in _DTYPES
        except (KeyError, TypeError, ValueError):
            whole = known = False
        if not whole or len(shape) > MOST_AXES:
            _fail(path, f"its array {name!r:.80} is not described correctly")
        if not known:
            _fail(path, f"its array {name!r:.80} has dtype {dtype!r:.80}; F32 or F64 is needed")
        layout[name] = _DTYPES[dtype], tuple(shape)
    position = 0
    in_order = sorted(places, key=lambda name: places[name])
    for name in in_order:
        (kind, shape), (begin, end) = layout[name], places[name]
        if begin != position or end - begin != kind.itemsize * math.prod(shape):
            _fail(path, f"its array {name!r:.80} is not where its shape puts it")
        position = end
    if position != size:
        _fail(path, f"its arrays declare {position} bytes and have {size}")
    return {name: layout[name] for name in in_order}


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _object(text: bytes, path: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise QIPFFileError(f"{path} cannot be read: its header is not JSON.") from error
    if not isinstance(value, dict):
        _fail(path, "its header is not a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_digest(header: Mapping[str, Any], arrays: Arrays) -> str | None:
    """Digest of the whole content; None if the header cannot be written as JSON."""
    try:
        digest = hashlib.blake2b(_canonical(header).encode(), digest_size=16)
    except (ValueError, RecursionError):
        return None
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode("utf-8", "surrogatepass"))
        digest.update(_bytes_of(np.ascontiguousarray(array)))
    return digest.hexdigest()


def _fail(path: str, reason: str) -> NoReturn:
    raise QIPFFileError(f"{path} cannot be read: {reason}.")
