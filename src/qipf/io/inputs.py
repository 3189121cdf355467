"""Files that are read: they may be missing, damaged, hostile, or replaced meanwhile."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, first_line
from qipf.io.atomic import checked_name


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Raise every error of a reader as a `QIPFFileError` that names the file."""
    try:
        yield
    except QIPFError:
        raise
    except FileNotFoundError:
        raise QIPFFileError(f"There is no file {path}.") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno:  # of the system, not of a reader
            raise QIPFFileError(f"Cannot read {path}: {os.strerror(error.errno)}.") from error
        reason = f"{first_line(error):.200}"
        raise QIPFFileError(f"{path} cannot be read; it may be damaged ({reason}).") from error


def checked_input(path: Path | str) -> Path:
    """Return the path of a regular file that may be read; raise `QIPFFileError` otherwise.

    A pipe would be waited for, and a device may never end.

    >>> checked_input(os.devnull)
    Traceback (most recent call last):
    ...
    qipf.errors.QIPFFileError: /dev/null is a pipe or a device; name a file.
    """
    path = checked_name(path)
    with reading(path):
        mode = os.stat(path).st_mode  # before it is opened, which waits for a pipe
        if stat.S_ISDIR(mode):
            raise QIPFFileError(f"{path} is a folder; name a file in it.")
        if not stat.S_ISREG(mode):
            raise QIPFFileError(f"{path} is a pipe or a device; name a file.")
        open(path, "rb").close()
    return path


def file_version(path: Path | str) -> tuple[int, ...] | None:
    """Numbers that change when a file is written or replaced; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def require_unchanged(path: Path | str, version: tuple[int, ...] | None) -> None:
    """Raise `QIPFInputError` if the file was written or replaced since it had this version."""
    if file_version(path) != version:
        raise changed_file(path)


def changed_file(path: Path | str) -> QIPFInputError:
    """The error for a file that was written or replaced while it was read.

    >>> str(changed_file("logits.npy"))
    'logits.npy was changed while it was read. Run again when nothing writes to it.'
    """
    return QIPFInputError(
        f"{path} was changed while it was read. Run again when nothing writes to it."
    )
