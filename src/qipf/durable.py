"""Files that are there whole or not at all, whatever stops the program or the machine."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from qipf.errors import QIPFError, QIPFInputError


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the name `path` once it is on the disk.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp(), "deep", "note.txt")
    >>> with replaced(target) as file:
    ...     _ = file.write(b"whole")
    >>> target.read_bytes()
    b'whole'
    """
    with drafted(path) as file:
        yield file
    published(Path(file.name), path)


@contextmanager
def drafted(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, beside `path` and under the name that it tells: a hidden draft.

    Once it is on the disk it stays, for one process to take with `published`.
    """
    # a name of its own: two processes, on two machines, may write the same content at once
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        _removed(draft)
        if isinstance(error, OSError):
            raise QIPFError(f"Cannot write {path}: {error.strerror or error}.") from error
        raise


def published(draft: Path, path: Path) -> None:
    """Give a draft its name, at once; what had that name is no more."""
    try:
        os.replace(draft, path)
    except OSError as error:
        raise QIPFError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        _removed(draft)


def _removed(unfinished: Path) -> None:
    try:
        unfinished.unlink(missing_ok=True)
    except OSError:  # its folder cannot be entered, so it was never there
        return


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other runs out of `folder` while this one lasts; the lock dies with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise QIPFError(f"Cannot write into {folder}: {error.strerror}.") from error
    try:
        if not _lock(handle):
            owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            raise QIPFError(
                f"{folder} is in use by another run (process {owner}). "
                "Wait until it has ended, or choose another folder."
            )
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; there the user keeps runs apart
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def checked_output(path: Path, kinds: Sequence[str] = (), inputs: Sequence[Path] = ()) -> Path:
    """A place where a file can be written, known before any work is done for it.

    None of the `inputs` may lie there: writing would destroy what is read.

    >>> checked_output(Path("scored.doc"), [".csv", ".npz"])
    Traceback (most recent call last):
    ...
    qipf.errors.QIPFInputError: Cannot write 'scored.doc': name a file that ends in .csv or .npz.
    """
    path = Path(path)
    try:
        _require_writable(path, kinds, inputs)
    except OSError as error:
        raise QIPFInputError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


def _require_writable(path: Path, kinds: Sequence[str], inputs: Sequence[Path]) -> None:
    if kinds and path.suffix.lower() not in kinds:
        raise QIPFInputError(
            f"Cannot write {path.name!r}: name a file that ends in {either(kinds)}."
        )
    if path.is_dir():
        raise QIPFInputError(f"{path} is a folder; name a file in it.")
    if path.exists() and not path.is_file():
        raise QIPFInputError(f"{path} is a pipe or a device; name a file.")
    if not path.parent.is_dir():
        raise QIPFInputError(f"There is no folder {path.parent}. Create it, or choose another.")
    # os.path's: an input that cannot be looked at is told when it is read
    if any(path.exists() and os.path.exists(given) and path.samefile(given) for given in inputs):
        raise QIPFInputError(
            f"{path} is an input, and writing would destroy it. Name another file."
        )
    if not os.access(path.parent, os.W_OK):
        raise QIPFInputError(f"Cannot write {path}: the folder {path.parent} is read-only for you.")


def either(names: Sequence[str]) -> str:
    """Names as a choice.

    >>> either([".csv", ".npz", ".npy"])
    '.csv, .npz or .npy'
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
