"""How good the decisions are: on the scores that a run of the paper suite kept.

    python benchmarks/decisions.py runs/paper

Accept rules: half of the clean test predictions, drawn at random, certify a threshold; the other
half shows how many predictions it accepts and how many of these are wrong. Repeated over random
halvings of each seed's test predictions. That half is a sample itself, so its error rate may lie
above the limit although the promise is kept. Hence a second check: the whole clean test set is
taken for the population, as many predictions as in a half are drawn from it with replacement, and
the rule made from these is judged by its exact error rate in that population. Writes
results/decisions.csv.

Accuracy without labels: one half of the clean test predictions calibrates the estimator, which is
then asked about the other half's images at every level of every corruption. Writes
results/decisions-accuracy.csv. "unchanged" assumes the accuracy of the clean half. Levels count as
mild where the true accuracy lies less than 0.1 below that, and as heavy where it lies 0.3 below it
or more.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.calibration.accept_rule import accept_rule
from qipf.calibration.accuracy import METHODS as ESTIMATORS
from qipf.progress import progress
from qipf.reporting.rule_evaluation import RuleEvaluation, evaluate_rule, split_evaluation
from qipf.reporting.run.decisions import ESTIMATED, RISKS, AccuracyComparison, accuracy_comparisons
from qipf.reporting.run.results import Run

SCORES = ("qipf", "softmax", "entropy")

#: Losses of accuracy below which a level is mild, and from which on it is heavy.
MILD, HEAVY = 0.1, 0.3

Row = dict[str, Any]


def rule_rows(run: Run, halvings: int) -> Iterator[Row]:
    """A line for each network, score and limit."""
    cells = [(network, name) for network in run.networks for name in SCORES]
    for network, name in progress(cells, "halving"):
        kept = [run.scores(network, CLEAN, seed)[CLEAN_LEVEL] for seed in run.seeds]
        for risk in RISKS:
            trials = [
                split_evaluation(scores[name], wrong, risk, seed=halving)
                for scores, wrong in kept
                for halving in range(halvings)
            ]
            exact = [
                drawn_trial(scores[name], wrong, risk, seed=draw)
                for scores, wrong in kept
                for draw in range(halvings)
            ]
            yield {"network": network, "score": name, "max_risk": risk, **rule_facts(trials, exact)}


def drawn_trial(
    scores: np.ndarray, wrong: np.ndarray, max_risk: float, seed: int
) -> RuleEvaluation:
    """A rule from independent draws, judged on the population they were drawn from."""
    drawn = np.random.default_rng(seed).integers(len(wrong), size=len(wrong) // 2)
    return evaluate_rule(accept_rule(scores[drawn], wrong[drawn], max_risk), scores, wrong)


def broken(trials: list[RuleEvaluation]) -> float:
    """The share of trials in which more than the limit was wrong; accepting nothing keeps to it."""
    return fmean(trial.accepted > 0 and trial.risk > trial.rule.risk_bound for trial in trials)


def rule_facts(trials: list[RuleEvaluation], exact: list[RuleEvaluation]) -> Row:
    """What many halvings say, and as many draws from a known population."""
    risks = [trial.risk for trial in trials if trial.accepted]
    return {
        "held_out": trials[0].rule.held_out,
        "halvings": len(trials),
        "certified": round(fmean(trial.rule.certified for trial in trials), 5),
        "coverage": round(fmean(trial.coverage for trial in trials), 5),
        "risk": round(fmean(risks), 5) if risks else "",
        "highest_risk": round(max(risks), 5) if risks else "",
        "above_on_other_half": round(broken(trials), 5),
        "broken_in_known_population": round(broken(exact), 5),
    }


def accuracy_rows(run: Run) -> Iterator[Row]:
    """A line for each network (and all), estimator, score and severity."""
    for way in ESTIMATORS:
        found = {
            network: [
                guess
                for seed in run.seeds
                for guess in accuracy_comparisons(run, network, way, seed=seed)
                if guess.corruption != CLEAN
            ]
            for network in progress(run.networks, f"estimating ({way})")
        }
        found["all"] = [guess for own in found.values() for guess in own]
        for network, own in found.items():
            for severity, chosen in severities(own).items():
                names = ESTIMATED if way != ESTIMATORS[0] else (*ESTIMATED, "unchanged")
                for name in names:
                    estimator = "" if name == "unchanged" else way
                    yield {
                        "network": network, "levels": severity, "score": name,
                        "estimator": estimator, **accuracy_facts(chosen, name),
                    }  # fmt: skip


def severities(own: list[AccuracyComparison]) -> dict[str, list[AccuracyComparison]]:
    lost = {id(guess): guess.clean_accuracy - guess.truth for guess in own}
    return {
        "all": own,
        "mild": [guess for guess in own if lost[id(guess)] < MILD],
        "medium": [guess for guess in own if MILD <= lost[id(guess)] < HEAVY],
        "heavy": [guess for guess in own if lost[id(guess)] >= HEAVY],
    }


def accuracy_facts(own: list[AccuracyComparison], name: str) -> Row:
    if not own:
        return {"count": 0}
    known = name != "unchanged"
    errors = [(g.estimates[name].accuracy if known else g.clean_accuracy) - g.truth for g in own]
    holds = (
        [g.estimates[name].low <= g.truth <= g.estimates[name].high for g in own] if known else []
    )
    return {
        "count": len(own),
        "mean_absolute_error": round(float(np.abs(errors).mean()), 5),
        "mean_error": round(fmean(errors), 5),  # above zero: it promises too much
        "largest_error": round(sorted(errors, key=abs)[-1], 5),
        "interval_holds": round(fmean(holds), 5) if holds else "",
    }


def write(path: Path, rows: list[Row]) -> None:
    """Keep the rows, and show them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    cells = [list(rows[0]), *([str(row.get(name, "")) for name in rows[0]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        pairs = zip(line, widths, strict=True)
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in pairs).rstrip() + "\n")
    sys.stdout.write(f"wrote {path}\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+", help="a run's folder, or several")
    parser.add_argument("--halvings", type=int, default=100, help="of each seed's clean images")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    run = Run(*options.run)
    if missing := [name for name in SCORES if name not in run.methods]:
        parser.error(f"the run was made without {', '.join(missing)}")
    write(options.out / "decisions-accuracy.csv", list(accuracy_rows(run)))
    write(options.out / "decisions.csv", list(rule_rows(run, options.halvings)))


if __name__ == "__main__":
    main()
