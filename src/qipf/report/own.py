"""The page for a user's own model: what its saved logits tell about each prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qipf import __version__
from qipf.report.own_sections import (
    comparison_html,
    detection,
    detection_html,
    histograms_html,
    risk_html,
    suspicious_html,
)
from qipf.report.own_study import FLAGGED, Study, study
from qipf.report.page import (
    Section,
    bullets,
    checked_page,
    code,
    facts,
    page_html,
    paragraph,
    write_page,
)
from qipf.tables import read_table


def write_own_report(
    train: Path | str,
    test: Path | str,
    output: Path | str,
    columns: str | None = None,
    labels: str | None = "auto",
    target: float | None = None,
) -> Study:
    """Write the page for logits in two files (see `qipf.tables.open_table`).

    Parameters
    ----------
    train, test : logits the model gives its training data, and those to judge; with labels the
        page tells how well errors are found.
    output : the page, ending in .html.
    columns, labels : which columns or arrays to take, in both files.
    target : the error rate the suggested threshold should keep to.
    """
    output = checked_page(output)
    inside, outside = read_table(train, columns, labels), read_table(test, columns, labels)
    found = study(inside, outside, target)
    write_page(output, own_page(found, Path(train).name, Path(test).name))
    return found


def own_page(found: Study, train: str = "train.npz", test: str = "test.npz") -> str:
    """The page as HTML; `train` and `test` are what it calls the two files."""
    sections = [Section("In short", bullets(_summary(found)))]
    if found.detectable:
        sections += [
            Section("Finding errors", detection_html(found)),
            Section("Right and wrong predictions", histograms_html(found)),
            Section("Risk and coverage", risk_html(found)),
        ]
    sections += [
        Section("Training and test", comparison_html(found)),
        Section("Most suspicious predictions", suspicious_html(found)),
        Section("A threshold", _threshold(found)),
        Section("How it was made", _origin(found, train, test)),
    ]
    lead = f"{len(found.predicted):,} predictions of {test}, judged by those of {train}."
    return page_html("How far to trust these predictions", sections, lead)


def _summary(found: Study) -> list[str]:
    usual, scores = found.usual["qipf"], found.scores["qipf"]
    lines = []
    if found.wrong is not None:
        errors, count = int(found.wrong.sum()), len(found.wrong)
        lines.append(
            f"The model is right in {1 - errors / count:.1%} of {count:,} test predictions; "
            f"{errors:,} are wrong."
        )
    metrics = detection(found)
    if metrics:
        aucs = {name: values["roc_auc"] for name, values in metrics.items()}
        best = max(aucs, key=aucs.__getitem__)
        ahead = "no other score does better" if best == "qipf" else f"{best} does better here"
        lines.append(
            f"A wrong prediction is more uncertain than a right one with probability "
            f"{aucs['qipf']:.3f} (ROC-AUC of qipf; chance is 0.5); {ahead}"
            + ("." if best == "qipf" else f": {aucs[best]:.3f}.")
        )
    elif found.wrong is not None:
        lines.append("There are no right and wrong predictions to be told apart.")
    else:
        lines.append(
            "There are no labels, so nothing is said about errors: the page compares the test "
            "predictions with those of the training data."
        )
    mark = float(np.quantile(usual, 1 - FLAGGED))
    lines.append(
        f"{(scores > mark).mean():.1%} of the test predictions are more uncertain than "
        f"{1 - FLAGGED:.0%} of held-out training predictions; {FLAGGED:.0%} would be usual."
    )
    lines.append(_suggestion(found))
    return lines


def _suggestion(found: Study) -> str:
    limit = found.threshold
    if limit is None:
        return "No threshold is suggested: none keeps enough predictions at the error rate wanted."
    if limit.risk is None:
        return f"Suggested: look at predictions with an uncertainty above {limit.value:.4g}."
    if not limit.holds:
        return (
            f"No threshold is suggested: the one that keeps to an error rate of {limit.target:.2%} "
            f"on half of the test predictions ({limit.value:.4g}) gives {limit.risk[0]:.2%} on the "
            "other half."
        )
    return (
        f"Suggested: trust predictions up to an uncertainty of {limit.value:.4g}. On test "
        f"predictions it was not chosen on, it keeps {limit.kept / limit.checked_on:.1%} with an "
        f"error rate of {limit.risk[0]:.2%} (wanted: at most {limit.target:.2%})."
    )


def _threshold(found: Study) -> str:
    limit = found.threshold
    parts = [paragraph(_suggestion(found))]
    if limit is None:
        return parts[0]
    if limit.risk is not None:
        share, low, high = limit.risk
        rests_on = [
            f"Wanted: an error rate of at most {limit.target:.2%} among what is kept.",
            f"Chosen on a random half of the test predictions ({limit.chosen_on:,}): the highest "
            "uncertainty up to which that holds there.",
            f"Tried on the other half ({limit.checked_on:,}): {limit.kept:,} kept, of which "
            f"{limit.errors:,} are wrong: {share:.2%}, 95 % interval {low:.2%} to {high:.2%}.",
            "It holds for data like this test data and for labels as right as these. It is no "
            "guarantee: when the data drifts, choose again.",
        ]
    else:
        rests_on = [
            f"It is the uncertainty that {1 - limit.target:.0%} of {limit.chosen_on:,} held-out "
            "training predictions do not exceed.",
            f"Of {limit.checked_on:,} test predictions, {limit.checked_on - limit.kept:,} lie "
            "above it.",
            "No errors are known here, so it says what is unusual, not what is wrong.",
        ]
    return "".join(parts) + bullets(rests_on)


def _origin(found: Study, train: str, test: str) -> str:
    field = found.field
    held = len(found.usual["qipf"])
    made = {
        "qipf": __version__,
        "field": f"{len(field.centers_):,} centres for {field.n_samples_seen_:,} training "
        f"predictions of {field.n_features_in_} logits",
        "held-out": f"{held:,} training predictions that are not in the field",
        "bandwidth": f"{field.bandwidth_:.4g} ({field.bandwidth_criterion_})",
        "seed": str(field.random_state),
    }
    return facts(made) + code(f"qipf report --train {train} --test {test} -o mine.html")
