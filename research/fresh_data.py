"""The recipe confirmed on data that no choice has seen: Fashion-MNIST.

    python research/fresh_data.py --run runs/fashion --data DATA -o OUT [--seeds 0 1 2]

Trains LeNets of every seed and their ensembles, scores the one-pass methods and the ensemble under
the benchmark's corruptions, and compares. A run that was stopped goes on where it was. Writes
OUT/fresh-data.md. Every number is a mean over the levels of a corruption; cells are corruptions of
single seeds, the clean images aside.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qipf.bench.results import Record, read_results
from qipf.bench.runner import run
from qipf.bench.suites import CLEAN
from qipf.io.atomic import atomic_write

ONE_PASS = (
    "softmax", "entropy", "max_logit", "energy", "gen", "knn", "mahalanobis", "she", "nci",
    "stacked", "qipf", "qipf_plus",
)  # fmt: skip
OURS, RIVALS = "qipf_plus", ("ensemble_entropy", "ensemble_log_odds")
METHODS = (*ONE_PASS, "ensemble", *RIVALS)
METRICS = {"roc_auc": "ROC-AUC", "pr_auc": "PR-AUC"}

#: Method -> (corruption, seed) -> mean over the levels.
Cells = dict[str, dict[tuple[str, int], float]]


def cells(records: Iterable[Record], metric: str, seeds: Iterable[int]) -> Cells:
    """Means over the levels; a level without errors, or with nothing else, tells nothing."""
    told: dict[str, dict[tuple[str, int], list[float]]] = {method: {} for method in METHODS}
    for record in records:
        where = record["corruption"], record["seed"]
        known = record["method"] in METHODS and record["seed"] in seeds
        if known and record["roc_auc"] is not None:
            told[record["method"]].setdefault(where, []).append(record[metric])
    return {
        method: {where: float(np.mean(areas)) for where, areas in found.items()}
        for method, found in told.items()
    }


def compared(found: Cells) -> dict[str, Any]:
    """By corruption and in the mean: every method, who is first, and how far the rivals are."""
    corruptions = [c for c in dict.fromkeys(c for c, _ in found[OURS]) if c != CLEAN]
    corrupted = [where for where in found[OURS] if where[0] in corruptions]
    methods = {method: _by_corruption(areas, corruptions) for method, areas in found.items()}
    ours = methods[OURS]
    behind = {
        f"{corruption}, seed {seed}": best - found[OURS][corruption, seed]
        for corruption, seed in corrupted
        if (best := max(found[method][corruption, seed] for method in ONE_PASS))
        > found[OURS][corruption, seed]
    }
    return {
        "methods": methods,
        f"{OURS} first of one pass": {
            "cells": [len(corrupted) - len(behind), len(corrupted)],
            "behind the first by": behind,
            "mean of the seeds": [
                max(ONE_PASS, key=lambda method: methods[method][c]) == OURS for c in corruptions
            ].count(True),
        },
        **{
            f"{OURS} minus {rival}": {name: ours[name] - methods[rival][name] for name in ours}
            for rival in RIVALS
        },
        **{
            f"{OURS} ahead of {rival}": sum(found[OURS][w] > found[rival][w] for w in corrupted)
            for rival in RIVALS
        },
    }


def _by_corruption(
    areas: Mapping[tuple[str, int], float], corruptions: list[str]
) -> dict[str, float]:
    """Means over the seeds, and their mean over the corruptions."""
    means = {
        corruption: float(np.mean([area for (c, _), area in areas.items() if c == corruption]))
        for corruption in dict.fromkeys([*corruptions, *(c for c, _ in areas)])
    }
    clean = {c: means.pop(c) for c in [CLEAN] if c in means}
    return {**means, "mean": float(np.mean(list(means.values()))), **clean}


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Both areas of every method in Markdown, and what follows from them."""
    first = results["roc_auc"]["methods"]
    columns = list(first[OURS])
    rows = [["ROC-AUC / PR-AUC", *("clean images" if c == CLEAN else c for c in columns)]]
    rows.append(["---"] * len(rows[0]))
    for method in METHODS:
        both = [[results[metric]["methods"][method][c] for metric in METRICS] for c in columns]
        rows.append([method, *(f"{roc:.3f} / {pr:.3f}" for roc, pr in both)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    for metric, name in METRICS.items():
        told = results[metric]
        count, of = told[f"{OURS} first of one pass"]["cells"]
        by_mean = told[f"{OURS} first of one pass"]["mean of the seeds"]
        rivals = " and ".join(
            f"of {rival} in {told[f'{OURS} ahead of {rival}']} of {of}, "
            f"in the mean by {told[f'{OURS} minus {rival}']['mean']:+.3f}"
            for rival in RIVALS
        )
        lines.append(
            f"\n{name}: {OURS} is first of the one-pass methods in {count} of {of} cells "
            f"(corruptions and seeds), and in {by_mean} corruptions by the mean of the seeds; "
            f"ahead {rivals}."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--suite", default="fashion", help="another one to try the script with")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="auto")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    only = [f"method={','.join(METHODS)}"]
    for seed in options.seeds:
        run(
            options.suite,
            options.run,
            device=options.device,
            seed=seed,
            only=only,
            data=options.data,
        )
        print(f"seed {seed} done", flush=True)
    records = read_results(options.run)
    results = {metric: compared(cells(records, metric, options.seeds)) for metric in METRICS}
    text = table(results)
    print(text)
    with atomic_write(options.output / "fresh-data.md") as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()
