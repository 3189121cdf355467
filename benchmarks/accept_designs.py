"""How much coverage each valid search for a certified threshold keeps, by simulation.

    python benchmarks/accept_designs.py               # about a minute on one core
    python benchmarks/accept_designs.py --draws 2     # to see that it works

Held-out sets of 300 to 10,000 predictions, risks of 1, 5 and 10 %, and error rates that rise with
the uncertainty in eight ways. For each: the share of the population that the design accepts, over
what the same binomial test accepts if every rank is tried at full level, which is not valid.
Settings in which that accepts less than a tenth are left out. Writes results/accept-designs.csv.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, expit

from qipf.calibration.fixed_sequence import FORGIVEN, certified_ranks, fewest
from qipf.progress import progress

LEVEL = 0.05
STARTS = [(0,), (1,), (2,), (4,), (1, 4), (1, 8), (0, 3, 12), FORGIVEN, (2, 8, 24), (1, 3, 9, 27)]
GRID = (np.arange(4000) + 0.5) / 4000

Wrong = NDArray[np.int64]


def without_correction(wrong: Wrong, risk: float) -> int:
    passed = bdtr(wrong.cumsum(), np.arange(1, len(wrong) + 1), risk) <= LEVEL
    return _last(passed)


def bonferroni(wrong: Wrong, risk: float, ranks: int = 8) -> int:
    errors, first = wrong.cumsum(), fewest(0, risk, LEVEL / ranks)
    if first > len(wrong):
        return 0
    tried = np.unique(np.geomspace(first, len(wrong), ranks).round().astype(int))
    passed = tried[bdtr(errors[tried - 1], tried, risk) <= LEVEL / ranks]
    return int(passed[-1]) if len(passed) else 0


def halved(wrong: Wrong, risk: float, rng: np.random.Generator) -> int:
    """One half proposes the threshold that would just pass on the other, which tests it."""
    mine = rng.random(len(wrong)) < 0.5
    proposed = np.flatnonzero(mine)[: without_correction(wrong[mine], risk)]
    if not len(proposed):
        return 0
    tested = wrong[: proposed[-1] + 1][~mine[: proposed[-1] + 1]]
    passed = len(tested) > 0 and bdtr(tested.sum(), len(tested), risk) <= LEVEL
    return int(proposed[-1]) + 1 if passed else 0


def coverages(count: int, risk: float, rate: float, slope: float, draws: int) -> dict[str, float]:
    """Mean share of the population accepted, by design."""
    rng = np.random.default_rng([count, int(1e4 * risk), int(1e4 * rate), int(slope)])
    chances = expit(slope * (GRID - 0.5) + _intercept(rate, slope))
    total: dict[str, float] = {}
    for _ in range(draws):
        uncertainty = np.sort(rng.random(count))
        wrong = (rng.random(count) < np.interp(uncertainty, GRID, chances)).astype(np.int64)
        found = {
            "every rank at full level (not valid)": without_correction(wrong, risk),
            "eight ranks, Bonferroni": bonferroni(wrong, risk),
            "one half proposes, one tests": halved(wrong, risk, rng),
        }
        for starts in STARTS:
            certified = certified_ranks(wrong, risk, LEVEL, starts)
            found[f"walks that forgive {', '.join(map(str, starts))}"] = _last(certified)
        for name, accepted in found.items():
            share = uncertainty[accepted - 1] if accepted else 0.0
            total[name] = total.get(name, 0.0) + float(share) / draws
    return total


def _last(passed: NDArray[np.bool_]) -> int:
    ranks = np.flatnonzero(passed)
    return int(ranks[-1]) + 1 if len(ranks) else 0


def _intercept(rate: float, slope: float) -> float:
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        below = expit(slope * (GRID - 0.5) + middle).mean() < rate
        low, high = (middle, high) if below else (low, middle)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100, help="held-out sets per setting")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    shapes = [(0.02, 6), (0.02, 12), (0.1, 6), (0.1, 12), (0.3, 8), (0.3, 16), (None, 4), (0.5, 1)]
    settings = list(itertools.product([300, 1000, 2000, 10_000], [0.01, 0.05, 0.1], shapes))
    kept: dict[str, list[float]] = {}
    for count, risk, (rate, slope) in progress(settings, "simulating"):
        # two shapes follow the risk: errors just rarer than it, and half as frequent
        rate = {None: 0.8 * risk, 0.5: 0.5 * risk}.get(rate, rate)
        found = coverages(count, risk, rate, slope, options.draws)
        best = next(iter(found.values()))
        if best >= 0.1:  # where hardly anything can be certified, ratios say nothing
            for name, coverage in found.items():
                kept.setdefault(name, []).append(coverage / best)
    rows = [
        {
            "design": name,
            "coverage_kept": round(float(np.mean(kept[name])), 4),
            "tenth_percentile": round(float(np.quantile(kept[name], 0.1)), 4),
            "settings": len(kept[name]),
            "draws": options.draws,
        }
        for name in sorted(kept, key=lambda name: -float(np.mean(kept[name])))
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "accept-designs.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(path.read_text(), end="")


if __name__ == "__main__":
    main()
