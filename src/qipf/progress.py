"""Progress bars, shown in terminals and notebooks only."""

import sys
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

from tqdm.auto import tqdm

T = TypeVar("T")

#: Seconds before a bar appears.
DELAY = 1.0

_silent = False


def silence() -> None:
    """Show no more bars in this process; for worker processes."""
    global _silent
    _silent = True
    # tqdm's default lock is shared by processes, and leaks when one is killed
    tqdm.set_lock(threading.RLock())


def _has_reader() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    return not _silent and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def progress(items: Iterable[T], description: str, total: int | None = None) -> Iterable[T]:
    """Iterate over `items`, with a progress bar if it takes longer than `DELAY`.

    >>> sum(progress([1, 2, 3], "adding"))
    6
    """
    return tqdm(items, desc=description, total=total, **_options())


def progress_bar(description: str, total: int | None = None, unit: str = "it") -> Any:
    """A progress bar for manual updates: `with progress_bar("rows", total=n) as bar: ...`.

    With the unit "B" it shows kB, MB, ….
    """
    return tqdm(desc=description, total=total, unit=unit, unit_scale=unit == "B", **_options())


def _options() -> dict[str, Any]:
    return {"delay": DELAY, "leave": False, "disable": not _has_reader(), "dynamic_ncols": True}
