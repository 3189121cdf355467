"""Lines of a stream: from standard input or a file that may still grow, with their places."""

from __future__ import annotations

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
from qipf.io.logits.file_types import detect_binary

#: Bytes that are read at a time, at most.
CHUNK = 2**20

#: Bytes of one line, at most; a longer one is bad, and is skipped without being held.
LONGEST_LINE = 2**20

#: Stands for a line longer than that.
TOO_LONG = b"\0 a line longer than is held"

#: Seconds between looks at a file that does not grow, or at the wish to stop.
PAUSE = 0.1

#: Bytes before a place in a file that tell whether it is still the same file.
TAIL = 4096


@dataclass(frozen=True)
class Lines:
    """Some consecutive lines, without their line ends."""

    texts: list[bytes]
    ends: list[int]  # bytes of the input up to and with each line


class LineSource:
    """The lines of an input, as they come.

    Parameters
    ----------
    path : the file; None is standard input.
    follow : wait for the file to grow, instead of ending with it.
    stopping : asked between reads; True ends the lines.

    Attributes
    ----------
    unfinished : whether the lines ended before a last one without its end, which was left.
    """

    def __init__(
        self,
        path: Path | None,
        follow: bool = False,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.path, self.stopping, self._follow = path, stopping, follow
        self.name = "standard input" if path is None else str(path)
        self.unfinished = False
        self._descriptor = 0 if path is None else _opened(path)
        if path is None:
            _require_standard_input()
            _widen_pipe()

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self.path is not None:
            os.close(self._descriptor)

    def __enter__(self) -> LineSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tail(self, end: int) -> str:
        """A digest of what stands before a place in the file; empty if it does not reach there."""
        start = max(0, end - TAIL)
        data = os.pread(self._descriptor, end - start, start)
        return hashlib.blake2b(data, digest_size=16).hexdigest() if len(data) == end - start else ""

    def lines(self, start: int = 0, whole: bool = False) -> Iterator[Lines]:
        """The lines from byte `start` of a file on, or of standard input from here on.

        A last line without its end counts as a line, unless only `whole` ones are asked for.
        """
        if self.path is not None:
            os.lseek(self._descriptor, start, os.SEEK_SET)
        rest, too_long, end = b"", False, start
        for data in self._pieces(start):
            *texts, rest = (rest + data).split(b"\n")
            ends = list(accumulate((len(text) + 1 for text in texts), initial=end))[1:]
            end = ends[-1] if ends else end
            if too_long and texts:
                texts[0], too_long = TOO_LONG, False
            # wherever the reads fell
            texts = [TOO_LONG if len(text) > LONGEST_LINE else text for text in texts]
            if len(rest) > LONGEST_LINE:
                end, rest, too_long = end + len(rest), b"", True
            if texts:
                yield Lines(texts, ends)
        left = bool(rest or too_long) and not self.stopping()
        self.unfinished = left and whole
        if left and not whole:
            yield Lines([TOO_LONG if too_long else rest], [end + len(rest)])

    def _pieces(self, start: int) -> Iterator[bytes]:
        """What there is to read, piece by piece, until the input ends or a stop is wished for."""
        position, moved = start, False
        while not self.stopping():
            if self.path is None and not _ready(PAUSE):
                continue
            try:
                data = self._available()
            except OSError as error:
                raise QIPFInputError(f"Cannot read {self.name}: {error.strerror}.") from error
            if data:
                position += len(data)
                yield data
            elif not self._follow:
                return
            else:
                self._require_grown(position)
                # one more look: what was written before it was moved is read
                before, moved = moved, self._moved()
                if before and moved:
                    raise QIPFInputError(
                        f"{self.name} is no longer the file that was read: that one was moved away "
                        "or removed. Read the new one with --new-input."
                    )
                time.sleep(PAUSE)

    def _available(self) -> bytes:
        data = os.read(self._descriptor, CHUNK)
        if self.path is not None or not data:
            return data
        # a pipe gives little at a time
        parts, size = [data], len(data)
        while size < CHUNK and _ready(0.0):
            data = os.read(self._descriptor, CHUNK - size)
            if not data:
                break
            parts.append(data)
            size += len(data)
        return b"".join(parts)

    def _require_grown(self, position: int) -> None:
        if os.fstat(self._descriptor).st_size < position:
            raise QIPFInputError(
                f"{self.name} became shorter than what was read of it: it was cut or written anew. "
                "Read the new one with --new-input."
            )

    def _moved(self) -> bool:
        """Whether the file has lost its name, as when a log is rotated."""
        assert self.path is not None
        try:
            named = os.stat(self.path)
        except OSError:
            return True
        return not os.path.samestat(named, os.fstat(self._descriptor))


def _opened(path: Path) -> int:
    try:
        # without waiting: a named pipe that nobody writes to would not be opened before it is told
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise QIPFInputError(f"Cannot read {path}: {error.strerror or error}.") from error
    mode = os.fstat(descriptor).st_mode
    found = None
    if stat.S_ISREG(mode):
        with open(descriptor, "rb", closefd=False) as file:
            found = detect_binary(file)
        if found is None:
            return descriptor
    os.close(descriptor)
    if found:
        unpack = f"Unpack it into standard input: {found.unpack} FILE | qipf monitor field.qipf."
        way_out = unpack if found.unpack else "Judge it with qipf score."
        raise QIPFInputError(f"{path} is {found.what}, not lines of text. {way_out}")
    if stat.S_ISDIR(mode):
        raise QIPFInputError(f"{path} is a folder. Name a file in it.")
    raise QIPFInputError(
        f"{path} is a pipe or a device, not a file whose place can be kept. Feed it to standard "
        "input: qipf monitor field.qipf < PIPE, or COMMAND | qipf monitor field.qipf."
    )


def _require_standard_input() -> None:
    # Python has none where it was closed at the start; its number may be another file's by now
    if sys.stdin is not None:
        with suppress(OSError):
            os.fstat(0)
            return
    raise QIPFInputError(
        "Standard input is closed. Name a file, or pipe lines into it: COMMAND | qipf monitor "
        "field.qipf."
    )


def _widen_pipe() -> None:
    """Let a pipe hold a whole piece, so that who writes to it goes on while lines are judged."""
    # not where there is no such call, for no pipe, nor beyond what this user may have
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, CHUNK)


def _ready(seconds: float) -> bool:
    return bool(select.select([0], [], [], seconds)[0])
