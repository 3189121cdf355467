"""Choose how uncertainty and novelty are made from what the layers say of an input.

    python research/error_data.py --run RUN --data DATA -o OUT --networks ...
    python research/scores.py OUT -o research/results

Reads what `error_data.py` wrote for some networks. Every candidate is fitted on perturbed training
images with one group of perturbations left out, and judged on that group: the mean of ROC-AUC and
PR-AUC of error detection for the uncertainty, ROC-AUC of perturbed against clean images for the
novelty. Test images are evaluated too, in columns of their own that no rule reads. Writes
scores.json and scores.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from qipf.bench.suites import CLEAN, PAPER_CORRUPTIONS
from qipf.layered.error_model import (
    Evidence,
    LogOdds,
    balanced,
    fit_error_model,
    fit_log_odds,
    fit_novelty_model,
)
from qipf.layered.mixture import LEAST, likeliest_weights, odds_columns

#: Perturbations that resemble each other, left out together: a test corruption is further from all
#: of them than two of a group are from each other.
GROUPS = (("fade", "tone"), ("shift", "warp"), ("blur", "coarsen"), ("noise", "drop", "hole"))
FAMILIES = tuple(family for group in GROUPS for family in group)

#: Shares of the accuracy that perturbed images keep: of the sets that are fitted, and judged.
FITTED, JUDGED = ("0.9", "0.7", "0.5"), ("0.97", "0.9", "0.7", "0.5")

#: The column of log densities at the layers' own bandwidth, of the five that are written.
OWN_BANDWIDTH = 3


@dataclass(frozen=True)
class Rows:
    """What was said of the inputs of a set."""

    logits: Tensor  # (n, classes)
    posteriors: Tensor  # (n, 1 + layers, classes)
    densities: Tensor  # (n, layers)
    labels: Tensor  # (n,)

    @property
    def wrong(self) -> Tensor:  # (n,)
        return self.logits.argmax(1) != self.labels

    @property
    def unusual(self) -> Tensor:  # (n, 1 + layers)
        return torch.cat([-self.logits.logsumexp(1, keepdim=True), -self.densities], 1)

    def odds(self, weights: Tensor, kept: list[int]) -> Tensor:  # (n, 2 + kept layers)
        """Log-odds of mixture, softmax and kept layers; column 0 of `kept` is the softmax."""
        predicted = self.logits.argmax(1)[:, None, None]
        own = self.posteriors.gather(2, predicted.expand(-1, self.posteriors.shape[1], 1))[..., 0]
        against = (self.posteriors.sum(2) - own).clamp(min=0)
        own[:, 0], against[:, 0] = _softmax(self.logits)  # exact, not from half precision
        return odds_columns(own[:, kept], against[:, kept], weights)

    def truth(self) -> Tensor:  # (n, 1 + layers)
        place = self.labels[:, None, None].expand(-1, self.posteriors.shape[1], 1)
        return self.posteriors.gather(2, place)[..., 0]


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of the predicted class, and of all others."""
    p = logits.softmax(1)
    own = p.amax(1)
    return own, p.scatter(1, logits.argmax(1, keepdim=True), 0).sum(1)


