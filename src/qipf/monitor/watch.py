"""Watching a stream of lines: one verdict a window, each saved before it is told.

A verdict is told only when the state it comes from is on the disk. So a verdict that was read
stands for predictions that are neither lost nor counted twice, whatever ends the program. The
verdict of the saved state is told again when the stream is taken up, under the same number, because
nobody knows whether it was read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFFileError, QIPFInputError, unknown_name
from qipf.monitor.lines import Lines, LineSource
from qipf.monitor.monitor import ShiftMonitor, Verdict
from qipf.monitor.parsing import LineParser

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


@dataclass(frozen=True)
class Place:
    """Where an earlier watch stood, as the monitor's notes tell."""

    kind: str
    line: int
    bad_lines: int
    verdicts: int
    offset: int = 0
    tail: str = ""


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

    Attributes
    ----------
    new_lines : lines of the input that this watch has taken.
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
        if skip_seen and source.path is not None:
            raise QIPFInputError(
                "--skip-seen is for standard input: a file is read on from where the state stands."
            )
        if skip_seen and new_input:
            raise QIPFInputError(
                "--skip-seen and --new-input contradict each other: of a new input nothing was "
                "seen. Leave one of them out."
            )
        if on_bad_line not in ON_BAD_LINE:
            raise unknown_name("choice for bad lines", on_bad_line, ON_BAD_LINE)
        assert monitor.field is not None
        self.monitor, self.source, self.state = monitor, source, state
        self._tell, self._complain, self._on_bad_line = tell, complain, on_bad_line
        self._dtype = monitor.field.centers_.dtype  # as exact as what it was calibrated with
        place = _noted(monitor, "The state" if state is None else str(state))
        self._number = 0 if place is None else place.verdicts
        self._bad_lines = 0 if place is None else place.bad_lines
        self._line = self._offset = 0
        # the verdict that is told again belongs to this input, or is not told
        self._again = place is not None and not new_input
        if place is not None and not new_input:
            self._take_up(place)
        self.new_lines = 0
        self._usable = self._line > 0  # whether any line of the input held logits
        self._first_bad = ""  # the line, and why
        self._skip = self._line if skip_seen else 0
        self._pending: list[NDArray[Any]] = []  # rows of the window that has begun
        self._waiting = 0  # how many
        self._untold, self._last_bad = 0, 0
        self._told = self._counted()

    def _take_up(self, place: Place) -> None:
        """Go on where the earlier watch of this input stood."""
        if place.kind != self._kind():
            raise QIPFInputError(
                f"The state stands in {'a file' if place.kind == _FILE else place.kind}, and the "
                f"input is now {self.source.name}. Go on with another input by --new-input."
            )
        self._line = place.line
        if place.kind == _FILE:
            if not place.tail or self.source.tail(place.offset) != place.tail:
                raise QIPFInputError(
                    f"{self.source.name} is not the file that the state was reading, or it was "
                    "written anew. Go on with it from its start by --new-input."
                )
            self._offset = place.offset

    def _kind(self) -> str:
        return _STDIN if self.source.path is None else _FILE

    def report(self, verdict: Verdict | None = None) -> Report:
        """The verdict as things stand; given one, which takes a while to work out, that one."""
        verdict = self.monitor.verdict() if verdict is None else verdict
        return Report(self._number, self._line, self._bad_lines, verdict)

    def run(self, parser: LineParser) -> None:
        """Watch until the lines end, then tell of what has come since the last verdict.

        A file's last line without its end may still be being written: where there is a state to
        come back to, it is left for then.
        """
        if self._again:
            self._tell(self.report())
        self._settle(parser)
        try:
            for lines in self._arriving():
                known = min(self._skip, len(lines.texts))
                self._skip -= known
                parser.settle(lines.texts[:known])
                if known < len(lines.texts):
                    self._take(Lines(lines.texts[known:], lines.ends[known:]), parser)
        finally:
            self._report_untold()
        # there is nothing to have a verdict on, unless usable lines were still to come
        if not self._usable and self._first_bad and not self.source.stopping():
            raise QIPFInputError(f"No line of {self.source.name} holds logits. {self._first_bad}.")
        self._finish()
        if self.source.unfinished:
            self._complain(
                f"{self.source.name}, line {self._line + 1}: it has no end yet; left for the next "
                "run."
            )

    def _arriving(self) -> Iterator[Lines]:
        """The lines from where the watch stands; if the input breaks off, what came is kept."""
        later = self.state is not None and self.source.path is not None
        try:
            yield from self.source.lines(self._offset, whole=later)
        except QIPFInputError:
            self._finish()
            raise

    def _settle(self, parser: LineParser) -> None:
        """The layout, from the lines that were counted already."""
        if self._offset == 0:
            return
        for lines in self.source.lines(whole=True):
            counted = bisect_right(lines.ends, self._offset)
            parser.settle(lines.texts[:counted])
            if parser.settled or lines.ends[-1] >= self._offset:
                return

    def _take(self, lines: Lines, parser: LineParser) -> None:
        parsed = parser.parse(lines.texts)
        bad, before = deque(parsed.bad), self._line
        self.new_lines += len(lines.texts)
        self._usable = self._usable or bool(parsed.places)
        if bad and not self._first_bad:
            self._first_bad = f"Line {before + bad[0][0] + 1}: {bad[0][1]}"
        stop = bad[0][0] if bad and self._on_bad_line == "stop" else len(lines.texts)

        def advance(to: int) -> None:
            while bad and bad[0][0] < to:
                place, reason = bad.popleft()
                self._count_bad(before + place + 1, reason)
            if to:
                self._line, self._offset = before + to, lines.ends[to - 1]

        with np.errstate(over="ignore"):  # what is too large becomes inf, and is abstained from
            rows = parsed.rows[: bisect_left(parsed.places, stop)].astype(self._dtype)
        start = 0
        while len(rows) - start >= self._room():
            end = start + self._room()
            self._hold(rows[start:end])
            advance(parsed.places[end - 1] + 1)
            self._finish()
            start = end
        self._hold(rows[start:])
        advance(stop)
        if stop < len(lines.texts):
            self._finish()
            raise QIPFInputError(
                f"{self.source.name}, line {self._line + 1}: {bad[0][1]}. Skip such lines with "
                "--on-bad-line skip."
            )

    def _room(self) -> int:
        """Rows that the window still lacks."""
        return self.monitor.window - (self.monitor.seen + self._waiting) % self.monitor.window

    def _hold(self, rows: NDArray[Any]) -> None:
        if len(rows):  # bad lines alone must not add up
            self._pending.append(rows)
            self._waiting += len(rows)

    def _finish(self) -> None:
        """Judge what is pending, save, and tell; nothing if neither rows nor bad lines came."""
        pending, waiting, verdict = self._pending, self._waiting, None
        self._pending, self._waiting = [], 0
        if waiting:
            verdict = self.monitor.update_logits(np.concatenate(pending))
        self._report_untold()
        if self._counted() == self._told or self.monitor.seen == 0:
            return
        self._number += 1
        self._told = self._counted()
        if self.state is not None:
            self.monitor.notes = self.monitor.notes | self._notes()
            self.monitor.save(self.state)
        self._tell(self.report(verdict))

    def _counted(self) -> tuple[int, int]:
        return self.monitor.seen, self._bad_lines

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


def _noted(monitor: ShiftMonitor, name: str) -> Place | None:
    """The place in the monitor's notes, checked; None if they are not of a watch."""
    notes = monitor.notes
    if "input" not in notes:
        return None

    def number(key: str, least: int = 0) -> int:
        value = notes.get(key)
        if not isinstance(value, int) or not least <= value < 2**63:
            raise QIPFFileError(f"{name} cannot be used: in its notes {key!r} is {value!r:.80}.")
        return value

    kind, tail = notes["input"], notes.get("tail", "")
    if kind not in (_FILE, _STDIN) or not isinstance(tail, str):
        raise QIPFFileError(f"{name} cannot be used: its notes name the input {kind!r:.80}.")
    return Place(
        kind=str(kind),
        line=number("line"),
        bad_lines=number("bad_lines"),
        verdicts=number("verdicts", least=1),
        offset=number("offset") if kind == _FILE else 0,
        tail=tail,
    )
