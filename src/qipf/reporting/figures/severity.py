"""Severity curves: the paper's Figures 3 (e to g) and 4, for any run."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qipf.errors import QIPFInputError, warn
from qipf.metrics.error_detection import TITLES
from qipf.plots.drawing import DPI, drawing, line_style, shared_legend
from qipf.plots.style import look_of
from qipf.reporting.charts import Chart
from qipf.reporting.run.charts import severity_chart
from qipf.reporting.run.results import Run
from qipf.reporting.tables import PAPER_METRICS, summarise


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
    """Draw metrics against severity, one row for each corruption (all if none is named).

    Without `methods`: the paper's, or all of the run if it has none of these. The clean images
    are at the level where the corruption changes nothing; the dotted line is the result of chance;
    several seeds are averaged. Returns the curves, with None where a metric is not defined.
    """
    run = Run(*([folders] if isinstance(folders, (str, Path)) else folders))
    chosen = run.network(network)
    named = [run.corruption(chosen, name) for name in corruptions] or run.corruptions(chosen)
    if not named:
        raise QIPFInputError(f"{chosen} was evaluated on clean images only: there is no severity.")
    shown = run.select_methods(methods or "paper")
    own = [r for r in run.records if r["network"] == chosen and r["corruption"] in named]
    rows = summarise(own, metrics[:1], "all").tables[0].rows
    if lacking := [name for name in shown if any(row.mark(name) == "†" for row in rows)]:
        warn(f"{', '.join(lacking)}: fewer seeds than the other methods, so not the same average.")
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
                chart = severity_chart(run, chosen, corruption, metric, shown)
                _draw(axis, chart)
                curves += [
                    {
                        "corruption": corruption,
                        "metric": metric,
                        "method": series.name,
                        "levels": series.x,
                        "values": [None if math.isnan(y) else y for y in np.asarray(series.y)],
                    }
                    for series in chart.series
                    if not series.fixed
                ]
        for axis, metric in zip(axes[0], metrics, strict=True):
            axis.set_title(TITLES[metric])
        figure = axes[0][0].figure
        seeds = f", mean of {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""
        figure.suptitle(f"Detecting the errors of {chosen}{seeds}", fontsize=11)
        shared_legend(figure, axes[0][0])
    return curves


def _draw(axis: Any, chart: Chart) -> None:
    for series in sorted(chart.series, key=lambda series: not series.fixed):  # chance first
        style = line_style(series.look or look_of(series.name), markers=not series.fixed)
        order = 3 if series.name == "qipf" else 2
        axis.plot(series.x, series.y, label=series.name, zorder=order, **style)
    if chart.x.log and chart.x.ticks:
        axis.set_xscale("log")
        axis.set_xticks(chart.x.ticks, [f"{level:g}" for level in chart.x.ticks], fontsize=7)
        axis.minorticks_off()
    axis.set_xlabel(chart.x.label)
