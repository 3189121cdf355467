"""Checks that every reader of saved files shares: kind, version and keys of the header."""

from __future__ import annotations

from typing import Any, NoReturn

from qipf.errors import QIPFFileError

#: What a file holds, in words, by the ``kind`` in its header.
KINDS = {
    "field": "a field",
    "model": "the field of a wrapped model",
    "rule": "an accept rule",
    "layers": "the fields of a network's layers",
    "monitor": "the state of a monitor",
}


def require_version(path: str, header: dict[str, Any], newest: int) -> int:
    """Return the format version of a header; raise if this library cannot read it."""
    version = header.get("format_version")
    if type(version) is not int or version < 1:
        refuse(path, f"its format version is {version!r:.80}")
    if version > newest:
        refuse(path, f"a newer qipf wrote it (format {version}, here {newest}): update qipf")
    return version


def require_keys(path: str, what: str, found: Any, expected: Any) -> None:
    """Raise unless `found` is an object with exactly the expected keys."""
    if not isinstance(found, dict) or set(found) != set(expected):
        names = sorted(found) if isinstance(found, dict) else found
        refuse(path, f"its {what} is {names!r:.200}, not {sorted(expected)}")


def refuse(path: str, reason: str) -> NoReturn:
    """Raise the error for a readable file whose contents are invalid."""
    raise QIPFFileError(f"{path} cannot be used: {reason}.")
