"""Atomic writes, locks between processes, and checks of output paths."""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, QIPFTypeError

#: Codes of errors for a disk, a quota or a file that is full.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    A file that is replaced passes its permissions on, and a link stays: the file that it leads to
    is replaced.
    """
    with draft_file(path) as file:
        yield file
    publish(Path(file.name), path)


@contextmanager
def draft_file(path: Path) -> Iterator[BinaryIO]:
    """Open a hidden file beside `path`, to be given that name by `publish`.

    It is synced to disk at the end, and removed if the block raises.
    """
    with _write_errors(path):
        target = Path(os.path.realpath(path))
        # a unique name: processes on two machines may write the same file at once
        draft = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _write_errors(path), open(draft, "w+b", opener=partial(_opened, target)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        _remove(draft)
        raise


def _opened(target: Path, draft: str, flags: int) -> int:
    """Create a draft with the permissions of the file that it will replace, from the start."""
    try:
        mode = stat.S_IMODE(os.stat(target).st_mode)
    except FileNotFoundError:
        return os.open(draft, flags, 0o666)  # less what the umask takes away
    handle = os.open(draft, flags | os.O_EXCL, 0o600)
    with suppress(OSError):  # file systems without permissions
        os.chmod(draft, mode)
    return handle


def publish(draft: Path, path: Path) -> None:
    """Rename a draft to `path` atomically and durably; a file of that name is replaced."""
    try:
        with _write_errors(path):
            target = Path(os.path.realpath(path))
            os.replace(draft, target)
            _sync_folder(target.parent)
    finally:
        _remove(draft)


@contextmanager
def _write_errors(path: Path, kind: type[QIPFError] = QIPFError) -> Iterator[None]:
    """Raise errors of the system as errors of qipf."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error, kind) from error


def write_error(path: Path | str, error: OSError, kind: type[QIPFError] = QIPFError) -> QIPFError:
    """The error for a file or folder that cannot be written.

    >>> str(write_error("a.qipf", OSError(errno.EACCES, "Permission denied")))
    'Cannot write a.qipf: Permission denied.'
    """
    text = f"Cannot write {path}: {error.strerror or error}."
    if error.errno in DISK_FULL:
        text += (
            " Files that were complete before are intact: free some space, and run the same "
            "command again."
        )
    return kind(text)


def _sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, where the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open folders
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def _remove(draft: Path) -> None:
    with suppress(OSError):  # its folder cannot be entered, so it was never created
        draft.unlink(missing_ok=True)


def remove_drafts(targets: Iterable[Path]) -> None:
    """Remove the drafts of files that killed processes left; call it with the lock held.

    A draft that is still being written loses its name, and disappears when it is closed.
    """
    by_folder: dict[Path, set[str]] = {}
    for target in map(Path, map(os.path.realpath, targets)):
        by_folder.setdefault(target.parent, set()).add(target.name)
    for folder, names in by_folder.items():
        for draft in folder.glob(".*.tmp"):
            name = re.fullmatch(r"\.(.+)\.\d+(-[0-9a-f]+)?\.tmp", draft.name)
            if name and name[1] in names:
                _remove(draft)  # or leave it, hidden and harmless, for the next run


def locked_folder(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder, created if needed, against other runs; raises if another run holds it."""
    with _write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return _locked(folder / ".lock", folder, "folder")


def locked_file(path: Path) -> AbstractContextManager[None]:
    """Lock a file, which need not exist yet, against other runs; raises if another run holds it.

    The lock is on a hidden file beside it, ``.NAME.lock``.
    """
    return _locked(path.with_name(f".{path.name}.lock"), path, "file")


@contextmanager
def _locked(lock_path: Path, path: Path, kind: str) -> Iterator[None]:
    with _write_errors(path):
        try:
            # the system releases the lock when the process ends, even by kill -9
            lock = FileLock(lock_path).acquire(timeout=0)
        except Timeout:
            raise QIPFError(
                f"{path} is in use by another run. Wait until it has ended, or choose another "
                f"{kind}."
            ) from None
    with lock:
        yield


def checked_output(
    path: Path | str, kinds: Sequence[str] = (), inputs: Sequence[Path] = ()
) -> Path:
    """Return `path` if a file can be written there, before any work is done; raise otherwise.

    Parameters
    ----------
    kinds : allowed suffixes; empty allows all.
    inputs : files that are read, which must not be overwritten.

    >>> checked_output(Path("scored.doc"), [".csv", ".npz"])
    Traceback (most recent call last):
    ...
    qipf.errors.QIPFInputError: Cannot write 'scored.doc': name a file that ends in .csv or .npz.
    """
    path = checked_name(path)
    if kinds and path.suffix.lower() not in kinds:
        raise QIPFInputError(
            f"Cannot write {path.name!r}: name a file that ends in {' or '.join(kinds)}."
        )
    with _write_errors(path, QIPFInputError):
        if path.is_dir():
            raise QIPFInputError(f"{path} is a folder; name a file in it.")
        if path.exists() and not path.is_file():
            raise QIPFInputError(f"{path} is a pipe or a device; name a file.")
        if not path.parent.is_dir():
            raise QIPFInputError(f"There is no folder {path.parent}. Create it, or choose another.")
        # os.path.exists: an input that cannot be examined is reported when it is read
        if path.exists() and any(path.samefile(i) for i in inputs if os.path.exists(i)):
            raise QIPFInputError(
                f"{path} is an input, and writing would destroy it. Name another file."
            )
    if not os.access(path.parent, os.W_OK):
        raise QIPFInputError(f"Cannot write {path}: the folder {path.parent} is read-only for you.")
    return path


def checked_name(path: Path | str) -> Path:
    """Return a path whose name the system can represent; raise otherwise.

    >>> checked_name(None)
    Traceback (most recent call last):
    ...
    qipf.errors.QIPFTypeError: A path must be a string or a pathlib.Path, got NoneType.
    """
    try:
        path = Path(path)
    except TypeError:
        raise QIPFTypeError(
            f"A path must be a string or a pathlib.Path, got {type(path).__name__}."
        ) from None
    try:
        sound = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise QIPFFileError(f"No file can have the name {str(path)!r}: use other characters.")
    return path
