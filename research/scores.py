"""Choose how uncertainty and novelty are made from what the layers say of an input.

    python research/error_data.py --run RUN --data DATA -o OUT --networks ...
    python research/scores.py OUT -o research/results

Reads what `error_data.py` wrote for some networks. Every candidate is fitted on perturbed training
images with one group of perturbations left out, and judged on that group: the mean of ROC-AUC and
PR-AUC of error detection for the uncertainty, ROC-AUC of perturbed against clean images for the
novelty. Test images are evaluated too, in columns of their own that no rule reads. Writes
scores.md, or with ``--novelty`` novelty.md, of that alone. Candidates are left out on files
without their columns.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from novelties import NOVELTIES, PEERS, Novelty
from novelties import SHIPPED as SHIPPED_NOVELTY
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from tuned_sets import FAMILIES, Candidate, Network, Rows, Score, left_out

from qipf.bench.suites import CLEAN, PAPER_CORRUPTIONS
from qipf.layered.error_model import Evidence, fit_error_model, fit_log_odds
from qipf.layered.mixture import likeliest_weights
from qipf.layered.mixture_fit import LEAST


def entropy(_sets: list[Rows]) -> Score:
    return lambda rows: torch.distributions.Categorical(logits=rows.logits).entropy()


def _mixture(sets: list[Rows], kept: list[int]) -> Tensor:
    return likeliest_weights(torch.cat([rows.truth() for rows in sets])[:, kept])


def mixture(sets: list[Rows]) -> Score:
    """The mixture's log-odds."""
    kept = list(range(sets[0].posteriors.shape[1]))
    weights = _mixture(sets, kept)
    return lambda rows: rows.odds(weights, kept)[:, 0]


def _all(sets: list[Rows], weights: Tensor, kept: list[int]) -> tuple[Evidence, Tensor, Tensor]:
    odds = torch.cat([rows.odds(weights, kept) for rows in sets])
    unusual = torch.cat([rows.unusual for rows in sets])
    wrong = torch.cat([rows.wrong for rows in sets])
    return Evidence(odds, unusual), wrong, torch.arange(len(odds)) >= len(sets[0].logits)


def one_regression(sets: list[Rows]) -> Score:
    """One regression over the log-odds of mixture, softmax and all layers, everywhere."""
    kept = list(range(sets[0].posteriors.shape[1]))
    weights = _mixture(sets, kept)
    evidence, wrong, _ = _all(sets, weights, kept)
    found = fit_log_odds(evidence.odds, wrong)
    assert found is not None
    return lambda rows: found(rows.odds(weights, kept))


ENERGY = NOVELTIES["energy"]


def gated(least: float = LEAST, gate: Novelty = ENERGY, layers: bool = True) -> Candidate:
    """Near and far from the data, as `qipf.layered.error_model`; `least` as in `fit_mixture`."""

    def fit(sets: list[Rows]) -> Score:
        kept = list(range(sets[0].posteriors.shape[1]))
        weights = _mixture(sets, kept)
        if not layers:
            return _near_far(sets, weights, kept, slice(2), gate)
        evidence, wrong, perturbed = _all(sets, weights, kept)
        model = fit_error_model(evidence, wrong, perturbed)
        assert model is not None
        slopes = model.near.slopes * evidence.odds.std(0)
        importance = torch.maximum(weights, slopes[1:] / slopes.sum())
        kept = [0, *(layer for layer in kept[1:] if importance[layer] >= least)]
        return _near_far(sets, _mixture(sets, kept), kept, slice(None), gate)

    return fit


def _near_far(
    sets: list[Rows], weights: Tensor, kept: list[int], columns: slice, gate: Novelty
) -> Score:
    by = gate(sets)

    def seen(rows: Rows) -> Evidence:
        return Evidence(rows.odds(weights, kept)[:, columns], by(rows)[:, None])

    odds, unusual = (torch.cat(part) for part in zip(*map(seen, sets), strict=True))
    _, wrong, perturbed = _all(sets, weights, kept)
    model = fit_error_model(Evidence(odds, unusual), wrong, perturbed)
    assert model is not None
    return lambda rows: model(seen(rows))


