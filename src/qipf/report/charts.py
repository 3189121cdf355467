"""Charts for a page: what is drawn, as data; the page's own script draws it.

>>> chart = Chart(
...     "ROC-AUC by angle", Axis("angle"), Axis("ROC-AUC", 0, 1),
...     [Series("qipf", [0, 30, 60], [0.95, 0.8, 0.6])],
... )
>>> "<figure" in chart_html(chart, alt="ROC-AUC falls from 0.95 to 0.6 as the angle grows.")
True
"""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from qipf.errors import QIPFInputError
from qipf.report.style import BEST, CHANCE, RIGHT, WRONG, Look, look_of

#: Places along a curve that a page keeps.
CURVE_POINTS = 50

#: Bars of a histogram.
BARS = 30


@dataclass(frozen=True)
class Axis:
    """An axis: its name, its ends (from the data where None), ticks of one's own, logarithmic?"""

    label: str
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None
    log: bool = False


@dataclass(frozen=True)
class Series:
    """A named row of points; NaN leaves a gap. Its look is its method's unless given.

    `fixed` ones are always shown and cannot be switched off, such as what chance gives.
    """

    name: str
    x: ArrayLike
    y: ArrayLike
    look: Look | None = None
    fixed: bool = False


@dataclass(frozen=True)
class Mark:
    """Something that happens at a place along x: a line across, and a word at it."""

    x: float
    label: str
    strong: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines with hover, points with names, or a histogram (x: left edges; one more at the end).

    A line that exceeds an end given for y leaves the chart there.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    kind: Literal["lines", "points", "histogram"] = "lines"
    markers: bool = True
    marks: Sequence[Mark] = ()


@dataclass(frozen=True)
class Choice:
    """A selection box above a chart or a table: its label, and options by key."""

    label: str
    options: Mapping[str, str] = field(default_factory=dict)


def chart_html(
    chart: Chart | Mapping[tuple[str, ...], Chart],
    *,
    alt: str,
    caption: str = "",
    choices: Sequence[Choice] = (),
    shown: Sequence[str] | None = None,
    presets: Mapping[str, Sequence[str]] | None = None,
    print_all: bool = False,
) -> str:
    """A figure with its chart, or with several of which selection boxes show one.

    Parameters
    ----------
    chart : one chart; or charts by the keys chosen in `choices`, in their order.
    alt : what a reader who cannot see it must know.
    caption : text under the chart (plain, not HTML).
    choices : the selection boxes.
    shown : names of the series that are switched on at first; all if None. With more than one
        series the reader can switch each on and off.
    presets : buttons that switch on a set of series by a name: ``{"paper": [...], "all": [...]}``.
    print_all : print every chart, not only those under the last box's choice.
    """
    charts: dict[tuple[str, ...], Chart] = {(): chart} if isinstance(chart, Chart) else dict(chart)
    _check_keys(charts, choices)
    names = list(
        dict.fromkeys(s.name for each in charts.values() for s in each.series if not s.fixed)
    )
    looks = {s.name: s.look or look_of(s.name) for each in charts.values() for s in each.series}
    spec = {
        "alt": alt,
        "choices": [{"label": c.label, "options": list(c.options.items())} for c in choices],
        "views": {"|".join(key): _view(each) for key, each in charts.items()},
        "looks": {name: _look(look) for name, look in looks.items()},
        "names": names,
        "shown": names if shown is None else [name for name in names if name in shown],
        "presets": [
            [label, [name for name in names if name in chosen]]
            for label, chosen in (presets or {}).items()
        ],
        "printAll": print_all,
    }
    note = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return (
        '<figure class="chart" data-chart><div class="plot">'
        f"<noscript>{html.escape(alt)}</noscript>"
        f"</div>{note}{embedded(spec)}</figure>"
    )


