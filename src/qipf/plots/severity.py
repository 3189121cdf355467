"""Error detection against the severity of a corruption."""

from collections.abc import Mapping, Sequence
from typing import Any

from qipf.metrics.error_detection import TITLES, chance
from qipf.plots.drawing import axes_of, line_style
from qipf.plots.style import CHANCE, look_of


def draw_severity(
    levels: Sequence[float],  # (L,)
    error_rates: Sequence[float],  # (L,)
    curves: Mapping[str, tuple[str, Sequence[float]]],
    metric: str,
    ax: Any = None,
    **style: Any,
) -> Any:
    """Draw a metric against the level, one line for each score, with the result of chance.

    Parameters
    ----------
    levels : of the corruption.
    error_rates : of the predictions at each level, on which some metrics of chance depend.
    curves : by name, the method in whose style the line is drawn, and the metric at each level.
    metric : one of `qipf.metrics.error_detection.HIGHER_IS_BETTER`.
    ax : axes to draw on; by default those of a new figure.
    style : arguments of matplotlib's `plot` for the first line.
    """
    ax = axes_of(ax)
    known = ax.get_legend_handles_labels()[1]
    if "chance" not in known:
        guessed = chance(metric, error_rates)
        ax.plot(levels, guessed, label="chance", **line_style(CHANCE, markers=False))
    for name, (method, values) in curves.items():
        if name not in known:
            ax.plot(levels, values, **{**line_style(look_of(method)), "label": name, **style})
        style = {}
    ax.set(xlabel="severity", ylabel=TITLES[metric])
    ax.legend()
    return ax
