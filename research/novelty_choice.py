"""Choose columns and fit data of the novelty by classes that a network was not trained on.

    python research/left_out_classes.py --data DATA -o OUT --networks ... --seed 0 1
    python research/novelty_choice.py OUT [OUT ...] -o research/results

Reads what `left_out_classes.py` wrote. Every candidate is a logistic regression of some sets made
from training inputs against the clean ones, as `qipf.layered.novelty` has it. It is judged by the
ROC-AUC of test inputs of unknown classes among those of known ones, and of far and enlarged inputs
among the same. Writes left-out-classes.csv, a row for each candidate, network and seed, and
left-out-classes.md; with ``--outside`` the candidates that read parts of all rows, into
outside.csv and outside.md.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from left_out_classes import PEERS, SHARES
from novelties import whitening
from sklearn.metrics import roc_auc_score
from torch import Tensor

from qipf.layered.error_model import fit_log_odds
from qipf.layered.novelty import standardised_mean

#: Energies not below the mean of clean inputs less so many standard deviations.
BOUNDS = {"energy from -2": 2.0, "energy from -1": 1.0}

Columns = Mapping[str, Tensor]
Score = Callable[[Columns], Tensor]


class Dump:
    """The sets of a network, by name."""

    def __init__(self, path: Path) -> None:
        self.name, seed = path.stem.rsplit("-", 1)
        self.seed = int(seed)
        arrays = np.load(path)
        self.accuracy, layers = float(arrays["accuracy"]), len(arrays["layers"])
        self.sets: dict[str, dict[str, Tensor]] = {}
        for key in arrays.files:
            if "|" in key:
                name, column = key.split("|")
                value = torch.from_numpy(arrays[key]).double()
                own = self.sets.setdefault(name, {})
                own[column] = value[:, None] if value.ndim == 1 else value
        energy = self.clean["energy"]
        for own in self.sets.values():
            unusual = own["unusual"]
            for name, deviations in BOUNDS.items():
                own[name] = own["energy"].clamp(min=energy.mean() - deviations * energy.std())
            own |= {
                "density": unusual[:, layers : layers + 1],
                "densities": unusual[:, 1 : 1 + layers],
                "part": unusual[:, -1:],
                "shipped distance": unusual[:, :-1],
                "odds of mixture": own["odds"][:, :1],
                "odds of softmax": own["odds"][:, 1:2],
                "odds of last": own["odds"][:, -1:],
                "class field": own["class_fields"][:, -1:],
                "entropy of mixture": own["mixture"][:, :1],
                "gen of mixture": own["mixture"][:, 1:],
                "log mahalanobis": own["mahalanobis_layers"][:, -1:],
                "relative": own["relative_layers"][:, -1:],
                "whole layers": own["mahalanobis_layers"] - own["relative_layers"],
                **{
                    name.replace("outside_", "last outside "): own[name][:, -1:]
                    for name in list(own)
                    if name.startswith("outside_")
                },
            }

    def of(self, kind: str, without: str = "") -> dict[str, dict[str, Tensor]]:
        """Sets of a kind, without those of a family; by name."""
        return {
            name: own
            for name, own in self.sets.items()
            if name.startswith(kind) and not (without and name.startswith(f"{kind}/{without}"))
        }

    @property
    def clean(self) -> dict[str, Tensor]:
        return self.sets["tuning/clean"]


def joined(sets: list[dict[str, Tensor]], names: tuple[str, ...]) -> Tensor:
    return torch.cat([torch.cat([own[name] for name in names], 1) for own in sets])


@dataclass(frozen=True)
class Candidate:
    """Columns, of what the distance is taken, and what is told from clean inputs.

    `weights` are those of the perturbed inputs and of the pseudo-outliers.
    """

    columns: tuple[str, ...] = ("energy", "density", "part")
    distance: tuple[str, ...] = ("shipped distance",)
    weights: tuple[float, float] = (1.0, 0.0)
    kinds: tuple[str, ...] = ()  # of outliers; all if empty
    penalty: float = 0.03
    power: float = 1.0  # of the distance

    def fit(self, dump: Dump, without: str = "") -> Score:
        whiten = whitening(joined([dump.clean], self.distance)) if self.distance else None

        def seen(own: Columns) -> Tensor:
            columns = joined([dict(own)], self.columns) if self.columns else None
            if whiten is None:
                assert columns is not None
                return columns
            far = whiten(joined([dict(own)], self.distance)).norm(dim=1, keepdim=True) ** self.power
            return far if columns is None else torch.cat([columns, far], 1)

        clean = seen(dump.clean)
        if not any(self.weights):
            mean = standardised_mean(clean)
            return lambda own: mean(seen(own))
        parts, shares = [clean], [torch.full((len(clean),), 1 / len(clean)).double()]
        for kind, weight in zip(("tuning", "outlier"), self.weights, strict=True):
            sets = [
                own
                for name, own in dump.of(kind, without).items()
                if name != "tuning/clean"
                and (kind == "tuning" or not self.kinds or name.partition("/")[2] in self.kinds)
            ]
            if weight and sets:
                columns = torch.cat([seen(own) for own in sets])
                parts.append(columns)
                share = weight / sum(self.weights) / len(columns)
                shares.append(torch.full((len(columns),), share).double())
        whole = torch.cat(parts)
        positive = torch.arange(len(whole)) >= len(clean)
        found = fit_log_odds(whole, positive, torch.cat(shares), self.penalty)
        found = found or standardised_mean(clean)
        return lambda own: found(seen(own))


def auc(score: Score, clean: Columns, other: Columns) -> float:
    one, two = score(clean), score(other)
    return float(
        roc_auc_score(np.arange(len(one) + len(two)) >= len(one), torch.cat([one, two]).numpy())
    )


def judged(dump: Dump, score: Score) -> dict[str, float]:
    known = dump.sets["test/known"]
    found = {"unknown classes": auc(score, known, dump.sets["test/unknown"])}
    far = {name.partition("/")[2]: auc(score, known, own) for name, own in dump.of("far").items()}
    found["far"] = float(np.mean(list(far.values())))
    larger = [auc(score, known, own) for own in dump.of("larger").values()]
    found["larger"] = float(np.mean(larger)) if larger else np.nan
    return found | {f"far: {name}": value for name, value in far.items()}


_SHIPPED = ("energy", "density", "part")

#: Kinds that the package makes, by the names that they have in `pseudo_outliers`.
CHOSEN = (
    "jigsaw2", "jigsaw4", "halves", "patches",
    "joined halves", "interleaved",
    "half features",
)  # fmt: skip

#: Kinds of pseudo-outliers, each also alone; those for other inputs change nothing.
KINDS = (
    "jigsaw2", "jigsaw4", "halves", "patches", "blend", "negative", "phases", "spectra", "turned",
    "joined halves", "interleaved", "joined", "shuffled tokens", "half features", "mixed features",
)  # fmt: skip

#: That of the package before parts of all rows were measured, and now.
BEFORE, NOW = "1:1, odds of mixture too", "1:1, outside of 1/8"

#: What the distance is taken of, with distances from class means or the mean of all in all layers.
_WITHIN = ("shipped distance", "mahalanobis_layers")
_WHOLE = ("shipped distance", "whole layers")

CANDIDATES: dict[str, Candidate] = {
    "perturbed (before)": Candidate(),
    "perturbed and chosen kinds 1:1": Candidate(weights=(1, 1), kinds=CHOSEN),
    "perturbed and all kinds 1:1": Candidate(weights=(1, 1)),
    "perturbed and all kinds 1:2": Candidate(weights=(1, 2)),
    "all kinds alone": Candidate(weights=(0, 1)),
    "chosen kinds alone": Candidate(weights=(0, 1), kinds=CHOSEN),
    "nothing fitted: mean of columns": Candidate(weights=(0, 0)),
    "1:1, squared distance": Candidate(weights=(1, 1), kinds=CHOSEN, power=2),
    **{f"1:1, {kind} alone": Candidate(weights=(1, 1), kinds=(kind,)) for kind in KINDS},
    **{
        f"1:1, without {kind}": Candidate(
            weights=(1, 1), kinds=tuple(own for own in CHOSEN if own != kind)
        )
        for kind in CHOSEN
    },
    **{
        f"{name}, {column} too": Candidate((*_SHIPPED, column), weights=weights, kinds=CHOSEN)
        for name, weights in (("perturbed", (1, 0)), ("1:1", (1, 1)))
        for column in (
            "gen of mixture", "entropy of mixture", "odds of mixture", "class field", "gen", "knn",
            "nci", "log mahalanobis", "relative", "cosine", "fdbd", "vim", "rmds",
        )
    },
    **{
        f"1:{weight}, {column} too, {name} in the distance": Candidate(
            (*_SHIPPED, column), distance, (1, weight), CHOSEN
        )
        for column in ("odds of mixture", "gen of mixture")
        for name, distance in (("class means", _WITHIN), ("means", _WHOLE))
        for weight in (1, 2)
    },
    **{
        f"1:1, {column} too, {name}squared distance": Candidate(
            (*_SHIPPED, column), distance, (1, 1), CHOSEN, power=2
        )
        for column in ("odds of mixture", "gen of mixture")
        for name, distance in (("", ("shipped distance",)), ("means in the ", _WHOLE))
    },
}  # fmt: skip

#: What the distance may be taken of beside the residuals: distances of whole layers from the mean
#: of all rows and from the nearest class mean, by their covariance or number by number.
BESIDE = {
    "means": ("whole layers",),
    "class means": ("mahalanobis_layers",),
    "both": ("whole layers", "mahalanobis_layers"),
    "standardised": ("standardised",),
    "largest": ("largest",),
    "standardised and largest": ("standardised", "largest"),
}

#: What all rows have outside of some directions in the squared distance, and that of the last row
#: as a column. In a table of their own, beside the candidates that they were compared with.
OUTSIDE: dict[str, Candidate] = {
    **{name: CANDIDATES[name] for name in (BEFORE, "1:1, odds of mixture too, squared distance")},
    **{
        f"1:1, outside of 1/{share}": Candidate(
            ("energy", "density", f"last outside {share}", "odds of mixture"),
            ("shipped distance", f"outside_{share}"), (1, 1), CHOSEN, power=2,
        )
        for share in SHARES
    },
    **{
        f"1:1, outside of 1/{share} in the distance alone": Candidate(
            (*_SHIPPED, "odds of mixture"),
            ("shipped distance", f"outside_{share}"), (1, 1), CHOSEN, power=2,
        )
        for share in SHARES
    },
    **{
        f"1:1, outside of 1/8, {energy}": Candidate(
            (energy, "density", "last outside 8", "odds of mixture"),
            ("shipped distance", "outside_8"), (1, 1), CHOSEN, power=2,
        )
        for energy in BOUNDS
    },
    "1:1, means in the squared distance": CANDIDATES[
        "1:1, odds of mixture too, means in the squared distance"
    ],
    **{
        f"1:1, outside of 1/8, {name} too": Candidate(
            ("energy", "density", "last outside 8", "odds of mixture"),
            ("shipped distance", "outside_8", *more), (1, 1), CHOSEN, power=2,
        )
        for name, more in BESIDE.items()
    },
}  # fmt: skip

#: Kinds of sets that a novelty is judged by.
JUDGED = ("unknown classes", "far", "larger")

#: Single columns beside the peers.
COLUMNS = (
    "density", "class field", "odds of mixture", "entropy of mixture", "gen of mixture",
    "log mahalanobis", "relative", "cosine", "part",
)  # fmt: skip


def scores_of(dump: Dump, outside: bool) -> dict[str, Score]:
    """All candidates, fitted, the peers and the single columns; or those of `OUTSIDE`."""
    if outside:
        return {name: candidate.fit(dump) for name, candidate in OUTSIDE.items()}

    def single(column: str) -> Score:
        return lambda own: own[column][:, 0]

    return {
        **{name: candidate.fit(dump) for name, candidate in CANDIDATES.items()},
        **{name: single(name) for name in (*PEERS, *COLUMNS)},
    }


def table(rows: list[dict[str, object]], judged_by: str) -> list[str]:
    """Candidates by network, in the mean over seeds."""
    networks = list(dict.fromkeys(str(row["network"]) for row in rows))
    lines = ["| " + judged_by + " | " + " | ".join([*networks, "mean"]) + " |"]
    lines.append("| --- |" + " --- |" * (len(networks) + 1))
    for name in dict.fromkeys(str(row["novelty"]) for row in rows):
        means = [
            float(np.mean([r[judged_by] for r in rows if (r["novelty"], r["network"]) == key]))
            for key in ((name, network) for network in networks)
        ]
        shown = " | ".join(
            "" if np.isnan(value) else f"{value:.4f}".lstrip("0")
            for value in [*means, np.nanmean(means)]
        )
        title = f"**{name}**" if name in (BEFORE, NOW) else name
        lines.append(f"| {title} | {shown} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--outside", action="store_true", help="candidates of OUTSIDE alone")
    options = parser.parse_args()
    file_name = "outside" if options.outside else "left-out-classes"
    rows: list[dict[str, object]] = []
    for path in sorted(path for folder in options.data for path in folder.glob("*.npz")):
        dump = Dump(path)
        for name, score in scores_of(dump, options.outside).items():
            found = judged(dump, score)
            kept = {key: round(found[key], 4) for key in JUDGED}
            rows.append({"novelty": name, "network": dump.name, "seed": dump.seed, **kept})
        print(dump.name, dump.seed, f"accuracy {dump.accuracy:.3f}", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / f"{file_name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = [line for judged_by in JUDGED for line in table(rows, judged_by)]
    (options.output / f"{file_name}.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
