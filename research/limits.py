"""How much of the errors the layers could show: an uncertainty fitted to the corruption itself.

    python research/error_data.py --run RUN --data DATA -o OUT --networks ...
    python research/limits.py OUT > research/results/limits.md

For each network and corruption the ROC-AUC of the entropy, of the shipped uncertainty, and of a
logistic regression over the same evidence (log-odds of mixture, softmax and layers, energy, log
densities) that is fitted to the errors on the corrupted test images, in five folds of images. No
user can fit that. Where it is no better than the shipped uncertainty, the layers do not tell more.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scores import FAMILIES, Network, Rows, _mixture, entropy, gated
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qipf.bench.suites import CLEAN

FOLDS = 5


def rows_of(network: Network) -> list[tuple[str, list[float]]]:
    """Each corruption with the three areas, mean over its levels."""
    tuning = network.tuning(FAMILIES)
    shipped, kept = gated()(tuning), list(range(tuning[0].posteriors.shape[1]))
    weights = _mixture(tuning, kept)
    levels: dict[str, list[Rows]] = {}
    for name, rows in network.sets.items():
        kind, _, rest = name.partition("/")
        if kind == "test" and rest.split("/")[0] != CLEAN:
            levels.setdefault(rest.split("/")[0], []).append(rows)
    found = []
    for corruption, sets in levels.items():
        evidence = [np.c_[rows.odds(weights, kept), rows.unusual] for rows in sets]
        wrong = [rows.wrong.numpy() for rows in sets]
        folds = PredefinedSplit(np.concatenate([np.arange(len(w)) % FOLDS for w in wrong]))
        fitted = cross_val_predict(
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
            np.concatenate(evidence),
            np.concatenate(wrong),
            cv=folds,
            method="decision_function",
        )
        ends = np.cumsum([len(w) for w in wrong])[:-1]
        areas = [
            [roc_auc_score(errors, score) for score in (entropy([])(rows), shipped(rows), best)]
            for rows, errors, best in zip(sets, wrong, np.split(fitted, ends), strict=True)
            if errors.any() and not errors.all()
        ]
        found.append((corruption, np.mean(areas, axis=0).tolist()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    print("| network | corruption | entropy | uncertainty | fitted to the corruption |")
    print("| --- | --- | --- | --- | --- |")
    for path in sorted(parser.parse_args().data.glob("*.npz")):
        network = Network(path)
        for corruption, areas in rows_of(network):
            shown = " | ".join(f"{area:.3f}" for area in areas)
            print(f"| {network.name} | {corruption} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
