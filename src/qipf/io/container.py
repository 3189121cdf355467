"""A safetensors file with a JSON header: arrays and plain values, never code.

The header stands in the file's metadata under ``"qipf"`` and carries a digest of itself and of the
arrays, by which damage is detected. Everything a file declares about itself is compared with its
true size before memory is allocated for it.
"""

import hashlib
import json
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

#: Most bytes of the header; that of a field has about a thousand.
LARGEST_HEADER = 2**22

#: Most arrays; a `LayeredQIPF` has six per layer.
MOST_ARRAYS = 4096

_METADATA, _KEY = "__metadata__", "qipf"

Arrays = dict[str, NDArray[Any]]


def encode(header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The bytes of a file; the same content gives the same bytes."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    signed = {**header, "digest": content_digest(header, arrays)}
    return safetensors.numpy.save(arrays, {_KEY: _canonical(signed)})


def read_file(path: Path | str) -> tuple[dict[str, Any], Arrays]:
    """Read the header and the arrays of a file, and check its sizes and its digest."""
    path = checked_name(path)
    try:
        mode = os.stat(path).st_mode  # before it is opened, which waits for a pipe
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise QIPFFileError(f"{path} is {what}; name a file.")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8 + LARGEST_HEADER)
            _checked_header(head, size, str(path))
            # now the file is known to be no larger than its header declares
            return decode(head + file.read(size - len(head)), str(path))
    except FileNotFoundError:
        raise QIPFFileError(f"There is no file {path}.") from None
    except OSError as error:
        raise QIPFFileError(f"Cannot read {path}: {error.strerror or error}.") from error


def decode(data: bytes, path: str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a file's bytes; `path` is its name in error messages."""
    header = _checked_header(data[: 8 + LARGEST_HEADER], len(data), path)
    try:
        arrays = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise QIPFFileError(f"{path} is not a valid safetensors file ({error}).") from error
    digest = header.pop("digest", None)
    if not isinstance(digest, str) or digest != content_digest(header, arrays):
        raise QIPFFileError(f"{path} is damaged: its content does not match its digest.")
    # copied: torch warns of arrays that are not writable
    return header, {name: array.copy() for name, array in arrays.items()}


def _checked_header(head: bytes, size: int, path: str) -> dict[str, Any]:
    """qipf's own header; raise unless number, dtypes and total size of the arrays are possible.

    `head` is the beginning of the file. Shapes and offsets are checked by safetensors itself.
    """
    length = int.from_bytes(head[:8], "little")
    if size < 8 or length > size - 8:
        _fail(path, "it is cut short, or not a safetensors file such as qipf fit writes")
    if length > LARGEST_HEADER:
        _fail(path, f"its header claims {length} bytes, more than {LARGEST_HEADER}")
    entries = _object(head[8 : 8 + length], path)
    metadata = entries.pop(_METADATA, None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(_KEY), str):
        _fail(path, "it was not written by qipf.save")
    if len(entries) > MOST_ARRAYS:
        _fail(path, f"it holds {len(entries)} arrays, more than {MOST_ARRAYS}")
    end = 0
    for name, entry in entries.items():
        try:
            dtype, (_, last) = entry["dtype"], entry["data_offsets"]
            known, end = dtype in ("F32", "F64"), max(end, last)
        except (KeyError, TypeError, ValueError):
            _fail(path, f"its array {name!r} is not described correctly")
        if not known:
            _fail(path, f"its array {name!r} has dtype {dtype!r}; F32 or F64 is needed")
    if 8 + length + end != size:
        _fail(path, f"it declares {8 + length + end} bytes and has {size}")
    return _object(metadata[_KEY].encode("utf-8", "surrogatepass"), path)


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
        digest.update(array.tobytes())
    return digest.hexdigest()


def _fail(path: str, reason: str) -> NoReturn:
    raise QIPFFileError(f"{path} cannot be read: {reason}.")
