"""Monitor a stream of lines: one verdict per window, saved before it is reported.

A verdict is reported only after the state it comes from is on disk. The predictions of a reported
verdict are therefore neither lost nor counted twice, however the program ends. When a stream is
resumed, the verdict of the saved state is reported again under the same number, because it may not
have been received.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError, unknown_name
from qipf.io.schema import refuse
from qipf.monitor.lines import Lines, LineSource
from qipf.monitor.monitor import ShiftMonitor
from qipf.monitor.parsing import LineParser
from qipf.monitor.verdict import Verdict

#: What to do with a line that holds no logits.
ON_BAD_LINE = ("skip", "stop")

#: Maximum number of single messages about bad lines between two verdicts.
MAX_MESSAGES = 10

#: What is said when another file took the place of a followed one, by what happened.
REPLACED = {
    "moved": "was moved or removed, and there is a new file; it is read from its start.",
    "rewritten": "was truncated or rewritten; it is read again from its start. Lines that were "
    "added just before that may be missing.",
}

_FILE, _STDIN = "file", "standard input"


@dataclass(frozen=True)
class Report:
    """A verdict and its position in the input."""

    number: int  # of the verdict, from 1; a repeated verdict has the same number
    lines: int  # lines of the input so far, including header, empty and bad lines
    bad_lines: int  # lines without logits, of all inputs so far
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        position = {"number": self.number, "lines": self.lines, "bad_lines": self.bad_lines}
        return position | self.verdict.as_dict()


class Watch:
    """Feeds a monitor with lines.

    Whole windows are scored at once, so that the same lines give the same verdicts, bit for bit,
    however they are divided into reads and wherever the watch is interrupted between two verdicts.

    Parameters
    ----------
    monitor : made from a field; if its notes hold the position of an earlier watch, it is resumed.
    source : the lines.
    state : file for the state of the monitor; None saves nothing.
    report : called with every verdict after it is saved.
    warn : called with messages about bad lines.
    on_bad_line : ``"skip"`` reports and counts the line, ``"stop"`` raises before it.
    new_input : this is not the input of the earlier watch; read it from its start.
    skip_seen : standard input starts again from its first line; skip the lines already counted.

    Attributes
    ----------
    new_lines : number of lines read by this watch.
    """

    def __init__(
        self,
        monitor: ShiftMonitor,
        source: LineSource,
        state: Path | None,
        report: Callable[[Report], None],
        warn: Callable[[str], None],
        on_bad_line: str = "skip",
        new_input: bool = False,
        skip_seen: bool = False,
    ) -> None:
        if skip_seen and source.path is not None:
            raise QIPFInputError(
                "--skip-seen is for standard input: a file is resumed at the saved position."
            )
        if skip_seen and new_input:
            raise QIPFInputError(
                "--skip-seen and --new-input contradict each other: nothing of a new input was "
                "seen. Omit one of them."
            )
        if on_bad_line not in ON_BAD_LINE:
            raise unknown_name("choice for bad lines", on_bad_line, ON_BAD_LINE)
        self.monitor, self.source, self.state = monitor, source, state
        self._report, self._warn, self._on_bad_line = report, warn, on_bad_line
        assert monitor.model is not None
        self._dtype = monitor.model.centers_.dtype  # as precise as the calibration was
        self._kind = _STDIN if source.path is None else _FILE
        self._line = self._offset = self._verdicts = self._bad_lines = 0
        resumed = "input" in monitor.notes
        if resumed:
            self._restore("The state" if state is None else str(state), new_input)
        self._repeat = resumed and not new_input
        self.new_lines = 0
        self._usable = self._line > 0  # whether any line of the input held logits
        self._first_bad = ""  # the first bad line and its reason
        self._skip = self._line if skip_seen else 0
        self._pending: list[NDArray[Any]] = []  # rows of the incomplete window
        self._unreported_bad, self._last_bad = 0, 0
        self._reported = self._counts()

    def _restore(self, name: str, new_input: bool) -> None:
        """Resume the counts and, for the same input, the position of the notes."""
        notes = self.monitor.notes
        kind, tail = notes["input"], notes.get("tail", "")
        if kind not in (_FILE, _STDIN) or not isinstance(tail, str):
            refuse(name, f"its notes name the input {kind!r:.80}")
        counts = {"line": 0, "bad_lines": 0, "verdicts": 1} | (
            {"offset": 0} if kind == _FILE else {}
        )
        for key, least in counts.items():
            value = notes.get(key)
            if not isinstance(value, int) or not least <= value < 2**63:
                refuse(name, f"in its notes {key!r} is {value!r:.80}")
            counts[key] = value
        self._verdicts, self._bad_lines = counts["verdicts"], counts["bad_lines"]
        line, offset = counts["line"], counts.get("offset", 0)
        same = kind == self._kind == _FILE and tail != "" and self.source.tail(offset) == tail
        if new_input:
            if same and offset:
                raise QIPFInputError(
                    f"{self.source.name} is the file that the state was reading: {line:,} of its "
                    "lines are counted. Omit --new-input to continue with it."
                )
            return
        if kind != self._kind:
            raise QIPFInputError(
                f"The state belongs to {'a file' if kind == _FILE else kind}, but the input is "
                f"{self.source.name}. To continue with another input, add --new-input."
            )
        if kind == _FILE and not same:
            raise QIPFInputError(
                f"{self.source.name} is not the file that the state was reading, or it was "
                "rewritten. Finish the old file first, if it has another name now; then, to read "
                "this one from its start, add --new-input."
            )
        self._line, self._offset = line, offset

    def run(self, parser: LineParser) -> None:
        """Read lines until they end, then report on those since the last verdict.

        The last line of a file may be incomplete if it has no line feed: with a state to resume
        from, it is left for the next run.
        """
        if self._repeat:
            self._report(self._current(self.monitor.verdict()))
        self._find_layout(parser)
        try:
            self._read(parser)
            while self.source.replaced:
                self._start_over()
                parser = parser.restarted()
                self._read(parser)
        finally:
            self._warn_of_more_bad_lines()
        if not self._usable and self._first_bad and not self.source.stopping():
            raise QIPFInputError(f"No line of {self.source.name} holds logits. {self._first_bad}.")
        self._finish_window()
        if self.source.unfinished:
            self._warn(
                f"{self.source.name}, line {self._line + 1}: no line feed yet; left for the next "
                "run."
            )

    def _read(self, parser: LineParser) -> None:
        """Take the lines from the current position on."""
        for lines in self._new_lines():
            seen = min(self._skip, len(lines.texts))
            self._skip -= seen
            parser.find_layout(lines.texts[:seen])
            if seen < len(lines.texts):
                self._take(Lines(lines.texts[seen:], lines.ends[seen:]), parser)

    def _start_over(self) -> None:
        """Continue at the start of the file that replaced the one that was read."""
        self._warn(f"{self.source.name} {REPLACED[self.source.replaced]}")
        self._line = self._offset = 0
        self._finish_window()
        self._save()

    def _new_lines(self) -> Iterator[Lines]:
        """Lines from the current position on; if reading fails, those before are saved."""
        whole = self.state is not None and self.source.path is not None
        try:
            yield from self.source.lines(self._offset, whole=whole)
        except QIPFInputError:
            self._finish_window()
            raise

    def _find_layout(self, parser: LineParser) -> None:
        """Determine the layout from the lines of a file that were counted already."""
        if self._offset == 0:
            return
        for lines in self.source.lines(whole=True):
            parser.find_layout(lines.texts[: bisect_right(lines.ends, self._offset)])
            if parser.layout_known or lines.ends[-1] >= self._offset:
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

        with np.errstate(over="ignore"):  # overflow becomes inf, which is abstained from
            rows = parsed.rows[: bisect_left(parsed.places, stop)].astype(self._dtype)
        start, end = 0, self._missing_rows()
        while end <= len(rows):
            self._pending.append(rows[start:end])
            advance(parsed.places[end - 1] + 1)
            self._finish_window()
            start, end = end, end + self.monitor.window
        if start < len(rows):
            self._pending.append(rows[start:])
        advance(stop)
        if stop < len(lines.texts):
            self._finish_window()
            raise QIPFInputError(
                f"{self.source.name}, line {self._line + 1}: {bad[0][1]}. Skip such lines with "
                "--on-bad-line skip."
            )

    def _missing_rows(self) -> int:
        """Number of rows that complete the window."""
        seen = self.monitor.seen + sum(map(len, self._pending))
        return self.monitor.window - seen % self.monitor.window

    def _finish_window(self) -> None:
        """Score the pending rows, save and report; nothing without new rows or bad lines."""
        pending, self._pending = self._pending, []
        verdict = self.monitor.update(np.concatenate(pending)) if pending else None
        self._warn_of_more_bad_lines()
        if self._counts() == self._reported or self.monitor.seen == 0:
            return
        self._verdicts += 1
        self._reported = self._counts()
        self._save()
        self._report(self._current(verdict or self.monitor.verdict()))

    def _save(self) -> None:
        if self.state is not None and self.monitor.seen > 0:
            self.monitor.notes = self.monitor.notes | self._notes()
            self.monitor.save(self.state)

    def _current(self, verdict: Verdict) -> Report:
        return Report(self._verdicts, self._line, self._bad_lines, verdict)

    def _counts(self) -> tuple[int, int]:
        return self.monitor.seen, self._bad_lines

    def _notes(self) -> dict[str, int | str]:
        notes: dict[str, int | str] = {
            "input": self._kind,
            "line": self._line,
            "bad_lines": self._bad_lines,
            "verdicts": self._verdicts,
        }
        if self._kind == _FILE:
            notes |= {"offset": self._offset, "tail": self.source.tail(self._offset)}
        return notes

    def _count_bad(self, line: int, reason: str) -> None:
        self._bad_lines += 1
        self._unreported_bad += 1
        self._last_bad = line
        if self._unreported_bad <= MAX_MESSAGES:
            self._warn(f"{self.source.name}, line {line}: {reason}; skipped.")

    def _warn_of_more_bad_lines(self) -> None:
        if self._unreported_bad > MAX_MESSAGES:
            self._warn(
                f"{self.source.name}: {self._unreported_bad - MAX_MESSAGES} more bad lines up to "
                f"line {self._last_bad}; skipped."
            )
        self._unreported_bad = 0
