"""The report page of a user's own predictions, from a model or from saved logits."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from qipf._version import __version__
from qipf.calibration.mixin import CalibrationMixin
from qipf.display import counted
from qipf.errors import QIPFInputError, QIPFTypeError
from qipf.field.estimator import QIPF
from qipf.io.logits import open_table, read_table
from qipf.io.logits.columns import AUTO
from qipf.metrics.error_detection import HIGHER_IS_BETTER, TITLES, bootstrap
from qipf.plots.style import OWN, RIGHT, WRONG
from qipf.reporting.charts import (
    Charts,
    chart_spec,
    grouped_histogram,
    histogram_chart,
    risk_coverage_chart,
)
from qipf.reporting.own.study import (
    DEFAULT_RISK,
    FLAGGED,
    IN_PYTHON,
    METHODS,
    Study,
    require_width,
    study,
    study_of,
)
from qipf.reporting.page import Section, checked_page, page_html, render, write_page
from qipf.scoring.fitting import fit_table, labels_for, read_held_out
from qipf.storage.save_load import load_field_and_layer
from qipf.validation.scores import checked_share

#: Rows of the table of the most uncertain predictions.
MOST_UNCERTAIN = 25

#: Quantiles of the held-out predictions that test predictions are compared with.
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def write_own_report(
    train: Path | str | None,
    test: Path | str,
    output: Path | str,
    columns: str | None = None,
    labels: str | None = None,
    target: float | None = None,
    model: Path | str | None = None,
    calibrate: Path | str | None = None,
    train_labels: str | None = None,
    calibrate_labels: str | None = None,
) -> Study:
    """Write the page for logits in files (see `qipf.io.logits.open_table`).

    Parameters
    ----------
    train, test : logits of the training data, to which a default field is fitted as by `qipf fit`,
        and logits to score; with labels the page shows how well errors are found.
    model : file of a model, instead of `train`.
    calibrate : logits of held-out data, with which the test data is compared; by default the
        calibration set of the model, if it has one.
    output : the page, ending in .html.
    columns : which columns or arrays hold the logits, in all files.
    labels : which column or array holds the true classes, in all files; or an .npy file with those
        of the test data.
    train_labels, calibrate_labels : the same for these files, where it differs.
    target : limit on the error rate for the suggested threshold.
    """
    given = {
        "--train": train, "--train-labels": train_labels, "--model": model,
        "--calibrate": calibrate, "--calibrate-labels": calibrate_labels, "--test": test,
        "--labels": labels, "--columns": columns, "--risk": target, "-o": output,
    }  # fmt: skip
    words = [str(part) for pair in given.items() if pair[1] is not None for part in pair]
    output = checked_page(output)
    if target is not None:  # before the fit
        checked_share(target, "the limit on the error rate", example=DEFAULT_RISK)
    rows = read_table(test, columns, AUTO if labels is None else labels)
    if model is None:
        assert train is not None
        table = open_table(train, columns, labels_for(train_labels, labels))
        require_width(rows, table.dimension)
        field, path, dimension = QIPF(), table.path, table.dimension
    else:
        (field, layer), path = load_field_and_layer(model), str(model)
        if layer is not None:
            raise QIPFInputError(
                f"{model} was fitted on outputs of the layer {layer!r}; a report needs logits, "
                "which tell the predicted classes. Use qipf score."
            )
        dimension = field.n_features_in_
    held_out = None
    if calibrate is not None:
        truth = labels_for(calibrate_labels, labels)
        held_out = read_held_out(calibrate, path, dimension, columns, truth)
    if model is None:
        fit_table(field, table)
    if held_out is not None:
        field.calibrate(held_out.logits.astype(field.centers_.dtype), held_out.labels)
    found = study(field, rows, target)
    write_page(output, own_page(found, shlex.join(["qipf", "report", *words])))
    return found


def report(model: Any, data: Any, path: Path | str, *, max_risk: float | None = None) -> Study:
    """Write a page about the predictions of a fitted model: errors found, shift, a threshold.

    The page is one HTML file that needs no connection. It compares the model's uncertainty with
    scores of the softmax. If the model is calibrated, the page compares the data with the
    calibration set; if it has an accept rule, the page evaluates it.

    Parameters
    ----------
    model : a fitted `LayeredQIPF`, `FeatureQIPF`, `QIPF`, or what `wrap` returns.
    data : test data as `calibrate` takes it, with labels or without: a loader for models with a
        network, else a tuple such as ``(logits, labels)``.
    path : the page, ending in .html.
    max_risk : limit on the error rate for the suggested threshold; by default half of the error
        rate.

    Returns the scores and metrics on the page.

    >>> from tempfile import TemporaryDirectory
    >>> logits = np.random.default_rng(0).normal(size=(600, 3))
    >>> field = QIPF(bandwidth=1.0).fit(logits[:300]).calibrate(logits[300:400])
    >>> with TemporaryDirectory() as folder:
    ...     report(field, (logits[400:],), f"{folder}/page.html")
    Study(200 predictions)
    """
    if isinstance(data, (str, Path)):
        raise QIPFTypeError(
            f"data must be test data as calibrate() takes it, got the path {str(data)!r:.80}. The "
            "order is report(model, data, path)."
        )
    output = checked_page(path)
    if not isinstance(model, CalibrationMixin):
        raise QIPFInputError(
            f"report needs a fitted model of qipf, such as LayeredQIPF, got {type(model).__name__}."
        )
    if max_risk is not None:  # before the work
        checked_share(max_risk, "max_risk", example=DEFAULT_RISK)
    found = study_of(model, model._outcomes_of(data), max_risk, hints=IN_PYTHON)
    risk = "" if max_risk is None else f", max_risk={max_risk!r}"
    write_page(output, own_page(found, f"qipf.report(model, data, {str(path)!r}{risk})"))
    return found


def own_page(found: Study, command: str = "") -> str:
    """The page as HTML; `command` is the one that makes it."""

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
    shift, lead = [], counted(len(found.predicted), "test prediction")
    if found.reference is not None:
        pairs = {"uncertainty": (found.reference, found.uncertainty)}
        if found.novelty_reference is not None:
            pairs["novelty"] = (found.novelty_reference, found.novelty)
        charts: Charts = {
            (name,): grouped_histogram(
                {"held out": (held_out, RIGHT), "test": (tested, WRONG)},
                f"{name.capitalize()} of held-out and test predictions",
                f"{name} ({OWN})",
            )
            for name, (held_out, tested) in pairs.items()
        }
        compared = {"spec": chart_spec(charts, ["Score"]), "quantiles": QUANTILES}
        shift = [section("Held out and test", "comparison", **compared)]
        lead += f", compared with {len(found.reference):,} held-out ones"
    first = np.argsort(-found.scores[found.best], kind="stable")[:MOST_UNCERTAIN]
    ordered = sorted(METHODS, key=lambda name: name != found.best)
    threshold = []
    if found.suggests:
        threshold = [section("A threshold", "threshold", count=len(METHODS))]
    sections = [
        section("In short", "summary", flagged=FLAGGED, own=OWN),
        *errors,
        *shift,
        section(
            "Most uncertain predictions", "most_uncertain", rows=first, methods=ordered, own=OWN
        ),
        *threshold,
        section("How it was made", "origin", command=command, facts=_facts(found)),
    ]
    return page_html("Uncertainty of your predictions", sections, f"{lead}.")


def _facts(found: Study) -> dict[str, str]:
    held_out = "none given"
    if found.reference is not None:
        held_out = f"{len(found.reference):,} predictions that the model was not fitted on"
    return {"qipf": __version__, **found.model.facts(), "held out": held_out}
