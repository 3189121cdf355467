"""Severity curves: the paper's Figures 3 (e to g) and 4, for any run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qipf.errors import QIPFInputError, QIPFWarning
from qipf.report.figures.drawing import DPI, drawing
from qipf.report.run.run import Run, chance, unequal_seeds, unit_of
from qipf.report.style import CHANCE, MARKERS, Look, look_of
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
    folders: Path | str | Sequence[Path | str],
    path: Path,
    *,
    network: str | None = None,
    corruptions: Sequence[str] = (),
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] = PAPER_METRICS,
    dpi: int = DPI,
) -> list[dict[str, Any]]:
    """Draw metrics against severity, a row for each corruption (all of them if none is named).

    Without `methods`: the paper's, or all of the run if it has none of these. The clean images
    stand at no severity; the dotted line is what chance would give; several seeds are averaged.
    The curves that were drawn are returned, None where a metric is not defined.
    """
    run = Run(*([folders] if isinstance(folders, (str, Path)) else folders))
    chosen = run.network(network)
    named = [run.corruption(chosen, name) for name in corruptions] or run.corruptions(chosen)
    if not named:
        raise QIPFInputError(f"{chosen} was tried on clean images only: there is no severity.")
    shown = run.chosen_methods(methods or run.paper_methods)
    own = [r for r in run.records if r["network"] == chosen and r["corruption"] in named]
    if lacking := [name for name in unequal_seeds(own) if name in shown]:
        warnings.warn(
            f"{', '.join(lacking)}: fewer seeds than the other methods, so not the same average.",
            QIPFWarning,
            stacklevel=2,
        )
    curves: list[dict[str, Any]] = []
    legend_rows = -(-len(shown) // 6)
    with drawing(
        path,
        width=3.4 * len(metrics),
        height=2.5 * len(named) + 0.25 * legend_rows + 0.4,
        rows=len(named),
        columns=len(metrics),
        sharey="col",
        dpi=dpi,
    ) as axes:
        for row, corruption in zip(axes, named, strict=True):
            for axis, metric in zip(row, metrics, strict=True):
                curves += _draw_curves(axis, run, chosen, corruption, metric, shown)
        for axis, metric in zip(axes[0], metrics, strict=True):
            axis.set_title(TITLES[metric])
        figure = axes[0][0].figure
        seeds = f", mean of {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""
        figure.suptitle(f"Detecting the errors of {chosen}{seeds}", fontsize=11)
        shared_legend(figure, axes[0][0])
    return curves


def _draw_curves(
    axis: Any, run: Run, network: str, corruption: str, metric: str, methods: Sequence[str]
) -> list[dict[str, Any]]:
    drawn = []
    errors = run.error_rate(network, corruption)
    guessed = chance(metric, errors.values)
    axis.plot(errors.levels, guessed, label="chance", **line_style(CHANCE, markers=False))
    for method in methods:
        curve = run.curve(network, corruption, method, metric)
        if curve is not None:
            emphasis = 3 if method == "qipf" else 2
            style = line_style(look_of(method))
            axis.plot(curve.levels, curve.values, label=method, zorder=emphasis, **style)
            values = [None if math.isnan(value) else value for value in curve.values]
            drawn.append(
                {"corruption": corruption, "metric": metric, "method": method,
                 "levels": curve.levels, "values": values}
            )  # fmt: skip
    unit = unit_of(corruption)
    if unit == "factor":  # half and double are equally far from 1
        axis.set_xscale("log")
        axis.set_xticks(errors.levels, [f"{level:g}" for level in errors.levels], fontsize=7)
        axis.minorticks_off()
    axis.set_xlabel(f"{corruption} ({unit})" if unit else corruption)
    return drawn


def shared_legend(figure: Any, axis: Any, columns: int = 6) -> None:
    """One legend for all parts of a figure, below them."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=8
    )
