"""Watching a stream of lines: one verdict a window, each saved before it is told.

A verdict is told only when the state it comes from is on the disk. So a verdict that was read
stands for predictions that are neither lost nor counted twice, whatever ends the program. The
verdict of the saved state is told again when the stream is taken up, under the same number, because
nobody knows whether it was read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError, unknown_name
from qipf.monitor import ShiftMonitor, Verdict
from qipf.streaming.lines import Lines, LineSource
from qipf.streaming.parsing import LineParser

#: What to do with a line that holds no logits.
ON_BAD_LINE = ("skip", "stop")

#: Bad lines reported one by one, at most, between two verdicts; the others are reported together.
REPORTED = 10

_FILE, _STDIN = "file", "standard input"


@dataclass(frozen=True)
class Report:
    """A verdict, and where in the input it stands."""

    number: int  # of the verdict, from 1; one that comes twice is the same verdict
    lines: int  # lines of the input so far, with a header, empty and bad ones
    bad_lines: int  # lines without logits, of all inputs so far
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        places = {"number": self.number, "lines": self.lines, "bad_lines": self.bad_lines}
        return places | self.verdict.as_dict()


class Watch:
    """Feeds a monitor from lines.

    Whole windows are judged at once, so that the same lines give the same verdicts, to the last
    bit, in however many pieces they arrive, and whatever interrupts them between two verdicts.

    Parameters
    ----------
    monitor : made from a field; where it has notes of an earlier watch, that is taken up.
    source : the lines.
    state : the file that keeps the monitor; None keeps nothing.
    tell : is given every verdict, once it is saved.
    complain : is given a line of text about bad lines.
    on_bad_line : ``"skip"`` reports and counts it, ``"stop"`` ends before it.
    new_input : the input is another than that of the earlier watch; it is read from its start.
    skip_seen : standard input starts from its first line again: skip what was counted of it.
    """

    def __init__(
        self,
        monitor: ShiftMonitor,
        source: LineSource,
        state: Path | None,
        tell: Callable[[Report], None],
        complain: Callable[[str], None],
        on_bad_line: str = "skip",
        new_input: bool = False,
        skip_seen: bool = False,
    ) -> None:
        if on_bad_line not in ON_BAD_LINE:
            raise unknown_name("choice for bad lines", on_bad_line, ON_BAD_LINE)
        assert monitor.field is not None
        self.monitor, self.source, self.state = monitor, source, state
        self._tell, self._complain, self._on_bad_line = tell, complain, on_bad_line
        self._dtype = monitor.field.centers_.dtype  # as exact as what it was calibrated with
        notes = monitor.notes
        self._number = int(notes.get("verdicts", 0))
        self._bad_lines = int(notes.get("bad_lines", 0))
        self._line = self._offset = 0
        if notes.get("input") is not None and not new_input:
            self._take_up(str(notes["input"]), str(notes.get("tail", "")))
        self._skip = self._line if skip_seen else 0
        self._pending: list[NDArray[Any]] = []  # rows of the window that has begun
        self._untold, self._last_bad = 0, 0
        self._told = self._place()

    def _take_up(self, kind: str, tail: str) -> None:
        """Go on where the earlier watch of this input stood."""
        if kind != self._kind():
            raise QIPFInputError(
                f"The state stands in {'a file' if kind == _FILE else kind}, and the input is now "
                f"{self.source.name}. Go on with another input by --new-input."
            )
        self._line = int(self.monitor.notes["line"])
        if kind == _FILE:
            offset = int(self.monitor.notes["offset"])
            if self.source.tail(offset) != tail:
                raise QIPFInputError(
                    f"{self.source.name} is not the file that the state was reading, or it was "
                    "written anew. Go on with it from its start by --new-input."
                )
            self._offset = self.source.after(offset)

    def _kind(self) -> str:
        return _STDIN if self.source.path is None else _FILE

    def report(self) -> Report:
        """The verdict as things stand."""
        return Report(self._number, self._line, self._bad_lines, self.monitor.verdict())

    def run(self, make_parser: Callable[[bytes], LineParser]) -> None:
        """Watch until the lines end, then tell of what has come since the last verdict.

        `make_parser` is given the first line of the input.
        """
        if self._number:
            self._tell(self.report())
        first = None if self.source.path is None else self.source.first_line()
        parser = None if first is None else make_parser(first)
        for lines in self.source.lines(self._offset):
            if parser is None:
                parser = make_parser(lines.texts[0])
            known = min(self._skip, len(lines.texts))
            self._skip -= known
            if known < len(lines.texts):
                self._take(Lines(lines.texts[known:], lines.ends[known:]), parser)
        self._finish()

    def _take(self, lines: Lines, parser: LineParser) -> None:
        parsed = parser.parse(lines.texts)
        bad, before = deque(parsed.bad), self._line
        stop = bad[0][0] if bad and self._on_bad_line == "stop" else len(lines.texts)

        def advance(to: int) -> None:
            while bad and bad[0][0] < to:
                place, reason = bad.popleft()
                self._count_bad(before + place + 1, reason)
            if to:
                self._line, self._offset = before + to, lines.ends[to - 1]

        rows = parsed.rows[: bisect_left(parsed.places, stop)].astype(self._dtype)
        start = 0
        while len(rows) - start >= self._room():
            end = start + self._room()
            self._pending.append(rows[start:end])
            advance(parsed.places[end - 1] + 1)
            self._finish()
            start = end
        self._pending.append(rows[start:])
        advance(stop)
        if stop < len(lines.texts):
            self._finish()
            raise QIPFInputError(
                f"{self.source.name}, line {self._line + 1}: {bad[0][1]}. Skip such lines with "
                "--on-bad-line skip."
            )

    def _room(self) -> int:
        """Rows that the window still lacks."""
        begun = self.monitor.seen + sum(map(len, self._pending))
        return self.monitor.window - begun % self.monitor.window

    def _finish(self) -> None:
        """Judge what is pending, save, and tell; nothing if nothing has come."""
        pending, self._pending = self._pending, []
        if any(map(len, pending)):
            self.monitor.update_logits(np.concatenate(pending))
        self._report_untold()
        if self._place() == self._told:
            return
        self._number += 1
        self._told = self._place()
        if self.state is not None:
            self.monitor.notes = self._notes()
            self.monitor.save(self.state)
        self._tell(self.report())

    def _place(self) -> tuple[int, int]:
        return self.monitor.seen, self._line

    def _notes(self) -> dict[str, int | str]:
        notes: dict[str, int | str] = {
            "input": self._kind(),
            "line": self._line,
            "bad_lines": self._bad_lines,
            "verdicts": self._number,
        }
        if self._kind() == _FILE:
            notes |= {"offset": self._offset, "tail": self.source.tail(self._offset)}
        return notes

    def _count_bad(self, line: int, reason: str) -> None:
        self._bad_lines += 1
        self._untold += 1
        self._last_bad = line
        if self._untold <= REPORTED:
            self._complain(f"{self.source.name}, line {line}: {reason}; skipped.")

    def _report_untold(self) -> None:
        if self._untold > REPORTED:
            self._complain(
                f"{self.source.name}: {self._untold - REPORTED} more bad lines up to line "
                f"{self._last_bad}; skipped."
            )
        self._untold = 0
