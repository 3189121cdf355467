"""The report page of a user's own predictions, from saved logits."""

from pathlib import Path
from typing import Any

import numpy as np

from qipf._version import __version__
from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.logits import Block, read_table
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
from qipf.storage.save_load import load_field

#: Rows of the table of the most uncertain predictions.
MOST_UNCERTAIN = 25

#: Quantiles of the held-out predictions that test predictions are compared with.
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def write_own_report(
    train: Path | str | None,
    test: Path | str,
    output: Path | str,
    columns: str | None = None,
    labels: str | None = "auto",
    target: float | None = None,
    model: Path | str | None = None,
) -> Study:
    """Write the page for logits in two files (see `qipf.io.logits.open_table`).

    Parameters
    ----------
    train, test : logits of the training data, and logits to score; with labels the page shows how
        well errors are found.
    model : file of a calibrated model, instead of `train`.
    output : the page, ending in .html.
    columns, labels : which columns or arrays to read, in both files.
    target : limit on the error rate for the suggested threshold.
    """
    output = checked_page(output)
    if model is None:
        assert train is not None
        fitted: Block | QIPF = read_table(train, columns, labels)
        options = f"--train {Path(train).name} --test {Path(test).name}"
    else:
        fitted = load_field(model)
        if fitted.calibration_ is None:
            raise QIPFInputError(
                f"{model} is not calibrated, so there is nothing to compare predictions with. Fit "
                "it with --calibrate, or give training logits with --train."
            )
        options = f"--model {Path(model).name} --test {Path(test).name}"
    found = study(fitted, read_table(test, columns, labels), target)
    write_page(output, own_page(found, options))
    return found


def own_page(found: Study, options: str = "--train train.npz --test test.npz") -> str:
    """The page as HTML; `options` are those of `qipf report` that make it."""

    def section(heading: str, macro: str, **content: Any) -> Section:
        return Section(heading, render("own.html", macro, found=found, **content))

    errors = []
    if found.metrics and found.wrong is not None:  # there are right and wrong predictions
        scores, wrong = found.scores, found.wrong
        intervals = {name: bootstrap(scores[name], wrong, "roc_auc", draws=200) for name in METHODS}
        histograms: Charts = {
            (name,): histogram_chart(scores[name], wrong, name, label=name) for name in METHODS
        }
        curves = chart_spec(risk_coverage_chart(scores, wrong))
        better = {"titles": TITLES, "higher": HIGHER_IS_BETTER}
        errors = [
            section("Finding errors", "detection", intervals=intervals, **better),
            section(
                "Right and wrong predictions", "histograms", spec=chart_spec(histograms, ["Score"])
            ),
            section("Risk and coverage", "risk", spec=curves),
        ]
    compared = grouped_histogram(
        {"held out": (found.reference, RIGHT), "test": (found.scores["qipf"], WRONG)},
        "Uncertainty of held-out and test predictions",
        "uncertainty (qipf)",
    )
    first = np.argsort(-found.scores["qipf"], kind="stable")[:MOST_UNCERTAIN]
    sections = [
        section("In short", "summary", flagged=FLAGGED),
        *errors,
        section("Held out and test", "comparison", spec=chart_spec(compared), quantiles=QUANTILES),
        section("Most uncertain predictions", "most_uncertain", rows=first, peers=PEERS),
        section("A threshold", "threshold"),
        section("How it was made", "origin", options=options, version=__version__),
    ]
    lead = (
        f"{len(found.predicted):,} test predictions, compared with {len(found.reference):,} "
        "held-out ones."
    )
    return page_html("Uncertainty of your predictions", sections, lead)
