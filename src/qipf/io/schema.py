"""The header of saved files: kinds, format versions, and checks of what a file claims."""

from typing import Any, NoReturn

from qipf._version import __version__
from qipf.errors import QIPFFileError

#: Format version of models and accept rules; no other is read.
FORMAT_VERSION = 6

#: Header entries that the scores do not depend on.
DECISIONS = ("rule", "detection", "training_rows")

#: What a file holds, by its kind.
KINDS = {
    "field": "a field",
    "model": "the field of a wrapped model",
    "rule": "an accept rule",
    "layers": "the fields of a network's layers",
    "features": "the fields of given features",
    "monitor": "the state of a monitor",
}

_ORIGIN = ("format_version", "library_version", "kind")
_KEYS = {
    "field": (*_ORIGIN, "parameters", "fitted", "features", "network", *DECISIONS),
    "model": (*_ORIGIN, "parameters", "fitted", "features", "network", *DECISIONS),
    "layers": (*_ORIGIN, "parameters", "layers", "lengths", "network", *DECISIONS),
    "features": (*_ORIGIN, "parameters", "layers", "lengths", "perturbed", *DECISIONS),
    "rule": (*_ORIGIN, "rule"),
}


def written_by() -> dict[str, Any]:
    """Header entries that say which format and library version wrote a file."""
    return {"format_version": FORMAT_VERSION, "library_version": __version__}


def check_header(header: dict[str, Any], path: str) -> None:
    """Raise `QIPFFileError` for a header of another version or kind, or with other keys."""
    kind = header.get("kind")
    if kind == "monitor":
        raise QIPFFileError(
            f"{path} holds {KINDS['monitor']}, not a model. It is for qipf monitor --state, or "
            "ShiftMonitor.load(path, model)."
        )
    require_version(path, header, FORMAT_VERSION, "fit and save the model again")
    if not isinstance(kind, str) or kind not in _KEYS:
        refuse(path, f"its kind is {kind!r:.80}")
    require_keys(path, "header", header, _KEYS[kind])
    if not isinstance(header["library_version"], str):
        refuse(path, f"its library_version is {header['library_version']!r:.80}")


def require_version(path: str, header: dict[str, Any], present: int, remedy: str) -> None:
    """Raise `QIPFFileError` for another format version; `remedy` is for an earlier one."""
    version = header.get("format_version")
    if type(version) is not int or version < 1:
        refuse(path, f"its format version is {version!r:.80}")
    formats = f"format {version}, here {present}"
    if version < present:
        refuse(path, f"an earlier version of qipf wrote it ({formats}): {remedy}")
    if version > present:
        refuse(path, f"a newer qipf wrote it ({formats}): update qipf")


def require_keys(path: str, what: str, found: Any, expected: Any) -> None:
    """Raise `QIPFFileError` unless `found` is an object with exactly the expected keys."""
    if not isinstance(found, dict) or set(found) != set(expected):
        names = sorted(found) if isinstance(found, dict) else found
        refuse(path, f"its {what} is {names!r:.200}, not {sorted(expected)}")


def require(good: object, path: str, name: str, value: object) -> None:
    """Raise `QIPFFileError`, with the name of a value in the file and the value, unless `good`."""
    if not good:
        refuse(path, f"its {name} is {value!r:.80}")


def refuse(path: str, reason: str) -> NoReturn:
    """Raise `QIPFFileError` for a file whose content cannot be used."""
    raise QIPFFileError(f"{path} cannot be used: {reason}.")
