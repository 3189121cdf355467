"""Risk-coverage curves: the error rate among accepted predictions against the share accepted."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.plots.drawing import axes_of, line_style, percent_axis
from qipf.plots.style import BEST, CHANCE, look_of

#: Coverage from which on the curve sets the height of new axes; below, few predictions are kept.
STEADY = 0.1


def best_possible(coverage: Any, error_rate: float) -> NDArray[np.float64]:  # (G,) -> (G,)
    """Risk of a score that ranks every right prediction before every wrong one.

    >>> best_possible([0.5, 0.9, 1.0], 0.1).round(3).tolist()
    [0.0, 0.0, 0.1]
    """
    return np.maximum(0.0, 1 - (1 - error_rate) / np.asarray(coverage, np.float64))


def draw_risk_coverage(
    curve: Any,
    ax: Any = None,
    name: str = "uncertainty",
    method: str = "qipf",
    rule: Any = None,
    **style: Any,
) -> Any:
    """Draw a curve with its confidence band, the best possible curve, chance, and a rule.

    Parameters
    ----------
    curve : a `qipf.RiskCoverage`.
    ax : axes to draw on; by default those of a new figure.
    name : the curve's name in the legend.
    method : the method in whose style the curve is drawn.
    rule : a `qipf.AcceptRule`, drawn as a point.
    style : arguments of matplotlib's `plot` for the curve.
    """
    ax = axes_of(ax)
    before = ax.get_ylim()[1] if ax.lines else 0.0
    known = ax.get_legend_handles_labels()[1]
    rate = float(curve.risk[-1])
    baselines = (
        ("chance", np.full_like(curve.coverage, rate), CHANCE),
        ("best possible", best_possible(curve.coverage, rate), BEST),
    )
    for label, risk, look in baselines:
        if label not in known:
            ax.plot(curve.coverage, risk, label=label, **line_style(look, markers=False))
    own = {**line_style(look_of(method), markers=False), "label": name, **style}
    (line,) = ax.plot(curve.coverage, curve.risk, **own)
    color = line.get_color()
    ax.fill_between(curve.coverage, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
    if rule is not None:
        label = f"accept rule: {rule.coverage:.1%} accepted"
        ax.plot([rule.coverage], [rule.risk], "o", color=color, markersize=7, label=label, zorder=4)
    top = 1.5 * max(float(curve.risk[curve.coverage >= STEADY].max()), float(curve.high[-1]))
    ax.set(xlabel="coverage: share of predictions accepted", ylabel="error rate among them")
    ax.set(xlim=(0, 1), ylim=(0, min(1.0, max(before, top))))
    percent_axis(ax.xaxis)
    percent_axis(ax.yaxis)
    ax.legend(loc="upper center")
    return ax
