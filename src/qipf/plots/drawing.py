"""Common style of all figures: legible in print and for colour-blind readers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qipf.errors import QIPFInputError, missing_extra
from qipf.io.atomic import atomic_write, checked_output
from qipf.plots.style import MARKERS, Look

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


def axes_of(ax: Any = None) -> Any:
    """The given axes, or those of a new figure."""
    if ax is None:
        matplotlib = _matplotlib()
        from matplotlib import pyplot

        with matplotlib.rc_context(STYLE):
            return pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    if not hasattr(ax, "fill_between"):
        raise QIPFInputError(
            f"ax must be the axes of one matplotlib plot, got {type(ax).__name__}. Of "
            "plt.subplots(1, 2) pass one of the axes."
        )
    return ax


def graded(share: float) -> Any:
    """A colour for a position in an ordered family, from dark to light."""
    return _matplotlib().colormaps["viridis"](0.92 * share)


@contextmanager
def drawing(
    path: Path, *, width: float, height: float, dpi: int = DPI, **grid: Any
) -> Iterator[Any]:
    """Axes to draw on (a list of rows); on exit the figure is written to `path` atomically.

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


def line_style(look: Look, markers: bool = True) -> dict[str, Any]:
    """Keyword arguments of matplotlib's `plot` for a look."""
    dash: Any = (0, look.dash) if look.dash else "-"
    style: dict[str, Any] = {"color": look.color, "linestyle": dash, "linewidth": look.width}
    if markers:
        face = "white" if look.hollow else look.color
        style |= {"marker": MARKERS[look.marker], "markersize": 4.5, "markerfacecolor": face}
    return style


def percent_axis(axis: Any) -> None:
    """Show the shares of an axis in percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0))


def draw_bars(axis: Any, heights: Any, edges: Any, look: Look, label: str) -> None:
    """Draw a histogram; dashed looks are hatched, so that overlapping ones can be distinguished."""
    axis.stairs(
        heights, edges, fill=True, alpha=0.35, facecolor=look.color, edgecolor=look.color,
        hatch="////" if look.dash else "", linewidth=0, label=label,
    )  # fmt: skip
    axis.stairs(heights, edges, color=look.color, linewidth=1.1)


def shared_legend(figure: Any, axis: Any, columns: int = 6) -> None:
    """Draw one legend for all parts of a figure, below them."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=8
    )


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise missing_extra("Figures need matplotlib", "report") from error
    return matplotlib
