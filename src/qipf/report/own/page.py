"""The report page of a user's own predictions, from saved logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from qipf._version import __version__
from qipf.io.logits import read_table
from qipf.metrics.error_detection import HIGHER_IS_BETTER, bootstrap
from qipf.report.charts import (
    Charts,
    chart_spec,
    grouped_histogram,
    histogram_chart,
    risk_coverage_chart,
)
from qipf.report.own.study import FLAGGED, METHODS, PEERS, Study, study
from qipf.report.page import Section, checked_page, page_html, render, write_page
from qipf.report.style import RIGHT, WRONG
from qipf.report.tables import TITLES

#: Rows of the table of the most uncertain predictions.
MOST_UNCERTAIN = 25

#: Quantiles of the held-out training predictions that test predictions are compared with.
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def write_own_report(
    train: Path | str,
    test: Path | str,
    output: Path | str,
    columns: str | None = None,
    labels: str | None = "auto",
    target: float | None = None,
) -> Study:
    """Write the page for logits in two files (see `qipf.io.logits.open_table`).

    Parameters
    ----------
    train, test : logits of the training data, and logits to score; with labels the page shows how
        well errors are found.
    output : the page, ending in .html.
    columns, labels : which columns or arrays to read, in both files.
    target : limit on the error rate for the suggested threshold.
    """
    output = checked_page(output)
    inside, outside = read_table(train, columns, labels), read_table(test, columns, labels)
    found = study(inside, outside, target)
    write_page(output, own_page(found, Path(train).name, Path(test).name))
    return found


def own_page(found: Study, train: str = "train.npz", test: str = "test.npz") -> str:
    """The page as HTML; `train` and `test` are the names of the two files."""
    origin = render("own.html", "origin", found=found, train=train, test=test, version=__version__)
    sections = [
        Section("In short", _summary(found)),
        *_error_sections(found),
        Section("Training and test", _comparison(found)),
        Section("Most uncertain predictions", _most_uncertain(found)),
        Section("A threshold", render("own.html", "threshold", found=found)),
        Section("How it was made", origin),
    ]
    lead = f"{len(found.predicted):,} predictions of {test}, compared with those of {train}."
    return page_html("Uncertainty of your predictions", sections, lead)


def _summary(found: Study) -> Markup:
    aucs = {name: values["roc_auc"] for name, values in found.metrics.items()}
    return render(
        "own.html",
        "summary",
        found=found,
        aucs=aucs,
        best=max(aucs, key=lambda name: aucs[name], default=None),
        flagged=FLAGGED,
        above=(found.scores["qipf"] > np.quantile(found.reference["qipf"], 1 - FLAGGED)).mean(),
    )


def _error_sections(found: Study) -> list[Section]:
    """Sections about errors; none unless there are right and wrong predictions."""
    if not found.metrics:
        return []
    wrong = np.asarray(found.wrong)
    detection = render(
        "own.html",
        "detection",
        metrics=found.metrics,
        best={
            metric: (max if up else min)(values[metric] for values in found.metrics.values())
            for metric, up in HIGHER_IS_BETTER.items()
        },
        intervals={
            name: bootstrap(found.scores[name], wrong, "roc_auc", draws=200) for name in METHODS
        },
        titles=TITLES,
        higher=HIGHER_IS_BETTER,
    )
    charts: Charts = {
        (name,): histogram_chart(found.scores[name], wrong, name, label=name) for name in METHODS
    }
    medians = [float(np.median(found.scores["qipf"][chosen])) for chosen in (~wrong, wrong)]
    spec = chart_spec(charts, ["Score"])
    histograms = render("own.html", "histograms", spec=spec, medians=medians)
    spec = chart_spec(risk_coverage_chart(found.scores, wrong))
    risk = render("own.html", "risk", spec=spec, scores=len(METHODS), error_rate=wrong.mean())
    return [
        Section("Finding errors", detection),
        Section("Right and wrong predictions", histograms),
        Section("Risk and coverage", risk),
    ]


def _comparison(found: Study) -> Markup:
    """Test predictions beside held-out training predictions."""
    reference, scores = found.reference["qipf"], found.scores["qipf"]
    chart = grouped_histogram(
        {"training, held out": (reference, RIGHT), "test": (scores, WRONG)},
        "Uncertainty of training and test predictions",
        "uncertainty (qipf)",
    )
    marks = np.quantile(reference, QUANTILES)
    above = [(scores > mark).mean() for mark in marks]
    return render(
        "own.html",
        "comparison",
        spec=chart_spec(chart),
        medians=[float(np.median(values)) for values in (reference, scores)],
        rows=list(zip([1 - share for share in QUANTILES], marks, above, strict=True)),
    )


def _most_uncertain(found: Study) -> Markup:
    scores, reference = found.scores["qipf"], found.reference["qipf"]
    rows = np.argsort(-scores, kind="stable")[:MOST_UNCERTAIN]
    below = {row: float((reference < scores[row]).mean()) for row in rows}
    return render("own.html", "most_uncertain", found=found, below=below, peers=PEERS)
