"""Severity curves: the paper's Figures 3 (e to g) and 4, for any run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qipf.errors import QIPFInputError
from qipf.report.drawing import drawing
from qipf.report.looks import CHANCE, MARKERS, Look, look_of
from qipf.report.runs import Run, chance, unit_of
from qipf.report.table_formats import TITLES
from qipf.report.tables import PAPER_METRICS


def line_style(look: Look, markers: bool = True) -> dict[str, Any]:
    """A look in matplotlib's words."""
    dash: Any = (0, look.dash) if look.dash else "-"
    style: dict[str, Any] = {"color": look.color, "linestyle": dash, "linewidth": look.width}
    if markers:
        face = "white" if look.hollow else look.color
        style |= {"marker": MARKERS[look.marker], "markersize": 4.5, "markerfacecolor": face}
    return style


def draw_bars(axis: Any, heights: Any, edges: Any, look: Look, label: str) -> None:
    """A histogram that is told from another over it by colour and by hatching."""
    hatch = "////" if look.dash else ""
    axis.stairs(
        heights, edges, fill=True, alpha=0.35, facecolor=look.color, edgecolor=look.color,
        hatch=hatch, linewidth=0, label=label,
    )  # fmt: skip
    axis.stairs(heights, edges, color=look.color, linewidth=1.1)


def draw_severity(
    folder: Path | str,
    path: Path,
    *,
    network: str | None = None,
    corruptions: Sequence[str] = (),
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] = PAPER_METRICS,
) -> None:
    """Draw metrics against severity, a row for each corruption (all of them if none is named).

    The clean images stand at no severity; the dotted line is what chance would give.
    """
    run = Run(folder)
    chosen = run.network(network)
    named = [run.corruption(chosen, name) for name in corruptions] or run.corruptions(chosen)
    if not named:
        raise QIPFInputError(f"{chosen} was tried on clean images only: there is no severity.")
    shown = run.chosen_methods(methods)
    legend_rows = -(-len(shown) // 6)
    with drawing(
        path,
        width=3.4 * len(metrics),
        height=2.5 * len(named) + 0.25 * legend_rows + 0.4,
        rows=len(named),
        columns=len(metrics),
        sharey="col",
    ) as axes:
        for row, corruption in zip(axes, named, strict=True):
            for axis, metric in zip(row, metrics, strict=True):
                _draw_curves(axis, run, chosen, corruption, metric, shown)
        for axis, metric in zip(axes[0], metrics, strict=True):
            axis.set_title(TITLES[metric])
        figure = axes[0][0].figure
        figure.suptitle(f"Detecting the errors of {chosen}", fontsize=11)
        shared_legend(figure, axes[0][0])


def _draw_curves(
    axis: Any, run: Run, network: str, corruption: str, metric: str, methods: Sequence[str]
) -> None:
    errors = run.error_rate(network, corruption)
    guessed = chance(metric, errors.values)
    axis.plot(errors.levels, guessed, label="chance", **line_style(CHANCE, markers=False))
    for method in methods:
        curve = run.curve(network, corruption, method, metric)
        if curve is not None:
            emphasis = 3 if method == "qipf" else 2
            style = line_style(look_of(method))
            axis.plot(curve.levels, curve.values, label=method, zorder=emphasis, **style)
    unit = unit_of(corruption)
    if unit == "factor":  # half and double are equally far from 1
        axis.set_xscale("log")
        axis.set_xticks(errors.levels, [f"{level:g}" for level in errors.levels], fontsize=7)
        axis.minorticks_off()
    axis.set_xlabel(f"{corruption} ({unit})" if unit else corruption)


def shared_legend(figure: Any, axis: Any, columns: int = 6) -> None:
    """One legend for all parts of a figure, below them."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=8
    )
