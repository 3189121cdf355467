"""One look for all figures: legible in print, safe for the colour-blind, written whole or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qipf.errors import QIPFError
from qipf.io.atomic import atomic_write, checked_output

#: File kinds a figure can be written as.
KINDS = (".png", ".pdf", ".svg")

#: Dots per inch of a PNG.
DPI = 200

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
def drawing(
    path: Path, *, width: float, height: float, dpi: int = DPI, **grid: Any
) -> Iterator[Any]:
    """Axes to draw on (a list of rows); on leaving, the figure is written to `path` in one step.

    `width` and `height` are in inches, of `dpi` dots each in a PNG.
    """
    path = checked_output(path, KINDS)
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    rows, columns = grid.pop("rows", 1), grid.pop("columns", 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots(rows, columns, squeeze=False, **grid)
        with atomic_write(path) as file:
            figure.savefig(file, dpi=dpi, format=path.suffix[1:].lower())


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise QIPFError("Figures need matplotlib: pip install 'qipf[report]'.") from error
    return matplotlib
