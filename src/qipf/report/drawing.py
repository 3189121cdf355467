"""One look for all figures: legible in print, safe for the colour-blind, written whole or not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qipf.errors import QIPFError, QIPFInputError

#: File kinds a figure can be written as.
KINDS = (".png", ".pdf", ".svg")

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
}


def graded(share: float) -> Any:
    """A colour for a place in an ordered family, dark to light, told apart without hue."""
    return _matplotlib().colormaps["viridis"](0.92 * share)


@contextmanager
def drawing(path: Path, *, width: float, height: float, **grid: Any) -> Iterator[Any]:
    """Axes to draw on (a list of rows); on leaving, the figure is written to `path` in one step."""
    path = checked_target(path)
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    rows, columns = grid.pop("rows", 1), grid.pop("columns", 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots(rows, columns, squeeze=False, **grid)
        with replaced(path) as temporary:
            figure.savefig(temporary, dpi=200, format=path.suffix[1:].lower())


def checked_target(path: Path) -> Path:
    """A place where a figure can be written."""
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        raise QIPFInputError(
            f"Cannot draw into {path.name!r}: name a file that ends in {', '.join(KINDS)}."
        )
    if not path.parent.is_dir():
        raise QIPFInputError(f"There is no folder {path.parent}. Create it, or choose another.")
    if path.is_dir():
        raise QIPFInputError(f"{path} is a folder; name a file in it.")
    return path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place once written whole."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise QIPFError(f"Cannot write {path}: {error.strerror}.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise QIPFError("Figures need matplotlib: pip install 'qipf[report]'.") from error
    return matplotlib
