"""Charts of a page as data; the page's own script draws them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from qipf.metrics.error_detection import ranked
from qipf.plots.risk_coverage import best_possible
from qipf.plots.style import BEST, CHANCE, RIGHT, WRONG, Look, look_of

#: Points of a risk-coverage curve.
CURVE_POINTS = 50

#: Bars of a histogram.
BARS = 30


@dataclass(frozen=True)
class Axis:
    """An axis; its ends and ticks come from the data where they are None."""

    label: str
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None
    log: bool = False


@dataclass(frozen=True)
class Series:
    """Named points; NaN leaves a gap. Without `look` it is drawn as the method of that name.

    A `fixed` series is always shown and cannot be switched off.
    """

    name: str
    x: ArrayLike
    y: ArrayLike
    look: Look | None = None
    fixed: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line with a label."""

    x: float
    label: str
    strong: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines, named points, or a histogram (x: the edges of the bars).

    Lines are clipped at the ends of y.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    kind: Literal["lines", "points", "histogram"] = "lines"
    markers: bool = True
    marks: Sequence[Mark] = ()


#: Charts by key, with one part of the key for each selection box.
Charts = dict[tuple[str, ...], Chart]


def chart_spec(
    chart: Chart | Charts,
    labels: Sequence[str] = (),
    *,
    texts: Mapping[str, str] | None = None,
    shown: Sequence[str] | None = None,
    presets: Mapping[str, Sequence[str]] | None = None,
    print_all: bool = False,
) -> dict[str, Any]:
    """A chart, or several of which selection boxes show one, as data for the page's script.

    Parameters
    ----------
    chart : one chart, or several by key.
    labels : labels of the selection boxes.
    texts : text of an option by its part of the key, where they differ.
    shown : names of the series that are visible at first; all if None. With more than one series
        the reader can switch each on and off.
    presets : buttons that show a set of series, by their text.
    print_all : print every chart, not only those of the last box's choice.
    """
    charts: Charts = {(): chart} if isinstance(chart, Chart) else chart
    every = [series for each in charts.values() for series in each.series]
    names = list(dict.fromkeys(series.name for series in every if not series.fixed))
    return {
        "choices": [
            {"label": label, "options": list(options.items())}
            for label, options in choices(charts, labels, texts or {}).items()
        ],
        "views": {"|".join(key): _view(each) for key, each in charts.items()},
        "looks": {s.name: asdict(s.look or look_of(s.name)) for s in every},
        "names": names,
        "shown": [name for name in names if shown is None or name in shown],
        "presets": [
            [label, [name for name in names if name in group]]
            for label, group in (presets or {}).items()
        ],
        "printAll": print_all,
    }


def choices(
    items: Iterable[tuple[str, ...]], labels: Sequence[str], texts: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Options of each selection box: the parts of the keys at its place, with their texts."""
    columns = zip(*items, strict=True)
    return {
        label: {part: texts.get(part, part) for part in column}
        for label, column in zip(labels, columns, strict=True)
    }


def risk_coverage_chart(
    uncertainty: Mapping[str, ArrayLike],  # method -> (n,)
    wrong: ArrayLike,  # (n,)
    title: str = "Risk and coverage",
) -> Chart:
    r"""Risk-coverage curves: error rate among the predictions kept against the share kept.

    At coverage c the least uncertain :math:`\lceil cn \rceil` predictions are kept. Ties are
    broken at random; the expected error rate is drawn.

    >>> chart = risk_coverage_chart({"qipf": [0.1, 0.2, 0.9, 0.8]}, [0, 0, 1, 0])
    >>> [float(y) for y in np.asarray(chart.series[0].y)[[24, -1]]]  # half kept; all kept
    [0.0, 0.25]
    """
    coverage = np.arange(1, CURVE_POINTS + 1) / CURVE_POINTS
    series = []
    for name, scores in uncertainty.items():
        risk = ranked(scores, wrong).expected_risk
        kept = np.ceil(coverage * len(risk) - 1e-9).astype(int)
        series.append(Series(name, coverage, risk[kept - 1]))
    rate = float(np.mean(np.asarray(wrong, np.float64)))
    perfect = best_possible(coverage, rate)
    series.append(Series("chance", coverage, np.full(CURVE_POINTS, rate), CHANCE, fixed=True))
    series.append(Series("best possible", coverage, perfect, BEST, fixed=True))
    x = Axis("coverage: share of predictions kept", 0, 1)
    return Chart(title, x, Axis("error rate among them", 0), series, markers=False)


def histogram_chart(
    uncertainty: ArrayLike,  # (n,)
    wrong: ArrayLike,  # (n,)
    title: str,
    label: str = "uncertainty",
) -> Chart:
    """Histograms of the uncertainty of right and of wrong predictions (see `grouped_histogram`)."""
    scores, errors = np.asarray(uncertainty, np.float64), np.asarray(wrong).astype(bool)
    groups = {"right": (scores[~errors], RIGHT), "wrong": (scores[errors], WRONG)}
    return grouped_histogram(groups, title, label)


def grouped_histogram(
    groups: Mapping[str, tuple[np.ndarray, Look]],  # name -> scores (n,) and look
    title: str,
    label: str,
) -> Chart:
    """Histograms of several groups of scores over the same bars, as shares of each group.

    Bars span the range up to the 99.5th percentile of all scores; higher scores count in the last
    bar. Where all scores are equal the range is one unit wide.
    """
    together = np.concatenate([scores for scores, _ in groups.values()])
    low, high = float(together.min()), float(np.quantile(together, 0.995))
    edges = np.linspace(low, high if high > low else low + 1.0, BARS + 1)
    series = []
    for name, (scores, look) in groups.items():
        counts = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0]
        shares = counts / max(1, len(scores))
        series.append(Series(f"{name} ({len(scores):,})", edges, shares, look))
    return Chart(title, Axis(label), Axis("share of predictions", 0), series, kind="histogram")


def _view(chart: Chart) -> dict[str, Any]:
    """The chart as plain data; x is stored once if all series share it."""
    xs = [_numbers(series.x) for series in chart.series]
    shared = xs[0] if xs and all(x == xs[0] for x in xs) else None
    return {
        "kind": chart.kind,
        "title": chart.title,
        "markers": chart.markers,
        "x": asdict(chart.x),
        "y": asdict(chart.y),
        "shared": shared,
        "series": [
            {"name": s.name, "y": _numbers(s.y)}
            | ({} if shared is not None else {"x": x})
            | ({"fixed": True} if s.fixed else {})
            for s, x in zip(chart.series, xs, strict=True)
        ],
        "marks": [asdict(mark) for mark in chart.marks],
    }


def _numbers(values: ArrayLike) -> list[float | None]:
    """Numbers rounded to four digits, None where they are not finite."""
    array = np.asarray(values, np.float64).ravel()
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in array]
