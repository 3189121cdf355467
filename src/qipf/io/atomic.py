"""Files that are there whole or not at all, whatever stops the program or the machine."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from qipf.errors import QIPFError, QIPFFileError, QIPFInputError


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
    """Give a draft its name, at once and for good; what had that name is no more."""
    try:
        os.replace(draft, path)
        _kept(path.parent)
    except OSError as error:
        raise QIPFError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        _removed(draft)


def _kept(folder: Path) -> None:
    """Have the names in a folder on the disk too, where there is a way to."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders; others only those that can be listed
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


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
        handle = _lock_file(folder / ".lock")
    except OSError as error:
        raise QIPFError(f"Cannot write into {folder}: {error.strerror}.") from error
    try:
        _take(handle, str(folder), "folder")
        yield
    finally:
        os.close(handle)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Keep other runs from the file `path`, which need not be there, while this one lasts.

    The lock is a hidden file beside it, which is gone afterwards, and dies with the process.
    """
    lock = path.with_name(f".{path.name}.lock")
    while True:
        try:
            handle = _lock_file(lock)
        except OSError as error:
            raise QIPFError(f"Cannot write {path}: {error.strerror}.") from error
        try:
            _take(handle, str(path), "file")
            if not _is_named(handle, lock):  # who had it has just taken it away
                continue
            try:
                yield
            finally:
                _removed(lock)
            return
        finally:
            os.close(handle)


def _lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _take(handle: int, name: str, kind: str) -> None:
    """Lock an open lock file, and leave word of who has it."""
    if not _lock(handle):
        owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
        raise QIPFError(
            f"{name} is in use by another run (process {owner}). "
            f"Wait until it has ended, or choose another {kind}."
        )
    os.truncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())


def _is_named(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


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
    path = checked_name(path)
    try:
        _require_writable(path, kinds, inputs)
    except OSError as error:
        raise QIPFInputError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


def checked_name(path: Path | str) -> Path:
    """A path that the system can be asked for.

    >>> checked_name("a\\0b")
    Traceback (most recent call last):
    ...
    qipf.errors.QIPFFileError: No file can have the name 'a\\x00b': leave out its odd characters.
    """
    path = Path(path)
    try:
        sound = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise QIPFFileError(
            f"No file can have the name {str(path)!r}: leave out its odd characters."
        )
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
