"""Sections of a run's page about decisions: accept rules, shift alarms, accuracy estimates."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup
from numpy.typing import NDArray

from qipf.bench.suites import CLEAN
from qipf.calibration.rule import AcceptRule
from qipf.reporting.charts import Charts, chart_spec
from qipf.reporting.page import render
from qipf.reporting.rule_evaluation import (
    RuleEvaluation,
    evaluate_rule,
    random_halves,
    split_evaluation,
)
from qipf.reporting.run.charts import MOST_EVIDENCE, accuracy_chart, timeline_chart
from qipf.reporting.run.decisions import (
    DECIDING,
    ESTIMATED,
    RISKS,
    WATCHED,
    AccuracyComparison,
    Timeline,
    accuracy_comparisons,
    first_kept,
    monitor_stream,
)
from qipf.reporting.run.results import Run, Scores, by_severity, condition_text, level_text

#: Estimators of the accuracy that take any score; "log_odds" takes log-odds of errors alone.
ESTIMATORS = ("threshold", "isotonic")

#: Fewer clean test predictions than this are not split.
FEWEST = 20

Column = tuple[tuple[bool, int, int], ...]  # certified, accepted, errors of each score
Timelines = dict[tuple[str, ...], Timeline]  # by network and corruption
Comparisons = dict[tuple[str, str], list[AccuracyComparison]]  # by network and estimator


def clean_of(run: Run, network: str) -> tuple[Scores, NDArray] | None:
    """A network's clean scores and errors, if there are enough to split."""
    clean = run.clean_scores(network)
    return clean if clean and len(clean[1]) >= FEWEST else None


def rules_html(run: Run) -> Markup:
    """Certified thresholds from half of the clean images, and their results on the other half."""
    views = {
        (network,): _rules_view(run, network, *clean)
        for network in run.networks
        if (clean := clean_of(run, network)) is not None
    }
    return render("run.html", "rules", found=views, risks=RISKS, seed_note=run.seed_note)


def _rules_view(run: Run, network: str, scores: Scores, wrong: NDArray) -> dict[str, Any]:
    found = {
        name: [split_evaluation(scores[name], wrong, risk) for risk in RISKS]
        for name in run.methods
        if name in scores
    }
    deciding = first_kept(DECIDING, found)
    own = found[deciding] if deciding else []
    certified = {each.rule.max_risk: each.rule for each in own if each.rule.certified}
    chosen = certified.get(RISKS[1], next(iter(certified.values()), None))
    columns: dict[Column, list[float]] = {}  # limits with the same results are one column
    for risk, column in zip(RISKS, zip(*found.values(), strict=True), strict=True):
        if any(each.rule.certified for each in column):
            counts = tuple((each.rule.certified, each.accepted, each.errors) for each in column)
            columns.setdefault(counts, []).append(risk)
    limits = list(columns.values())
    useful = {risk for risks in limits for risk in risks}
    failed = [
        (each.rule, each.rule.max_risk not in useful)  # whether that holds for every score
        for each in own or next(iter(found.values()))
        if not each.rule.certified and (own or each.rule.max_risk not in useful)
    ]
    shown = {
        name: [each for each in evaluations if each.rule.max_risk in {r[0] for r in limits}]
        for name, evaluations in found.items()
    }
    return {
        "own": own,
        "deciding": deciding,
        "failed": failed,
        "limits": limits,
        "evaluations": shown,
        "most": [
            f"{max(each.coverage for each in column):.1%}"
            for column in zip(*shown.values(), strict=True)
        ],
        "rule": chosen,
        "worst": chosen and deciding and _worst_condition(run, network, chosen, deciding),
    }


def _worst_condition(
    run: Run, network: str, rule: AcceptRule, method: str
) -> tuple[RuleEvaluation, str] | None:
    """The results of a rule at the level with the highest error rate."""
    found = [
        (evaluate_rule(rule, scores[method][other], wrong[other]), condition_text(name, level))
        for name in run.corruptions(network)
        for level, (scores, wrong) in run.scores(network, name).items()
        if method in scores
        for _, other in [random_halves(len(wrong))]
    ]
    accepted = [each for each in found if each[0].accepted]
    return max(accepted, key=lambda each: each[0].risk, default=None)


