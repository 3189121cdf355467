"""The sections of a page about a user's own predictions that show its numbers."""

from __future__ import annotations

import math

import numpy as np

from qipf.metrics.error_detection import HIGHER_IS_BETTER, bootstrap, evaluate
from qipf.report.charts import (
    Axis,
    Chart,
    Choice,
    Series,
    bar_edges,
    chart_html,
    histogram_chart,
    risk_coverage_chart,
)
from qipf.report.own.study import METHODS, PEERS, Study
from qipf.report.page import Value, paragraph, table_html
from qipf.report.style import RIGHT, WRONG
from qipf.report.table_formats import MISSING, TITLES

#: Predictions in the table of the most suspicious ones.
SUSPICIOUS = 25

#: Shares of the held-out training predictions that lie below the marks of the comparison.
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def detection(found: Study) -> dict[str, dict[str, float]]:
    """Every metric of every method, where right and wrong predictions are known."""
    if found.wrong is None or not found.detectable:
        return {}
    return {name: evaluate(found.scores[name], found.wrong) for name in METHODS}


def detection_html(found: Study) -> str:
    """The table of methods and metrics."""
    assert found.wrong is not None
    metrics = detection(found)
    rows: list[list[Value | str]] = []
    for name in METHODS:
        interval = bootstrap(found.scores[name], found.wrong, "roc_auc", draws=200)
        note = f"{interval.low:.3f} to {interval.high:.3f}"
        cells = [_metric(metrics, name, metric) for metric in HIGHER_IS_BETTER]
        cells[0] = Value(cells[0].text, cells[0].key, cells[0].best, note)
        rows.append([name, *cells])
    header = ["score", *(TITLES[metric] for metric in HIGHER_IS_BETTER)]
    about = (
        "Each score ranks the test predictions by doubt; a good one puts the wrong ones on top. "
        "softmax, entropy and energy are computed from the same logits and cost nothing: where "
        "they are ahead, use them. Under ROC-AUC stands its 95 % bootstrap interval."
    )
    higher = ", ".join(TITLES[name] for name, up in HIGHER_IS_BETTER.items() if up)
    lower = ", ".join(TITLES[name] for name, up in HIGHER_IS_BETTER.items() if not up)
    caption = f"How well each score finds the errors. Higher is better: {higher}; lower: {lower}."
    return paragraph(about) + table_html(header, rows, caption)


def _metric(metrics: dict[str, dict[str, float]], name: str, metric: str) -> Value:
    value = metrics[name][metric]
    if math.isnan(value):
        return Value(MISSING)
    others = [values[metric] for values in metrics.values()]
    best = max(others) if HIGHER_IS_BETTER[metric] else min(others)
    return Value(f"{value:.3f}", value, best=value == best)


def histograms_html(found: Study) -> str:
    """Scores of right and of wrong predictions, by method."""
    assert found.wrong is not None
    charts: dict[tuple[str, ...], Chart] = {
        (name,): histogram_chart(found.scores[name], found.wrong, name, label=name)
        for name in METHODS
    }
    medians = [
        float(np.median(found.scores["qipf"][chosen])) for chosen in (~found.wrong, found.wrong)
    ]
    alt = (
        f"Histograms of the scores of right and wrong predictions. By qipf, right ones have a "
        f"median uncertainty of {medians[0]:.3g}, wrong ones of {medians[1]:.3g}."
    )
    choices = [Choice("Score", {name: name for name in METHODS})]
    return chart_html(
        charts, alt=alt, caption="The last bar holds everything beyond it.", choices=choices
    )


def risk_html(found: Study) -> str:
    """Error rate against the share of predictions kept."""
    assert found.wrong is not None
    chart = risk_coverage_chart(found.scores, found.wrong)
    alt = (
        f"Error rate among the predictions kept, against the share kept, for {len(METHODS)} "
        f"scores; keeping all gives {found.wrong.mean():.1%}."
    )
    return chart_html(chart, alt=alt, caption="Lower is better: keep the least uncertain first.")


def comparison_html(found: Study) -> str:
    """Test predictions beside held-out training ones."""
    usual, scores = found.usual["qipf"], found.scores["qipf"]
    edges = bar_edges(np.concatenate([usual, scores]))
    series = []
    for name, values, look in (("training, held out", usual, RIGHT), ("test", scores, WRONG)):
        counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
        series.append(Series(f"{name} ({len(values):,})", edges, counts / len(values), look))
    chart = Chart(
        "Uncertainty of training and test predictions",
        Axis("uncertainty (qipf)"),
        Axis("share of predictions", 0),
        series,
        kind="histogram",
    )
    alt = (
        f"Histograms of uncertainty: held-out training predictions have a median of "
        f"{np.median(usual):.3g}, test predictions of {np.median(scores):.3g}."
    )
    rows = []
    for share in QUANTILES:
        mark = float(np.quantile(usual, share))
        above = float((scores > mark).mean())
        rows.append(
            [
                Value(f"{1 - share:.1%}", 1 - share),
                Value(f"{mark:.4g}", mark),
                Value(f"{above:.1%}", above),
            ]
        )
    table = table_html(
        ["of training above", "uncertainty", "of test above"],
        rows,
        "Test predictions beyond the marks of held-out training predictions.",
    )
    about = (
        "If the test data is like the training data, the last column repeats the first. Larger "
        "shares mean that the model sees what it was not trained on."
    )
    return paragraph(about) + chart_html(chart, alt=alt) + table


def suspicious_html(found: Study) -> str:
    """The most uncertain predictions."""
    scores = found.scores["qipf"]
    usual = np.sort(found.usual["qipf"])
    header = ["row", "uncertainty", "of training below", "predicted"]
    header += ["label"] if found.labels is not None else []
    rows = []
    for row in np.argsort(-scores, kind="stable")[:SUSPICIOUS]:
        below = float(np.searchsorted(usual, scores[row]) / len(usual))
        cells = [
            Value(str(row), float(row)),
            Value(f"{scores[row]:.4g}", float(scores[row])),
            Value(f"{below:.1%}", below),
            Value(str(found.predicted[row]), float(found.predicted[row])),
        ]
        if found.labels is not None:
            wrong = found.labels[row] != found.predicted[row]
            label = float(found.labels[row])
            cells.append(Value(str(found.labels[row]), label, note="wrong" if wrong else ""))
        for name in PEERS:
            value = float(found.scores[name][row])
            cells.append(Value(f"{value:.4g}", value))
        rows.append(cells)
    about = "Look at these first. Rows are counted from 0, as they stand in the file."
    return paragraph(about) + table_html(
        [*header, *PEERS], rows, f"The {len(rows)} most uncertain test predictions."
    )