class Network:
    """All sets of a network, by name."""

    def __init__(self, path: Path) -> None:
        arrays = np.load(path)
        self.name = path.stem.rsplit("-", 1)[0]
        names = {key.split("|")[0] for key in arrays.files if "|" in key}
        self.sets = {name: self._rows(arrays, name) for name in sorted(names)}

    @staticmethod
    def _rows(arrays: np.lib.npyio.NpzFile, name: str) -> Rows:
        read = {k: torch.from_numpy(arrays[f"{name}|{k}"]).double() for k in COLUMNS}
        layers = read["log_posteriors"].shape[1] - 1
        densities = read["densities"].view(-1, layers, read["densities"].shape[1] // layers)
        return Rows(
            read["logits"],
            read["log_posteriors"].exp(),
            densities[:, :, OWN_BANDWIDTH],
            read["labels"].long(),
        )

    def tuning(self, families: Sequence[str]) -> list[Rows]:
        """The clean set, first, and the perturbed ones of these families."""
        names = ["clean", *(f"{family}/{share}" for family in families for share in FITTED)]
        return [self.sets[f"tuning/{name}"] for name in names]


COLUMNS = ("logits", "log_posteriors", "densities", "labels")

#: Fitted on sets, the clean one first: a score of rows.
Score = Callable[[Rows], Tensor]
Candidate = Callable[[list[Rows]], Score]


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


def gated(least: float = LEAST, gate: str = "energy", layers: bool = True) -> Candidate:
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
        heard = torch.maximum(weights, slopes[1:] / slopes.sum())
        kept = [0, *(layer for layer in kept[1:] if heard[layer] >= least)]
        return _near_far(sets, _mixture(sets, kept), kept, slice(None), gate)

    return fit


def _near_far(
    sets: list[Rows], weights: Tensor, kept: list[int], columns: slice, gate: str
) -> Score:
    evidence, wrong, perturbed = _all(sets, weights, kept)
    novelty = fit_novelty_model(evidence.unusual, perturbed) if gate == "novelty" else None

    def seen(odds: Tensor, unusual: Tensor) -> Evidence:
        by = unusual[:, :1] if novelty is None else novelty(unusual)[:, None]
        return Evidence(odds[:, columns], by)

    model = fit_error_model(seen(*evidence), wrong, perturbed)
    assert model is not None
    return lambda rows: model(seen(rows.odds(weights, kept), rows.unusual))


UNCERTAINTIES: dict[str, Candidate] = {
    "entropy": entropy,
    "mixture": mixture,
    "one regression": one_regression,
    "near: mixture and softmax; far: mixture": gated(layers=False),
    "near: all layers; far: mixture": gated(least=0.0),
    "near: layers of 5 %; far: mixture": gated(),
    "the same, gate by novelty": gated(gate="novelty"),
}
SHIPPED = "near: layers of 5 %; far: mixture", "energy, last layer, distance"


def regression_of_densities(sets: list[Rows]) -> Score:
    unusual = torch.cat([rows.unusual for rows in sets])
    perturbed = torch.arange(len(unusual)) >= len(sets[0].logits)
    found = fit_log_odds(unusual, perturbed, balanced(perturbed)) or LogOdds(
        0.0, torch.ones(unusual.shape[1]).double()
    )
    return lambda rows: found(rows.unusual)


def with_distance(sets: list[Rows]) -> Score:
    unusual = torch.cat([rows.unusual for rows in sets])
    found = fit_novelty_model(unusual, torch.arange(len(unusual)) >= len(sets[0].logits))
    return lambda rows: found(rows.unusual)


NOVELTIES: dict[str, Candidate] = {
    "energy": lambda _sets: lambda rows: rows.unusual[:, 0],
    "last layer": lambda _sets: lambda rows: rows.unusual[:, -1],
    "regression of energy and all layers": regression_of_densities,
    "energy, last layer, distance": with_distance,
}


def detection(score: Tensor, wrong: Tensor) -> tuple[float, float]:
    """ROC-AUC and PR-AUC; NaN without errors, or with nothing else."""
    if wrong.all() or not wrong.any():
        return np.nan, np.nan
    return roc_auc_score(wrong, score), average_precision_score(wrong, score)


def apart(score: Score, clean: Rows, other: Rows) -> float:
    """ROC-AUC of other inputs among clean ones."""
    scores = torch.cat([score(clean), score(other)])
    return roc_auc_score(np.arange(len(scores)) >= len(clean.logits), scores)


def left_out(network: Network, candidate: Candidate) -> Iterator[tuple[Score, Rows]]:
    """A score that was fitted without a group, and each set of that group."""
    for group in GROUPS:
        score = candidate(network.tuning([f for f in FAMILIES if f not in group]))
        for family in group:
            for share in JUDGED:
                yield score, network.sets[f"tuning/{family}/{share}"]


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
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {"uncertainty": {}, "novelty": {}}
    for path in sorted(options.data.glob("*.npz")):
        network = Network(path)
        kinds = (("uncertainty", UNCERTAINTIES, of_uncertainty), ("novelty", NOVELTIES, of_novelty))
        for kind, candidates, evaluate in kinds:
            for name, candidate in candidates.items():
                row = evaluate(network, candidate)
                found[kind].setdefault(name, {})[network.name] = row
                print(network.name, name, {k: round(v, 3) for k, v in row.items()}, flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "scores.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.output / "scores.md").write_text(table(found))


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
                values = [own[n].get(column, np.nan) for n in networks]
                shown = [
                    "" if np.isnan(v) else f"{v:.4f}"[1:] for v in [*values, np.nanmean(values)]
                ]
                title = f"**{name}**" if name in SHIPPED else name
                lines.append(f"| {title} | " + " | ".join(shown) + " |")
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
