"""Progress bars: shown in terminals and notebooks, silent everywhere else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

from tqdm.auto import tqdm

T = TypeVar("T")

#: Work shorter than this (seconds) shows no bar at all.
DELAY = 1.0

_silent = False


def silence() -> None:
    """No bars from here on in this process: another one shows its own."""
    global _silent
    _silent = True
    # tqdm's own lock spans processes, and leaks when this one is killed
    tqdm.set_lock(threading.RLock())


def _has_reader() -> bool:
    """Whether somebody watches: a terminal on standard error, or a notebook."""
    return not _silent and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def progress(items: Iterable[T], description: str, total: int | None = None) -> Iterable[T]:
    """Iterate over `items` behind a bar that appears only when the work turns out slow.

    >>> sum(progress([1, 2, 3], "adding"))
    6
    """
    return tqdm(items, desc=description, total=total, **_options())


def progress_bar(description: str, total: int | None = None, unit: str = "it") -> Any:
    """A bar to move by hand: `with progress_bar("rows", total=n) as bar: bar.update(k)`.

    With "B" as its unit it counts bytes, and shows kB, MB, ….
    """
    return tqdm(desc=description, total=total, unit=unit, unit_scale=unit == "B", **_options())


def _options() -> dict[str, Any]:
    return {"delay": DELAY, "leave": False, "disable": not _has_reader(), "dynamic_ncols": True}
