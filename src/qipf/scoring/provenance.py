"""What a scored shard says of itself: the field, the options and the input that it came from.

Stands in the Parquet file's own metadata, with what the scores come to. A shard is finished when it
is there and says what would be said of it now; times and machines are no part of it, so the same
work gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qipf.errors import QIPFInputError
from qipf.field.estimator import LEARNED, QIPF
from qipf.io.logits.parquet_files import opened
from qipf.scoring.table import Scored

#: The entry of the file's metadata.
KEY = b"qipf"

#: Bytes of a file hashed at a time.
PIECE = 2**20


@dataclass(frozen=True)
class Origin:
    """Digests of everything that decides the numbers in a shard, and the version that wrote it."""

    version: str
    field: str
    options: str
    input: str = ""

    def differs_from(self, other: Origin) -> str:
        """What sets two apart, in words; empty when nothing does.

        >>> Origin("1.0", "a", "b", "c").differs_from(Origin("1.1", "a", "b", "d"))
        'by qipf 1.0, from another input'
        """
        words = {
            "version": f"by qipf {self.version}",
            "field": "with another field",
            "options": "with other options",
            "input": "from another input",
        }
        mine, others = asdict(self), asdict(other)
        return ", ".join(words[name] for name in words if mine[name] != others[name])


def origin_of(field: QIPF, columns: Sequence[str], modes: bool) -> Origin:
    """Where scores of these columns come from, less the input."""
    from qipf._version import __version__

    options = json.dumps({"columns": list(columns), "modes": modes})
    return Origin(__version__, _field_digest(field), _digest(options.encode()))


def file_digest(path: Path, tell: Callable[[int], object] = int) -> str:
    """A fingerprint of a file's content; `tell` hears of the bytes as they are read."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
                tell(len(piece))
    except OSError as error:
        raise QIPFInputError(f"Cannot read {path}: {error.strerror}.") from error
    return digest.hexdigest()


@contextmanager
def as_read(path: Path) -> Iterator[str]:
    """The fingerprint of a file that is read meanwhile; refused if it does not stay the same."""
    before, digest = _state(path), file_digest(path)

    def require_the_same() -> None:
        # hashed once more only if there is reason to
        if _state(path) != before and file_digest(path) != digest:
            raise QIPFInputError(
                f"{path} was changed while it was read. Run again when nobody writes to it."
            )

    try:
        yield digest
    except Exception:
        require_the_same()  # else what went wrong is not the reason that it seems
        raise
    require_the_same()


def _state(path: Path) -> tuple[int, ...] | None:
    """What the system says of a file: changes whenever its content does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def as_metadata(origin: Origin, scored: Scored) -> dict[bytes, str]:
    """The entry for a file's metadata."""
    summary = asdict(scored) if scored.rows else {"rows": 0}
    return {KEY: json.dumps({"origin": asdict(origin), "scored": summary}, allow_nan=False)}


def read_origin(path: Path) -> tuple[Origin, Scored] | None:
    """What a shard says of itself; None when it is not one that qipf wrote whole."""
    try:
        with opened(path) as file:
            entry = (file.metadata.metadata or {})[KEY]
            said = json.loads(entry)
            scored = Scored(**said["scored"])
            counts, sizes = (scored.rows, scored.outliers), (scored.mean, scored.lowest)
            if not all(type(n) is int for n in counts) or not all(
                type(x) is float for x in (*sizes, scored.highest)
            ):
                return None
            if scored.rows != file.metadata.num_rows:
                return None
            return Origin(**said["origin"]), scored
    except (QIPFInputError, KeyError, TypeError, ValueError):
        return None


def _field_digest(field: QIPF) -> str:
    """Of all that scores and the count of outliers follow from."""
    digest = hashlib.blake2b(digest_size=16)
    parameters = ("orders", "softening", "engine", "device")
    said: dict[str, Any] = {name: getattr(field, name) for name in parameters}
    said |= {name: getattr(field, name) for name in LEARNED}
    for name, value in sorted(said.items()):
        if isinstance(value, np.ndarray):
            digest.update(f"{name} {value.dtype} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            plain = list(value) if isinstance(value, tuple) else value
            digest.update(f"{name} {plain}".encode())
    return digest.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
