"""Whether peers' scores and densities help the uncertainty, far from the data or near it.

    python research/left_out_classes.py --data DATA -o OUT --networks ... --seed 0 1
    python research/error_columns.py OUT/*.npz > research/results/error-columns.md

Reads the tuning sets that `left_out_classes.py` wrote. The error model is fitted to every second
example without one group of perturbations, and judged on that group by the other examples: ROC-AUC
and average precision, mean over the groups. A prediction counts as wrong if it differs from that
for the same example when it is not perturbed: networks are nearly always right on these.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tuned_sets import GROUPS

from qipf.layered.error_model import LogOdds, balanced, fit_log_odds
from qipf.metrics.error_detection import evaluate

CLEAN = "clean"

#: Added to the mixture's log-odds far from the data; with "+" near it too.
ADDED = (
    "nothing",
    "energy",
    "energy+",
    "novelty",
    "nci",
    "she",
    "knn",
    "density",
    "softmax",
    "layers",
)


class Sets:
    """The tuning sets of a network."""

    def __init__(self, path: Path) -> None:
        arrays = np.load(path)
        names = dict.fromkeys(
            key.split("|")[0] for key in arrays.files if key.startswith("tuning/")
        )
        self.names = [name.removeprefix("tuning/") for name in names]
        self._arrays, self._layers = arrays, len(arrays["layers"])
        self._usual = self._read(CLEAN, "logits").argmax(1)

    def _read(self, name: str, column: str) -> Tensor:  # (n, columns)
        found = torch.from_numpy(self._arrays[f"tuning/{name}|{column}"]).double()
        return found if found.ndim > 1 else found[:, None]

    def wrong(self, name: str) -> Tensor:  # (n,)
        """Where the prediction is another one than that without the perturbation."""
        return self._read(name, "logits").argmax(1) != self._usual

    def added(self, name: str, what: str) -> Tensor:  # (n, columns)
        """Further columns by their name."""
        odds, unusual = self._read(name, "odds"), self._read(name, "unusual")
        known = {
            "nothing": odds[:, :0],
            "density": unusual[:, self._layers : self._layers + 1],
            "softmax": odds[:, 1:2],
            "layers": odds[:, 1:],
        }
        return known[what] if what in known else self._read(name, what)

    def columns(self, name: str, what: str) -> tuple[Tensor, Tensor, Tensor]:
        """The energy, and the columns far from the data and near it."""
        odds = self._read(name, "odds")
        more = self.added(name, what.rstrip("+"))
        near = torch.cat([odds, more], 1) if what.endswith("+") else odds
        return self._read(name, "energy"), torch.cat([odds[:, :1], more], 1), near


def fitted(sets: Sets, known: list[str], what: str) -> Callable[[str], Tensor]:
    """The uncertainty of a set's examples, fitted to the others of the known sets."""
    energy, far, near = (
        torch.cat([part[::2] for part in parts])
        for parts in zip(*(sets.columns(name, what) for name in known), strict=True)
    )
    wrong = torch.cat([sets.wrong(name)[::2] for name in known])
    counts = [len(sets.wrong(name)[::2]) for name in known]
    perturbed = torch.tensor([name != CLEAN for name in known]).repeat_interleave(
        torch.tensor(counts)
    )
    gate = _log_odds(energy, perturbed, balanced(perturbed))
    share = torch.sigmoid(gate(energy))
    of_far, of_near = _log_odds(far, wrong, share), _log_odds(near, wrong, 1 - share)

    def uncertainty(name: str) -> Tensor:
        energy, far, near = (part[1::2] for part in sets.columns(name, what))
        share = torch.sigmoid(gate(energy))
        return (1 - share) * of_near(near) + share * of_far(far)

    return uncertainty


def _log_odds(columns: Tensor, positive: Tensor, weights: Tensor) -> LogOdds:
    found = fit_log_odds(columns, positive, weights)
    assert found is not None
    return found


def areas(sets: Sets, what: str) -> np.ndarray:  # (2,)
    """Mean areas on the groups that were left out."""
    means = []
    for group in GROUPS:
        left = [name for name in sets.names if name.split()[0] in group]
        uncertainty = fitted(sets, [name for name in sets.names if name not in left], what)
        found = []
        for name in left:
            wrong = sets.wrong(name)[1::2].numpy()
            if wrong.any() and not wrong.all():
                values = evaluate(uncertainty(name).numpy(), wrong)
                found.append((values["roc_auc"], values["pr_auc"]))
        means.append(np.mean(found, axis=0))
    return np.mean(means, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    print("| added | " + " | ".join(file.stem for file in options.files) + " |")
    print("| --- |" + " --- |" * len(options.files))
    every = [Sets(file) for file in options.files]
    start = [areas(sets, ADDED[0]) for sets in every]
    for what in ADDED:
        cells = [
            f"{first[0]:.4f} / {first[1]:.4f}"
            if what == ADDED[0]
            else "{:+.4f} / {:+.4f}".format(*(areas(sets, what) - first))
            for sets, first in zip(every, start, strict=True)
        ]
        print(f"| {what} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
