"""How much of the errors the layers could show: an uncertainty fitted to the corruption itself.

    python research/error_data.py --run RUN --data DATA -o OUT --networks ...
    python research/limits.py OUT > research/results/limits.md

For each network and corruption the ROC-AUC of the entropy, of the shipped uncertainty, and of a
logistic regression over the same evidence (log-odds of mixture, softmax and layers, energy, log
densities) that is fitted to the errors on the corrupted test images, in five folds of images. No
user can fit that. Where it is no better than the shipped uncertainty, the layers do not tell more.

    python research/limits.py OUT --novelty > research/results/limits-novelty.md

The same of the novelty: for each unseen data set the ROC-AUC of peers, of the shipped novelty, and
of logistic regressions over all that it is computed from, fitted to all unseen data sets together
and to each of them, in folds. The last one has the peers' scores as columns too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from novelties import PEERS, SHIPPED, columns_of, whitening
from numpy.typing import ArrayLike
from scores import _mixture, entropy, gated
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tuned_sets import FAMILIES, Network, Rows

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


def novelty_rows(network: Network) -> tuple[list[str], list[tuple[str, list[float]]]]:
    """Names of columns, and each unseen data set with its areas."""
    tuning, test = network.tuning(FAMILIES), network.sets[f"test/{CLEAN}/0"]
    peers = {name: peer for name, peer in PEERS.items() if peer.available(test)}
    scores = [candidate(tuning) for candidate in (*peers.values(), SHIPPED)]
    whitened = whitening(columns_of(SHIPPED.distance, tuning[0]))

    def evidence(rows: Rows) -> np.ndarray:
        inside = columns_of(SHIPPED.distance, rows)
        own = columns_of(SHIPPED.columns, rows)
        return np.c_[own, inside, whitened(inside).norm(dim=1), whitened(inside).square()]

    def with_peers(rows: Rows) -> np.ndarray:
        return np.c_[evidence(rows), np.stack([peer([])(rows) for peer in peers.values()], 1)]

    unseen = {n.partition("/")[2]: r for n, r in network.sets.items() if n.startswith("unseen/")}
    together = _fitted(evidence, test, list(unseen.values()))
    found = []
    for name, rows in unseen.items():
        areas = [_area(score(test), score(rows)) for score in scores]
        ends = [0, *np.cumsum([len(r.logits) for r in unseen.values()])]
        place = list(unseen).index(name)
        clean, others = together
        areas.append(_area(clean, others[ends[place] : ends[place + 1]]))
        areas += [_area(*_fitted(columns, test, [rows])) for columns in (evidence, with_peers)]
        found.append((name, areas))
    fitted = ["fitted to all sets", "fitted to the set", "the same, with the peers"]
    return [*peers, "novelty", *fitted], found


def _fitted(
    columns: Callable[[Rows], np.ndarray], clean: Rows, others: list[Rows]
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of clean and other rows, each by a regression on the other folds."""
    sets = [columns(rows) for rows in (clean, *others)]
    positive = np.arange(sum(map(len, sets))) >= len(sets[0])
    scores = cross_val_predict(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000, class_weight="balanced")),
        np.concatenate(sets),
        positive,
        cv=PredefinedSplit(np.concatenate([np.arange(len(own)) % FOLDS for own in sets])),
        method="decision_function",
    )
    return scores[~positive], scores[positive]


def _area(clean: ArrayLike, other: ArrayLike) -> float:
    scores = np.concatenate([clean, other])
    return float(roc_auc_score(np.arange(len(scores)) >= len(np.asarray(clean)), scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--novelty", action="store_true")
    options = parser.parse_args()
    names, kind = ["entropy", "uncertainty", "fitted to the corruption"], "corruption"
    printed = False
    for path in sorted(options.data.glob("*.npz")):
        network = Network(path)
        if options.novelty:
            if not any(name.startswith("unseen/") for name in network.sets):
                continue
            (names, rows), kind = novelty_rows(network), "unseen data set"
        else:
            rows = rows_of(network)
        if not printed:
            printed = True
            print("| network | " + " | ".join([kind, *names]) + " |")
            print("| --- | --- |" + " --- |" * len(names))
        for name, areas in rows:
            shown = " | ".join(f"{area:.3f}" for area in areas)
            print(f"| {network.name} | {name} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
