"""The header of saved files: kinds, format versions, and checks of what a file claims."""

from typing import Any, NoReturn

from qipf._version import __version__
from qipf.errors import QIPFFileError

#: Format version that is written; versions from `OLDEST` on are read.
FORMAT_VERSION, OLDEST = 5, 3

#: Header entries that the scores do not depend on.
DECISIONS = ("rule", "detection", "training_rows")

#: Entries that fields in files of versions 3 and 4 lack, and what they are there.
BEFORE_VERSION_5: dict[str, dict[str, Any]] = {
    "parameters": {"normalization": "peak", "fallback": False, "nan_policy": "raise"},
    "fitted": {"score": "modes", "probabilities": False},
}

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


def checked_header(header: dict[str, Any], path: str) -> dict[str, Any]:
    """The header in the present format, after checks of its version, kind and keys."""
    kind, version = header.get("kind"), header.get("format_version")
    if kind == "monitor":
        raise QIPFFileError(
            f"{path} holds {KINDS['monitor']}, not a model. It is for qipf monitor --state, or "
            "ShiftMonitor.load(path, model)."
        )
    require_version(path, header, FORMAT_VERSION, OLDEST)
    if not isinstance(kind, str) or kind not in _KEYS:
        refuse(path, f"its kind is {kind!r:.80}")
    if version == 3 and kind != "rule":  # layered models had no decisions yet, and none a detection
        header = {"rule": None, "detection": None, **header}
    if "parameters" in header:  # older files have no sample of training rows
        header = {"training_rows": None, **header}
    if kind in ("layers", "features"):  # nor lengths of rows
        header = {"lengths": [], **header}
    require_keys(path, "header", header, _KEYS[kind])
    if not isinstance(header["library_version"], str):
        refuse(path, f"its library_version is {header['library_version']!r:.80}")
    return header


def require_version(path: str, header: dict[str, Any], newest: int, oldest: int = 1) -> None:
    """Raise `QIPFFileError` for a format version that cannot be read."""
    version = header.get("format_version")
    if type(version) is not int or version < oldest:
        refuse(path, f"its format version is {version!r:.80}; {oldest} to {newest} are read")
    if version > newest:
        refuse(path, f"a newer qipf wrote it (format {version}, here {newest}): update qipf")


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