UNCERTAINTIES: dict[str, Candidate] = {
    "entropy": entropy,
    "mixture": mixture,
    "one regression": one_regression,
    "near: mixture and softmax; far: mixture": gated(layers=False),
    "near: all layers; far: mixture": gated(least=0.0),
    "near: layers of 5 %; far: mixture": gated(),
    "the same, gate by novelty": gated(gate=NOVELTIES["energy, last layer, distance"]),
}
SHIPPED = "near: layers of 5 %; far: mixture"


def detection(score: Tensor, wrong: Tensor) -> tuple[float, float]:
    """ROC-AUC and PR-AUC; NaN without errors, or with nothing else."""
    if wrong.all() or not wrong.any():
        return np.nan, np.nan
    return roc_auc_score(wrong, score), average_precision_score(wrong, score)


def apart(score: Score, clean: Rows, other: Rows) -> float:
    """ROC-AUC of other inputs among clean ones."""
    scores = torch.cat([score(clean), score(other)])
    return roc_auc_score(np.arange(len(scores)) >= len(clean.logits), scores)


def of_uncertainty(network: Network, candidate: Candidate) -> dict[str, float]:
    judged = [detection(s(rows), rows.wrong) for s, rows in left_out(network, candidate)]
    score = candidate(network.tuning(FAMILIES))
    found: dict[str, list[float]] = {}
    for name, rows in network.sets.items():
        kind, _, rest = name.partition("/")
        if kind == "test":
            corruption = rest.split("/")[0]
            paper = (
                "paper's corruptions" if corruption in PAPER_CORRUPTIONS else "other corruptions"
            )
            column = "clean" if corruption == CLEAN else paper
            found.setdefault(column, []).append(detection(score(rows), rows.wrong)[0])
    return {"left-out groups": float(np.nanmean(judged))} | {
        name: float(np.nanmean(values)) for name, values in found.items()
    }


def of_novelty(network: Network, candidate: Candidate) -> dict[str, float]:
    clean = network.sets["tuning/clean"]
    judged = [apart(s, clean, rows) for s, rows in left_out(network, candidate)]
    score, test = candidate(network.tuning(FAMILIES)), network.sets[f"test/{CLEAN}/0"]
    unseen = {
        name.partition("/")[2]: apart(score, test, rows)
        for name, rows in network.sets.items()
        if name.startswith("unseen/")
    }
    mean = {"unseen data sets": float(np.mean(list(unseen.values())))} if unseen else {}
    return {"left-out groups": float(np.mean(judged)), **mean, **unseen}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--novelty", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {"uncertainty": {}, "novelty": {}}
    if options.novelty:
        del found["uncertainty"]
    for path in sorted(options.data.glob("*.npz")):
        network = Network(path)
        candidates: Mapping[str, Candidate]
        for kind in found:
            if kind == "uncertainty":
                candidates, evaluate = UNCERTAINTIES, of_uncertainty
            else:
                clean, every = network.sets["tuning/clean"], NOVELTIES | PEERS
                candidates = {n: c for n, c in every.items() if c.available(clean)}
                evaluate = of_novelty
            for name, candidate in candidates.items():
                row = evaluate(network, candidate)
                found[kind].setdefault(name, {})[network.name] = row
                print(network.name, name, {k: round(v, 4) for k, v in row.items()}, flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    name = "novelty" if options.novelty else "scores"
    (options.output / f"{name}.md").write_text(table(found))


def table(found: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    """Candidates by network, one table for each kind and column."""
    lines = []
    for kind, candidates in found.items():
        networks = list(next(iter(candidates.values())))
        columns = list(dict.fromkeys(c for own in candidates.values() for n in own for c in own[n]))
        for column in columns[: 4 if kind == "uncertainty" else 2]:
            lines += [f"{kind}, {column}", "", "| | " + " | ".join([*networks, "mean"]) + " |"]
            lines.append("| --- |" + " --- |" * (len(networks) + 1))
            for name, own in candidates.items():
                values = [own.get(n, {}).get(column, np.nan) for n in networks]
                shown = [
                    "" if np.isnan(v) else f"{v:.4f}"[1:] for v in [*values, np.nanmean(values)]
                ]
                title = (
                    f"**{name}**"
                    if name == SHIPPED or NOVELTIES.get(name) is SHIPPED_NOVELTY
                    else name
                )
                lines.append(f"| {title} | " + " | ".join(shown) + " |")
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
