"""The provenance of a scored shard: digests of the field, the options and the input.

Stored in the metadata of the Parquet file, with a summary of the scores. A shard is finished when
its file exists and has the provenance that scoring it now would give. Times and machines are not
part of it, so that the same work gives the same bytes.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qipf._version import __version__
from qipf.calibration.state import rule_values
from qipf.errors import QIPFError, QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.inputs import changed_file
from qipf.io.logits.parquet_files import parquet_file
from qipf.scoring.table import Scored
from qipf.validation.parameters import propagates

#: The entry of the file's metadata.
KEY = b"qipf"

#: Bytes of a file hashed at a time.
PIECE = 2**20


@dataclass(frozen=True)
class Provenance:
    """The version that scored a shard, and digests of everything that determines its numbers."""

    version: str
    field: str
    options: str
    input: str = ""

    def differences(self, other: "Provenance") -> list[str]:
        """Names of what differs from another provenance."""
        theirs = asdict(other)
        return [name for name, value in asdict(self).items() if value != theirs[name]]


def provenance_of(field: QIPF, columns: Sequence[str], results: Sequence[str]) -> Provenance:
    """Provenance of the results for these columns of logits, without the input."""
    # contamination and rule are not part of the field's digest
    options: dict[str, Any] = {"columns": list(columns), "results": list(results)}
    options["contamination"] = float(field.contamination)
    if propagates(field.nan_policy):
        options["nan_policy"] = field.nan_policy
    if "accepted" in results and field.rule_ is not None:
        options["rule"] = rule_values(field.rule_)
    digest = hashlib.blake2b(json.dumps(options).encode(), digest_size=16).hexdigest()
    return Provenance(__version__, field.digest(), digest)


def file_digest(path: Path, progress: Callable[[int], object] = int) -> str:
    """Digest of a file's content; `progress` is called with the number of bytes of each piece."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
                progress(len(piece))
    except OSError as error:
        raise QIPFInputError(f"Cannot read {path}: {error.strerror}.") from error
    return digest.hexdigest()


@contextmanager
def unchanged(path: Path) -> Iterator[str]:
    """Digest of a file that is read in the block; raises at its end if the file was changed."""
    before, digest = _state(path), file_digest(path)

    def require_unchanged() -> None:
        # hashed again only if there is reason to
        if _state(path) != before and file_digest(path) != digest:
            raise changed_file(path)

    try:
        yield digest
    except Exception:
        require_unchanged()  # the change is the likely cause of the other error
        raise
    require_unchanged()


def _state(path: Path) -> tuple[int, ...] | None:
    """Attributes of a file that change when its content does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def as_metadata(provenance: Provenance, scored: Scored) -> dict[bytes, str]:
    """The entry for a file's metadata."""
    none = {"rows": scored.rows, "missing": scored.missing}
    summary = asdict(scored) if scored.with_scores else none
    return {KEY: json.dumps({"origin": asdict(provenance), "scored": summary}, allow_nan=False)}


def read_provenance(path: Path) -> tuple[Provenance, Scored] | None:
    """Provenance and summary of a shard; None if it is not a complete shard written by qipf."""
    try:
        with parquet_file(path) as file:
            entry = json.loads((file.metadata.metadata or {})[KEY])
            rows = file.metadata.num_rows
        scored = Scored(**entry["scored"])
        types = [type(value) for value in asdict(scored).values()]
        valid = types == [int, float, float, float, int, int] and scored.rows == rows
        return (Provenance(**entry["origin"]), scored) if valid else None
    except (QIPFError, KeyError, TypeError, ValueError):
        return None
