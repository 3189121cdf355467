"""A safetensors file with a JSON header: arrays and plain values, never code.

The header stands in the file's metadata under ``"qipf"`` and carries a digest of itself and of the
arrays, so that a file damaged on its way is refused. Everything a file claims about itself is
checked against its true size before memory is set aside for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from qipf.errors import QIPFFileError
from qipf.io.atomic import checked_name

#: Bytes of the header, at most; a field's has about a thousand.
LARGEST_HEADER = 2**22

#: Arrays, at most; a `LayeredQIPF` has six a layer.
MOST_ARRAYS = 4096

#: Dtypes that arrays may have, by their names in the file.
DTYPES: dict[str, type[np.floating[Any]]] = {"F32": np.float32, "F64": np.float64}

_METADATA, _KEY = "__metadata__", "qipf"

Arrays = dict[str, NDArray[Any]]


def encode(header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The file's bytes; the same content gives the same bytes.

    >>> header, arrays = decode(encode({"kind": "test"}, {"x": np.zeros((2, 3))}), "x.qipf")
    >>> header, arrays["x"].shape
    ({'kind': 'test'}, (2, 3))
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    signed = {**header, "digest": content_digest(header, arrays)}
    return safetensors.numpy.save(arrays, {_KEY: _canonical(signed)})


def read_file(path: Path | str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a file, its claims and its digest checked."""
    path = checked_name(path)
    try:
        mode = os.stat(path).st_mode  # before it is opened: a pipe would wait
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise QIPFFileError(f"{path} is {what}; name a file.")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8)
            length = _header_length(head, size, str(path))
            head += file.read(length)
            _check_claims(head, size, str(path))
            # now the file is known to be no larger than what it declares
            return decode(head + file.read(size - len(head)), str(path))
    except FileNotFoundError:
        raise QIPFFileError(f"There is no file {path}.") from None
    except OSError as error:
        raise QIPFFileError(f"Cannot read {path}: {error.strerror or error}.") from error


def decode(data: bytes, path: str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays from a file's bytes; `path` is what errors call them."""
    head = data[: 8 + _header_length(data[:8], len(data), path)]
    header = _check_claims(head, len(data), path)
    try:
        arrays = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise QIPFFileError(f"{path} is not a sound safetensors file ({error}).") from error
    digest = header.pop("digest", None)
    if not isinstance(digest, str) or digest != content_digest(header, arrays):
        raise QIPFFileError(f"{path} is damaged: its content does not match its digest.")
    # writable and of its own: torch warns of arrays that are neither
    return header, {name: array.copy() for name, array in arrays.items()}


def _header_length(head: bytes, size: int, path: str) -> int:
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > size - 8:
        _refuse(path, "it is cut short, or no safetensors file at all, such as qipf fit writes")
    if length > LARGEST_HEADER:
        _refuse(path, f"its header claims {length} bytes, more than {LARGEST_HEADER}")
    return length


def _check_claims(head: bytes, size: int, path: str) -> dict[str, Any]:
    """qipf's own header, once the arrays' names, dtypes and sizes agree with the file's size."""
    entries = _object(head[8:], path)
    metadata = entries.pop(_METADATA, None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(_KEY), str):
        _refuse(path, "it was not written by qipf.save")
    if len(entries) > MOST_ARRAYS:
        _refuse(path, f"it holds {len(entries)} arrays, more than {MOST_ARRAYS}")
    total = 0
    for name, entry in entries.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            _refuse(path, f"its array {name!r} is not described as it should be")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
            _refuse(path, f"its array {name!r} has dtype {entry['dtype']!r}; F32 or F64 is needed")
        if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
            _refuse(path, f"its array {name!r} has an impossible shape or place")
        claimed = math.prod(shape) * np.dtype(DTYPES[entry["dtype"]]).itemsize
        if offsets[1] - offsets[0] != claimed:
            _refuse(path, f"its array {name!r} claims {claimed} bytes and takes another number")
        total += claimed
    if len(head) + total != size:
        _refuse(path, f"it declares {len(head) + total} bytes and has {size}")
    return _object(metadata[_KEY].encode("utf-8", "surrogatepass"), path)


def _object(text: bytes, path: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise QIPFFileError(f"{path} cannot be read: its header is not JSON.") from error
    if not isinstance(value, dict):
        _refuse(path, "its header is not a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _naturals(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_digest(header: Mapping[str, Any], arrays: Arrays) -> str | None:
    """A fingerprint of the whole content; None where the header holds what JSON has no word for."""
    try:
        digest = hashlib.blake2b(_canonical(header).encode(), digest_size=16)
    except (ValueError, RecursionError):
        return None
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode("utf-8", "surrogatepass"))
        digest.update(array.tobytes())
    return digest.hexdigest()


def _refuse(path: str, reason: str) -> NoReturn:
    raise QIPFFileError(f"{path} cannot be read: {reason}.")
