"""Progress: bars in terminals and notebooks, a line every few seconds elsewhere.

``QIPF_QUIET=1`` in the environment turns both off.
"""

import operator
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

from tqdm.auto import tqdm
from tqdm.std import tqdm as plain_tqdm

T = TypeVar("T")

#: Seconds before a bar appears.
DELAY = 1.0

#: Seconds before the first line, and between two.
LINE_DELAY = 10.0

#: Share of the work to be done before the time left is estimated: first items can take longer.
EARLY = 0.02

#: A line, where standard error is no terminal; an early one; one of work whose end is not known.
LINE = "{desc}: {n_fmt} of {total_fmt}, {elapsed} since the start, {remaining} left"
EARLY_LINE = "{desc}: {n_fmt} of {total_fmt}, {elapsed} since the start"
OPEN_LINE = "{desc}: {n_fmt}, {elapsed} since the start"

_silent = False


def silence() -> None:
    """Show no more progress in this process; for worker processes."""
    global _silent
    _silent = True
    # tqdm's default lock is shared by processes, and leaks when one is killed
    for kind in (tqdm, _Bar):
        kind.set_lock(threading.RLock())


def _has_reader() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class _Bar(tqdm):
    """A bar that shows no rate and no time left at first."""

    @property
    def format_dict(self) -> Any:
        found = super().format_dict
        return {**found, "rate": 0.0} if _is_early(self) else found


class _LineBar(plain_tqdm):
    """Lines that show no time left at first."""

    @property
    def format_dict(self) -> Any:
        found = super().format_dict
        return {**found, "bar_format": EARLY_LINE} if _is_early(self) else found


def _is_early(bar: Any) -> bool:
    return not bar.disable and bar.total is not None and bar.n < EARLY * bar.total


class _Lines:
    """A file that keeps what tqdm writes over itself as lines, on standard error."""

    def write(self, text: str) -> None:
        line = text.replace("\x1b[A", "").strip("\r\n ")  # up, from the line of an inner bar
        if line:
            sys.stderr.write(line + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


def progress(items: Iterable[T], description: str, total: int | None = None) -> Iterable[T]:
    """Iterate over `items` and show the progress if that takes longer than `DELAY`.

    >>> sum(progress([1, 2, 3], "adding"))
    6
    """
    if total is None:
        total = operator.length_hint(items) or None  # loaders of streams have no length
    kind, options = _options(total)
    return kind(items, desc=description, total=total, **options)


def progress_bar(description: str, total: int | None = None, unit: str = "it") -> Any:
    """Progress for manual updates: `with progress_bar("rows", total=n) as bar: ...`.

    With the unit "B" it shows kB, MB, ….
    """
    kind, options = _options(total)
    return kind(desc=description, total=total, unit=unit, unit_scale=unit == "B", **options)


def _options(total: int | None) -> tuple[Any, dict[str, Any]]:
    """Class and options of a bar, or of lines."""
    options: dict[str, Any] = {
        "leave": False,
        "disable": _silent or os.environ.get("QIPF_QUIET", "") not in ("", "0"),
    }
    if options["disable"] or _has_reader():
        return _Bar, {**options, "delay": DELAY, "dynamic_ncols": True}
    line = OPEN_LINE if total is None else LINE
    times = {"delay": LINE_DELAY, "mininterval": LINE_DELAY, "miniters": 1}
    return _LineBar, {**options, **times, "file": _Lines(), "bar_format": line}
