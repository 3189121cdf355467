"""Whether qipf_plus is ahead beyond chance: paired bootstrap over images in every cell.

    python benchmarks/significance.py runs/three

A cell is a network under a corruption; its number is the area (ROC or precision-recall) averaged
over levels and seeds. The test images are drawn anew with replacement, the same draw for all
methods, levels and seeds of a network; the difference of two methods over many draws gives its
95 % interval. So the intervals speak of other images, not of other training runs. Writes
results/significance.csv.
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

from qipf.progress import progress
from qipf.reporting.run.results import Run

OURS = "qipf_plus"
PEERS = ("entropy", "energy", "ensemble_entropy")
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


def rows_of(run: Run, count: int) -> Iterator[dict[str, Any]]:
    """A line for each network, corruption, area and peer."""
    for network in run.networks:
        random = np.random.default_rng(0)
        draws: NDArray | None = None
        for corruption in progress(run.corruptions(network), network):
            found: dict[str, list[NDArray]] = {name: [] for name in (OURS, *PEERS)}
            for seed in run.seeds:
                for scores, wrong in run.scores(network, corruption, seed).values():
                    if draws is None:  # the images themselves first, then draws of them
                        n = len(wrong)
                        every = random.multinomial(n, np.full(n, 1 / n), size=count)
                        every = np.concatenate([np.ones((1, n)), every])
                        draws = np.ascontiguousarray(every.T, np.float32)
                    for name, kept in found.items():
                        kept.append(areas(scores[name], wrong, draws))
            means = {name: np.nanmean(kept, axis=0) for name, kept in found.items()}
            for peer in PEERS:
                for area, ours, theirs in zip(AREAS, means[OURS], means[peer], strict=True):
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
    parser.add_argument("runs", type=Path, nargs="+", help="folders of the paper suite, all seeds")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("-o", "--output", type=Path, default=Path("results/significance.csv"))
    options = parser.parse_args()
    rows = list(rows_of(Run(*options.runs), options.draws))
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
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
