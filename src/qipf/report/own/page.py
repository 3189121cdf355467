"""The page for a user's own model: what its saved logits tell about each prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qipf._version import __version__
from qipf.io.logits import read_table
from qipf.report.own.sections import (
    comparison_html,
    detection,
    detection_html,
    histograms_html,
    risk_html,
    suspicious_html,
)
from qipf.report.own.study import FLAGGED, Study, study
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
from qipf.report.rule_words import SHIFT, grounds, promise, share, why_nothing
from qipf.report.run.decisions import Trial


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
    train, test : logits the model gives its training data, and those to judge; with labels the
        page tells how well errors are found.
    output : the page, ending in .html.
    columns, labels : which columns or arrays to take, in both files.
    target : the error rate that the suggested threshold must keep to.
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
    limit, trial = found.threshold, found.trial
    if trial is None:
        assert limit is not None
        return f"Suggested: look at predictions with an uncertainty above {limit.value:.4g}."
    rule = trial.rule
    if not rule.certified:
        assert rule.max_risk is not None
        return (
            "No threshold is suggested: none can be certified to keep the error rate among "
            f"accepted predictions at {share(rule.max_risk)} or less."
        )
    done = f"it accepts {share(trial.coverage)}"
    if trial.accepted:
        done += f", of which {share(trial.risk)} are wrong"
    return (
        f"Suggested: {promise(rule)} Of {trial.count:,} predictions it was not made from, {done}."
    )


def _threshold(found: Study) -> str:
    trial = found.trial
    rests_on = _unlabelled(found) if trial is None else _certified(found, trial)
    return paragraph(_suggestion(found)) + bullets(rests_on)


def _certified(found: Study, trial: Trial) -> list[str]:
    """What a certified threshold rests on; or what one would take."""
    rule, limit = trial.rule, found.threshold
    fixed = (
        "The limit was fixed without a look at the held-out predictions (--risk; if not given, "
        "half of the error rate of the other test predictions)."
    )
    if limit is None:
        return [
            f"The test predictions were halved at random. {why_nothing(rule)}",
            "Until a rule can be made, let somebody look at every prediction that matters; the "
            "most suspicious stand above.",
            "A rule takes more labelled predictions, a higher limit (--risk), or a model that errs "
            f"less where it is sure. {fixed}",
        ]
    lines = [f"The test predictions were halved at random. {grounds(rule)}"]
    if limit.risk is not None:
        risk, low, high = limit.risk
        tried = (
            f"Tried on the other half: of {trial.count:,} predictions {trial.accepted:,} are "
            f"accepted, of which {trial.errors:,} are wrong: {risk:.2%}, 95 % interval {low:.2%} "
            f"to {high:.2%}."
        )
        if not limit.holds:
            tried += (
                " That is above the limit. The guarantee fails for one held-out half in "
                f"{1 / (1 - rule.confidence):.0f} at most; this may be one. Collect more labels."
            )
        lines.append(tried)
    return [*lines, fixed, SHIFT, "It also rests on the labels: they must be right."]


def _unlabelled(found: Study) -> list[str]:
    limit = found.threshold
    assert limit is not None
    return [
        f"It is the uncertainty that {1 - limit.target:.0%} of {limit.chosen_on:,} held-out "
        "training predictions do not exceed.",
        f"Of {limit.checked_on:,} test predictions, {limit.checked_on - limit.kept:,} lie above "
        "it.",
        "No errors are known here, so it says what is unusual, not what is wrong: with labels, a "
        "threshold with a guarantee on the error rate could be made.",
    ]


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
