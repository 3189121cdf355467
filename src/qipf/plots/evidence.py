"""The evidence of a monitor over the stream."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.plots.drawing import axes_of, line_style
from qipf.plots.style import CHANCE, WRONG, look_of


def draw_evidence(
    seen: NDArray[np.int64],  # (k,)
    log_evidence: NDArray[np.float64],  # (k,)
    alpha: float,
    alarm: tuple[int, int] | None = None,
    ax: Any = None,
    **style: Any,
) -> Any:
    """Draw the logarithm of the test martingale to base 10, with the level of the alarm.

    Parameters
    ----------
    seen : numbers of predictions.
    log_evidence : natural logarithm of the evidence after so many predictions.
    alpha : the alarm is raised where the evidence reaches 1/alpha.
    alarm : the prediction that raised the alarm, and the estimated change point.
    ax : axes to draw on; by default those of a new figure.
    style : arguments of matplotlib's `plot` for the line.
    """
    ax = axes_of(ax)
    look = line_style(look_of("qipf"), markers=False)
    ax.plot(seen, log_evidence / math.log(10), **{**look, "label": "evidence", **style})
    level = line_style(CHANCE, markers=False)
    ax.axhline(-math.log10(alpha), label=f"alarm level, 1/{alpha:g}", **level)
    if alarm is not None:
        at, change = alarm
        ax.axvline(change, color="black", linewidth=1.0, label=f"change point, about {change:,}")
        ax.axvline(at, label=f"alarm at {at:,}", **line_style(WRONG, markers=False))
    ax.set(xlabel="predictions seen", ylabel="evidence of a shift (power of ten)")
    ax.legend(loc="upper left")
    return ax
