"""Whether qipf_plus is ahead beyond chance: paired bootstrap over images in every cell.

    python benchmarks/significance.py runs/modern
    python benchmarks/significance.py runs/modern --pack ranks.npz   # ranks only, to carry them
    python benchmarks/significance.py ranks.npz

A cell is a network under a corruption; its number is the area (ROC or precision-recall) averaged
over levels and seeds. The test images are drawn anew with replacement, the same draw for all
methods, levels and seeds of a network; the difference of two methods over many draws gives its
95 % interval. So the intervals speak of other images, not of other training runs. The peers are the
five of one pass that are strongest in the cell, and the ensembles, where they were scored. Writes
results/significance.csv, in which other networks stay.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from qipf.bench.suites import CLEAN
from qipf.progress import progress
from qipf.reporting.run.results import Run

OURS = "qipf_plus"
PEERS = ("stacked", "entropy", "nci", "she", "gen", "knn", "vim", "react", "max_logit")
ENSEMBLES = ("ensemble_entropy", "ensemble_log_odds")
STRONGEST = 5
AREAS = ("roc_auc", "pr_auc")


def areas(
    uncertainty: NDArray,  # (n,)
    wrong: NDArray,  # (n,) bool
    draws: NDArray,  # (n, B) how often each image was drawn
) -> NDArray:  # (2, B)
    """ROC-AUC and average precision under every draw; NaN where it has no errors, or only errors.

    >>> score, wrong = np.array([0.1, 0.2, 0.2, 0.9]), np.array([False, False, True, True])
    >>> areas(score, wrong, np.ones((4, 1), np.float32)).ravel().round(4)
    array([0.875 , 0.8333])
    """
    order = np.argsort(uncertainty, kind="stable")
    starts = np.flatnonzero(np.diff(uncertainty[order], prepend=-np.inf))
    drawn, bad = draws[order], wrong[order][:, None]
    errors = np.add.reduceat(drawn * bad, starts)  # by distinct uncertainty, rising
    rights = np.add.reduceat(drawn * ~bad, starts)
    below = np.cumsum(rights, axis=0)
    caught, flagged = (np.cumsum(part[::-1], axis=0)[::-1] for part in (errors, errors + rights))
    total = errors.sum(0, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        pairs = (errors * (below - rights / 2)).sum(0, dtype=np.float64)
        precision = np.where(flagged > 0, caught / flagged, 0)
        average = (errors * precision).sum(0, dtype=np.float64) / total
        return np.stack([pairs / (total * below[-1].astype(np.float64)), average])


class Ranks:
    """Packed ranks, read as the scores of a run."""

    def __init__(self, path: Path) -> None:
        self._arrays = np.load(path)
        keys = [name.split("/") for name in self._arrays.files]
        self._keys = {tuple(key) for key in keys}
        self.networks = list(dict.fromkeys(key[0] for key in keys))
        self.seeds = sorted({int(key[2]) for key in keys})

    def corruptions(self, network: str) -> list[str]:
        """Those of a network, by name."""
        return sorted({k[1] for k in self._keys if k[0] == network} - {CLEAN})

    def scores(self, network: str, corruption: str, seed: int) -> dict[float, Any]:
        """Ranks by method, and which predictions are wrong, by level."""
        found: dict[float, Any] = {}
        for key in sorted(self._keys):
            if key[:3] == (network, corruption, str(seed)) and key[4] == OURS:
                own = {k[4]: self._arrays["/".join(k)] for k in self._keys if k[:4] == key[:4]}
                wrong = np.unpackbits(own.pop("wrong"), count=len(own[OURS])).astype(bool)
                found[float(key[3])] = own, wrong
        return found


def pack(run: Run, path: Path) -> None:
    """Write the ranks of our own scores and of the peers'."""
    arrays = {}
    for network, corruption, seed in {
        (r["network"], r["corruption"], r["seed"]) for r in run.records
    }:
        for level, (scores, wrong) in run.scores(network, corruption, seed).items():
            place = f"{network}/{corruption}/{seed}/{level}"
            arrays[f"{place}/wrong"] = np.packbits(wrong)
            for name in {OURS, *PEERS, *ENSEMBLES} & set(scores):
                arrays[f"{place}/{name}"] = rankdata(scores[name], "dense").astype(np.uint16)
    np.savez_compressed(path, **arrays)


def rows_of(run: Run | Ranks, count: int) -> Iterator[dict[str, Any]]:
    """A line for each network, corruption, area and peer."""
    for network in run.networks:
        random = np.random.default_rng(0)
        draws: NDArray | None = None
        for corruption in progress(run.corruptions(network), network):
            found: dict[str, list[NDArray]] = {name: [] for name in (OURS, *PEERS, *ENSEMBLES)}
            for seed in run.seeds:
                for scores, wrong in run.scores(network, corruption, seed).values():
                    if draws is None:  # the images themselves first, then draws of them
                        n = len(wrong)
                        every = random.multinomial(n, np.full(n, 1 / n), size=count)
                        every = np.concatenate([np.ones((1, n)), every])
                        draws = np.ascontiguousarray(every.T, np.float32)
                    for name in set(found) & set(scores):
                        found[name].append(areas(scores[name], wrong, draws))
            means = {name: np.nanmean(kept, axis=0) for name, kept in found.items() if kept}
            for place, area in enumerate(AREAS):
                peers = sorted(set(PEERS) & set(means), key=lambda m: -means[m][place][0])
                ensembles = [name for name in ENSEMBLES if name in means]
                for peer in [*peers[:STRONGEST], *ensembles]:
                    ours, theirs = means[OURS][place], means[peer][place]
                    low, high = np.quantile((ours - theirs)[1:], (0.025, 0.975))
                    yield {
                        "network": network,
                        "corruption": corruption,
                        "area": area,
                        "peer": peer,
                        OURS: ours[0],
                        "peer_area": theirs[0],
                        "difference": ours[0] - theirs[0],
                        "low": low,
                        "high": high,
                        "verdict": "ahead" if low > 0 else "behind" if high < 0 else "undecided",
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs, or a file of ranks")
    parser.add_argument("--pack", type=Path, metavar="FILE")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("-o", "--output", type=Path, default=Path("results/significance.csv"))
    options = parser.parse_args()
    ranks = options.runs[0].suffix == ".npz"
    run = Ranks(options.runs[0]) if ranks else Run(*options.runs)
    if options.pack and isinstance(run, Run):
        pack(run, options.pack)
        return
    rows = list(rows_of(run, options.draws))
    kept = []
    if options.output.exists():
        with options.output.open(newline="") as file:
            kept = [r for r in csv.DictReader(file) if r["network"] not in run.networks]
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in [*kept, *rows]:
            writer.writerow({k: f"{v:.5f}" if isinstance(v, float) else v for k, v in row.items()})
    counts = Counter((row["area"], row["peer"], row["verdict"]) for row in rows)
    for (area, peer, verdict), number in sorted(counts.items()):
        print(f"{area:8} against {peer:17} {verdict:10} in {number} cells")
    for row in rows:
        if row["verdict"] != "ahead":
            cell = f"{row['network']} {row['corruption']} {row['area']} {row['peer']}"
            print(
                f"{row['verdict']}: {cell} {row['difference']:+.4f} "
                f"[{row['low']:+.4f}, {row['high']:+.4f}]",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
