"""Read lines, with their positions, from standard input or from a file that may still grow."""

import hashlib
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from qipf.errors import QIPFInputError
from qipf.io.logits.table import detect_binary

#: Maximum number of bytes per read.
CHUNK = 2**20

#: Maximum length of a line in bytes; longer lines are not stored.
LONGEST_LINE = 2**20

#: Replaces a line that is too long.
TOO_LONG = b"\0 a line longer than is held"

#: Seconds between checks of a file that does not grow, or whether to stop.
PAUSE = 0.1

#: Number of bytes before a position in a file by which the file is recognised.
TAIL = 4096


@dataclass(frozen=True)
class Lines:
    """Consecutive lines, without their line feeds."""

    texts: list[bytes]
    ends: list[int]  # position in the input, in bytes, after each line


class LineSource:
    """Lines of an input, as they arrive.

    Parameters
    ----------
    path : the file; None is standard input.
    follow : at the end of the file, wait for more.
    stopping : called between reads; True ends the lines.

    Attributes
    ----------
    unfinished : whether a last line without a line feed was left unread.
    replaced : why the lines of a followed file ended: another file took its place (``"moved"``) or
        its content was replaced (``"rewritten"``). `lines` then reads the new content. Empty if
        they did not end so.
    """

    def __init__(
        self, path: Path | None, follow: bool = False, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.path, self.stopping, self._follow = path, stopping, follow
        self.name = "standard input" if path is None else str(path)
        self.unfinished, self.replaced = False, ""
        if path is None:
            _require_standard_input()
        self._descriptor = 0 if path is None else _open(path)
        self._read, self._position = b"", 0  # the last bytes that were read, and where they end

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self.path is not None:
            os.close(self._descriptor)

    def __enter__(self) -> "LineSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tail(self, end: int) -> str:
        """Digest of the bytes before a position of the file; empty if the file is shorter.

        Of bytes that were read just now, not of others that may have replaced them since.
        """
        data = self._before(end)
        if len(data) < min(end, TAIL):
            return ""
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    def _before(self, end: int) -> bytes:
        start = max(0, end - TAIL)
        first = self._position - len(self._read)
        if first <= start and end <= self._position:
            return self._read[start - first : end - first]
        return os.pread(self._descriptor, end - start, start)

    def lines(self, start: int = 0, whole: bool = False) -> Iterator[Lines]:
        """Lines of a file from byte `start` on, or the next lines of standard input.

        A last line without a line feed is included unless `whole` is set and the file may grow.
        """
        self.replaced = ""
        if self.path is not None:
            self._read, self._position = b"", 0
            self._read, self._position = self._before(start), start
            os.lseek(self._descriptor, start, os.SEEK_SET)
        rest, too_long, end = b"", False, start
        for data in self._chunks():
            *texts, rest = (rest + data).split(b"\n")
            ends = list(accumulate((len(text) + 1 for text in texts), initial=end))[1:]
            end = ends[-1] if ends else end
            if too_long and texts:
                texts[0], too_long = TOO_LONG, False
            texts = [TOO_LONG if len(text) > LONGEST_LINE else text for text in texts]
            if len(rest) > LONGEST_LINE:
                end, rest, too_long = end + len(rest), b"", True
            if texts:
                yield Lines(texts, ends)
        left = bool(rest or too_long) and not self.stopping() and self.replaced != "rewritten"
        whole = whole and not self.replaced
        self.unfinished = left and whole
        if left and not whole:
            yield Lines([TOO_LONG if too_long else rest], [end + len(rest)])

    def _chunks(self) -> Iterator[bytes]:
        """Bytes from the position on, until the input ends, is replaced, or `stopping`."""
        successor = False
        while not self.stopping():
            if self.path is None and not select.select([0], [], [], PAUSE)[0]:
                continue
            try:
                data = os.read(self._descriptor, CHUNK)
            except OSError as error:
                raise QIPFInputError(f"Cannot read {self.name}: {error.strerror}.") from error
            if self.path is not None and self._rewritten():
                if not self._follow:
                    raise QIPFInputError(
                        f"{self.name} was truncated or rewritten while it was read. Read the new "
                        "file with --new-input."
                    )
                self.replaced = "rewritten"
                return
            if data:
                self._read = self._read[-TAIL - LONGEST_LINE :] + data
                self._position += len(data)
                yield data
            elif not self._follow:
                return
            else:
                # read once more after that: lines may have been written just before it
                before, successor = successor, self._has_successor()
                if before and successor:
                    if not self._reopened():
                        self.replaced = "moved"
                        return
                    successor = False
                time.sleep(PAUSE)

    def _rewritten(self) -> bool:
        """Whether the bytes before the position are no longer those that were read."""
        known = self._read[-TAIL:]
        return os.pread(self._descriptor, len(known), self._position - len(known)) != known

    def _has_successor(self) -> bool:
        """Whether the path leads to another file that is not empty, as after a log rotation."""
        assert self.path is not None
        try:
            now = os.stat(self.path)
        except OSError:
            return False  # not yet
        return now.st_size > 0 and not os.path.samestat(now, os.fstat(self._descriptor))

    def _reopened(self) -> bool:
        """Open the file that the path leads to now; whether it continues the one before."""
        assert self.path is not None
        descriptor = _open(self.path)
        os.close(self._descriptor)
        self._descriptor = descriptor
        if self._position == 0 or self._rewritten():
            return False
        os.lseek(descriptor, self._position, os.SEEK_SET)
        return True


def _open(path: Path) -> int:
    try:
        # non-blocking: opening a named pipe would otherwise wait for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise QIPFInputError(f"Cannot read {path}: {error.strerror or error}.") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        with open(descriptor, "rb", closefd=False) as file:
            found = detect_binary(file)
        if found is None:
            return descriptor
        remedy = "Score it with qipf score."
        if found.unpack:
            remedy = f"Unpack it to standard input: {found.unpack} FILE | qipf monitor model.qipf."
        reason = f"is {found.what}, not lines of text. {remedy}"
    elif stat.S_ISDIR(mode):
        reason = "is a folder. Name a file in it."
    else:
        reason = (
            "is a pipe or a device, which cannot be read by position. Pass it as standard input: "
            "qipf monitor model.qipf < PIPE, or COMMAND | qipf monitor model.qipf."
        )
    os.close(descriptor)
    raise QIPFInputError(f"{path} {reason}")


def _require_standard_input() -> None:
    if sys.stdin is not None:  # None if closed at the start; 0 may then be another file
        with suppress(OSError):
            os.fstat(0)
            return
    raise QIPFInputError(
        "Standard input is closed. Name a file, or pipe lines: COMMAND | qipf monitor model.qipf."
    )
