"""Whether one network's layers could tell what ensembles know: an uncertainty fitted to the errors.

    qipf bench run --suite paper --data DATA --out RUN \
      --only method=entropy,ensemble_entropy,ensemble_log_odds,qipf_plus
    python research/ensemble_gap.py --run RUN --data DATA > research/results/ensemble-gap.md

As `limits.py`, but with the present model, by both areas, and beside the ensembles of the same run:
for each network and corruption the ROC-AUC and PR-AUC (means over levels) of the entropy, of the
shipped uncertainty, of the ensemble, and of a logistic regression over all that the uncertainty and
the novelty are computed from, which is fitted to the errors on the corrupted test images, in five
folds of images. No user can fit that. It is no upper bound: it is
linear, fitted by likelihood, and over all levels at once.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import qipf
from qipf.bench.corruptions import corrupt
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, find
from qipf.layered.fitting import _evidence as evidence_of_rows
from qipf.network.features import run_in_batches
from qipf.network.forward import evaluating
from qipf.reporting.run.results import Run

FOLDS, BATCH = 5, 1000
SCORES = ("entropy", "qipf_plus", "ensemble_entropy", "ensemble_log_odds")
FITTED = "fitted to the corruption"

#: Share of accuracy that a network keeps at levels where it is mostly right.
MOSTLY_RIGHT = 0.6

Areas = dict[str, tuple[float, float]]


def levels_of(
    run: Run, bench: NetworkBench, name: str, seed: int
) -> list[tuple[str, float, Areas]]:
    """Corruption, accuracy and areas by score, of every level."""
    data, net = bench.dataset, bench.network
    images = unit_range(data.train_images).split(BATCH)
    model = qipf.LayeredQIPF(net, random_state=seed).fit(
        list(zip(images, data.train_labels.split(BATCH), strict=True))
    )
    test, found = unit_range(data.test_images), []
    for corruption in (CLEAN, *find("paper").corruptions):
        scored = run.scores(name, corruption, seed)
        evidence = []
        for level, (_, wrong) in scored.items():
            shown = test if corruption == CLEAN else corrupt(test, corruption, level)
            with evaluating(net), torch.no_grad():
                logits, rows = run_in_batches(net, shown, model._sites_read())
                odds, unusual = evidence_of_rows(model, logits, rows)
            assert (logits.argmax(1) != data.test_labels).numpy().sum() == wrong.sum()
            evidence.append(np.c_[odds.numpy(), unusual.numpy()])
        errors = [wrong for _, wrong in scored.values()]
        fitted = cross_val_predict(
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000)),
            np.concatenate(evidence),
            np.concatenate(errors),
            cv=PredefinedSplit(np.concatenate([np.arange(len(own)) % FOLDS for own in errors])),
            method="decision_function",
        )
        parts = np.split(fitted, np.cumsum([len(own) for own in errors])[:-1])
        for (scores, wrong), best in zip(scored.values(), parts, strict=True):
            own = {kind: scores[kind] for kind in SCORES} | {FITTED: best}
            found.append((corruption, 1 - wrong.mean(), _areas(own, wrong)))
    return found


def _areas(scores: dict[str, np.ndarray], wrong: np.ndarray) -> Areas:
    return {
        kind: (roc_auc_score(wrong, values), average_precision_score(wrong, values))
        for kind, values in scores.items()
    }


def line(name: str, group: str, levels: list[Areas]) -> str:
    """A row of the table: means over levels."""
    means = [np.mean([areas[kind] for areas in levels], axis=0) for kind in (*SCORES, FITTED)]
    shown = (f"{roc:.3f} / {precision:.3f}" for roc, precision in means)
    return f"| {name} | {group} | {len(levels)} | " + " | ".join(shown) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run, suite = Run(options.run), replace(find("paper"), seed=options.seed)
    print("| network | levels | number | " + " | ".join((*SCORES, FITTED)) + " |")
    print("| --- " * (3 + len(SCORES) + 1) + "|")
    for name in options.networks:
        bench = NetworkBench(Setting(suite, options.run, "cpu", options.data, False), name)
        found = levels_of(run, bench, name, options.seed)
        for group in dict.fromkeys(corruption for corruption, *_ in found):
            title = "clean" if group == CLEAN else group
            print(line(name, title, [areas for kind, _, areas in found if kind == group]))
        corrupted = [(right, areas) for kind, right, areas in found if kind != CLEAN]
        print(line(name, "all corrupted", [areas for _, areas in corrupted]))
        for right, title in ((True, "60 % right or more"), (False, "less")):
            some = [areas for share, areas in corrupted if (share >= MOSTLY_RIGHT) == right]
            if some:
                print(line(name, title, some), flush=True)


if __name__ == "__main__":
    main()