def timelines(run: Run) -> Timelines:
    """A monitor's evidence along the streams of each network and corruption."""
    lines: Timelines = {}
    for network in run.networks:
        clean = clean_of(run, network)
        name = clean and first_kept(WATCHED, clean[0])
        for corruption in run.corruptions(network) if name else ():
            kept = run.scores(network, corruption)
            levels = [k for k in by_severity(corruption, kept) if name in kept[k][0]]
            if clean and name and levels:
                corrupted = {level: kept[level][0][name] for level in levels}
                stream = monitor_stream(clean[0][name], corrupted, score=name)
                lines[network, corruption] = stream
    return lines


def timeline_html(run: Run, lines: Timelines | None = None) -> Markup:
    """Evidence of a shift along streams that start clean and are then corrupted."""
    lines = timelines(run) if lines is None else lines
    if not lines:
        return render("run.html", "timeline", spec=None)
    charts: Charts = {
        key: timeline_chart(", ".join(key), key[1], line) for key, line in lines.items()
    }
    return render(
        "run.html",
        "timeline",
        spec=chart_spec(charts, ("Network", "Corruption"), print_all=True),
        lines=lines,
        level_text=level_text,
        alpha=next(iter(lines.values())).alpha,
        most_evidence=MOST_EVIDENCE,
        seed_note=run.seed_note,
    )


def accuracy_html(run: Run) -> Markup:
    """Estimated against true accuracy, by corruption and level."""
    found: Comparisons = {
        (network, estimator): list(accuracy_comparisons(run, network, estimator))
        for network in run.networks
        if clean_of(run, network) is not None
        for estimator in ESTIMATORS
    }
    charts: Charts = {
        (network, corruption, estimator): accuracy_chart(network, corruption, own)
        for (network, estimator), own in found.items()
        for corruption in dict.fromkeys(c.corruption for c in own if c.corruption != CLEAN)
    }
    shifted = {key: [c for c in own if c.corruption != CLEAN] for key, own in found.items()}
    first = [(n, c) for (n, way), own in shifted.items() if way == ESTIMATORS[0] for c in own]
    names = [name for name in ESTIMATED if any(name in c.estimates for _, c in first)]
    if not names:
        return render("run.html", "accuracy", spec=None)
    networks = list(dict.fromkeys(network for network, _ in found))
    return render(
        "run.html",
        "accuracy",
        spec=chart_spec(charts, ("Network", "Corruption", "Estimator")),
        levels=len(first),
        columns=[(name, estimator) for estimator in ESTIMATORS for name in names],
        rows={network: _errors(shifted, [network], names) for network in networks},
        total=_errors(shifted, networks, names),
        worst=max(
            (each for each in first if names[0] in each[1].estimates),
            key=lambda each: each[1].error(names[0]),
        ),
        condition_text=condition_text,
        seed_note=run.seed_note,
    )


def _errors(
    shifted: Comparisons, networks: Sequence[str], names: Sequence[str]
) -> dict[tuple[str, str] | None, tuple[float, str]]:
    """Mean absolute errors by score and estimator (None: of the clean accuracy), with a note."""
    errors: dict[tuple[str, str] | None, tuple[float, str]] = {}
    for estimator in ESTIMATORS:
        own = [c for network in networks for c in shifted[network, estimator]]
        errors[None] = fmean(c.error(None) for c in own) if own else math.nan, ""
        for name in names:
            known = [c for c in own if name in c.estimates]
            held = sum(c.estimates[name].low <= c.truth <= c.estimates[name].high for c in known)
            note = f"holds in {held} of {len(known)}" if known else ""
            error = fmean(c.error(name) for c in known) if known else math.nan
            errors[name, estimator] = error, note
    return errors