def embedded(data: Any) -> str:
    """Data for the page's script, in a form that no text in it can break out of."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'


def risk_coverage_chart(
    uncertainty: Mapping[str, ArrayLike],  # method -> (n,)
    wrong: ArrayLike,  # (n,)
    title: str = "Risk and coverage",
) -> Chart:
    r"""Error rate among the predictions kept, against the share that is kept, by method.

    At coverage c the least uncertain :math:`\lceil cn \rceil` predictions are kept; where ties
    leave open which these are, the expected error rate is drawn.

    >>> chart = risk_coverage_chart({"qipf": [0.1, 0.2, 0.9, 0.8]}, [0, 0, 1, 0])
    >>> [float(y) for y in np.asarray(chart.series[0].y)[[24, -1]]]  # half kept; all kept
    [0.0, 0.25]
    """
    coverage = np.arange(1, CURVE_POINTS + 1) / CURVE_POINTS
    series = []
    for name, scores in uncertainty.items():
        risk = risks(scores, wrong)
        kept = np.ceil(coverage * len(risk) - 1e-9).astype(int) - 1
        series.append(Series(name, coverage, risk[kept]))
    rate = float(np.mean(np.asarray(wrong, np.float64)))
    perfect = np.maximum(0.0, 1 - (1 - rate) / coverage)  # every right prediction is kept first
    series.append(Series("chance", coverage, np.full(CURVE_POINTS, rate), CHANCE, fixed=True))
    series.append(Series("best possible", coverage, perfect, BEST, fixed=True))
    x = Axis("coverage: share of predictions kept", 0, 1)
    return Chart(title, x, Axis("error rate among them", 0), series, markers=False)


def risks(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
) -> np.ndarray:  # (n,)
    """Expected error rate among the k least uncertain predictions, for k = 1..n.

    >>> risks([0.1, 0.5, 0.5], [0, 1, 0]).round(3).tolist()
    [0.0, 0.25, 0.333]
    """
    scores, errors = np.asarray(uncertainty, np.float64), np.asarray(wrong, np.float64)
    if scores.ndim != 1 or scores.shape != errors.shape or not len(scores):
        raise QIPFInputError(
            "uncertainty and wrong must be of one shape (n,), n at least 1; "
            f"got {scores.shape} and {errors.shape}."
        )
    order = scores.argsort(kind="stable")
    _, group, size = np.unique(scores[order], return_inverse=True, return_counts=True)
    shared = np.bincount(group, weights=errors[order]) / size  # a tie's errors, spread evenly
    return np.cumsum(shared[group]) / np.arange(1, len(scores) + 1)


def histogram_chart(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
    title: str,
    label: str = "uncertainty",
) -> Chart:
    """Uncertainty of the right and of the wrong predictions, each as shares of its own kind.

    The axis ends at the 99.5th percentile; what lies beyond is counted in the last bar.

    >>> chart = histogram_chart([0.0, 1.0, 1.0], [False, False, True], "two right, one wrong")
    >>> [(s.name, float(np.sum(s.y))) for s in chart.series]
    [('right (2)', 1.0), ('wrong (1)', 1.0)]
    """
    scores, errors = np.asarray(uncertainty, np.float64), np.asarray(wrong).astype(bool)
    edges = bar_edges(scores)
    clipped = np.clip(scores, edges[0], edges[-1])
    series = []
    for name, chosen, look in (("right", ~errors, RIGHT), ("wrong", errors, WRONG)):
        counts = np.histogram(clipped[chosen], edges)[0]
        shares = counts / max(1, counts.sum())
        series.append(Series(f"{name} ({int(chosen.sum()):,})", edges, shares, look))
    return Chart(title, Axis(label), Axis("share of predictions", 0), series, kind="histogram")


def bar_edges(scores: np.ndarray) -> np.ndarray:  # (BARS + 1,)
    """Even bars from the least to the 99.5th percentile; one unit wide where all are equal."""
    low, high = float(scores.min()), float(np.quantile(scores, 0.995))
    return np.linspace(low, high if high > low else low + 1.0, BARS + 1)


def _check_keys(charts: Mapping[tuple[str, ...], Chart], choices: Sequence[Choice]) -> None:
    possible = set(itertools.product(*(choice.options for choice in choices)))
    for key in charts:
        if key not in possible:
            raise QIPFInputError(f"The chart {key!r} cannot be chosen with the boxes given.")


def _view(chart: Chart) -> dict[str, Any]:
    """The chart as plain data; x that all series share stands there once."""
    xs = [_numbers(series.x) for series in chart.series]
    shared = xs[0] if xs and all(x == xs[0] for x in xs) else None
    return {
        "kind": chart.kind,
        "title": chart.title,
        "markers": chart.markers,
        "x": _axis(chart.x),
        "y": _axis(chart.y),
        "shared": shared,
        "series": [
            {"name": s.name, "y": _numbers(s.y)}
            | ({} if shared is not None else {"x": x})
            | ({"fixed": True} if s.fixed else {})
            for s, x in zip(chart.series, xs, strict=True)
        ],
        "marks": [
            {"x": mark.x, "label": mark.label, "strong": mark.strong} for mark in chart.marks
        ],
    }


def _axis(axis: Axis) -> dict[str, Any]:
    ticks = None if axis.ticks is None else _numbers(axis.ticks)
    return {
        "label": axis.label, "low": axis.low, "high": axis.high, "ticks": ticks, "log": axis.log,
    }  # fmt: skip


def _numbers(values: ArrayLike) -> list[float | None]:
    """Four digits are more than a page can show; what is not finite is a gap."""
    array = np.asarray(values, np.float64).ravel()
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in array]


def _look(look: Look) -> dict[str, Any]:
    return {
        "color": look.color, "dark": look.dark, "marker": look.marker,
        "dash": " ".join(f"{length:g}" for length in look.dash),
        "width": look.width, "hollow": look.hollow,
    }  # fmt: skip
