"""Coverage of the intervals of the estimated accuracy, in 360 settings.

    python benchmarks/accuracy_intervals.py            # about 15 minutes on one core
    python benchmarks/accuracy_intervals.py --draws 200 --output /tmp

A setting is a population (how the error rate depends on the uncertainty), a size of the held-out
set, a size of the window and a method. Each draw takes a held-out set and a window from the
population, and asks whether the 95 % interval contains the accuracy of the window. Writes
results/accuracy-intervals.csv: coverage with its exact binomial interval (Clopper-Pearson, 95 %)
and the mean width. It fails if a coverage is significantly below 95 %: if so few hits have a
probability of less than 5 % under a coverage of 95 %, divided by the number of settings.
"""

import argparse
import csv
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, binomtest

from qipf.calibration.accuracy import METHODS, AccuracyEstimator
from qipf.progress import progress

Array = NDArray[np.float64]

CONFIDENCE = 0.95
HELD_OUT = (100, 300, 1000)
WINDOWS = (50, 100, 1000, 5000)


def logistic(slope: float, offset: float) -> Callable[[Array], Array]:
    """Error rate that rises with the uncertainty."""
    return lambda u: 1 / (1 + np.exp(-slope * (u - offset)))


#: Error rate at each uncertainty, which is uniform from 0 to 1, by population.
POPULATIONS: dict[str, Callable[[Array], Array]] = {
    "even": logistic(6, 0.5),
    "usual": logistic(8, 0.8),
    "accurate": logistic(12, 1.05),
    "very accurate": logistic(20, 1.2),
    "known errors": lambda u: (u > 0.93).astype(float),
    "unrelated": lambda u: np.full_like(u, 0.1),
    "unrelated and rare": lambda u: np.full_like(u, 0.01),
    "misleading": logistic(-8, 0.2),
    "waves": lambda u: 0.15 + 0.15 * np.sin(25 * u),
    "five values": logistic(8, 0.8),
}


def draw(population: str, count: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
    """Uncertainties and errors of so many predictions."""
    uncertainty = rng.uniform(size=count)
    if population == "five values":
        uncertainty = np.ceil(uncertainty * 5) / 5
    return uncertainty, rng.uniform(size=count) < POPULATIONS[population](uncertainty)


def coverage(
    population: str, held_out: int, window: int, method: str, draws: int, seed: int
) -> tuple[int, float]:
    """Number of draws whose interval contains the accuracy of the window, and the mean width."""
    rng = np.random.default_rng(seed)
    hits, width = 0, 0.0
    for _ in range(draws):
        estimator = AccuracyEstimator(*draw(population, held_out, rng), method)
        uncertainty, wrong = draw(population, window, rng)
        found = estimator.estimate(uncertainty, CONFIDENCE)
        hits += found.low <= 1 - wrong.mean() <= found.high
        width += (found.high - found.low) / draws
    return hits, width


def main() -> None:
    """Simulate all settings, write the table and say which fail."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    settings = list(product(POPULATIONS, HELD_OUT, WINDOWS, METHODS))
    rows, failed = [], 0
    for seed, setting in enumerate(progress(settings, "simulating", len(settings))):
        hits, width = coverage(*setting, options.draws, seed)
        exact = binomtest(hits, options.draws).proportion_ci()
        failed += binom.cdf(hits, options.draws, CONFIDENCE) < 0.05 / len(settings)
        rows.append((*setting, options.draws, hits / options.draws, exact.low, exact.high, width))
    names = [
        "population",
        "held_out",
        "window",
        "method",
        "draws",
        "coverage",
        "low",
        "high",
        "mean_width",
    ]
    with open(options.output / "accuracy-intervals.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([(*row[:5], *(f"{x:.4f}" for x in row[5:])) for row in rows])
    found = np.array([row[5] for row in rows])
    print(
        f"{len(rows)} settings, {options.draws} draws each: coverage {found.min():.1%} to "
        f"{found.max():.1%}, {(found < CONFIDENCE).sum()} below {CONFIDENCE:.0%}, {failed} "
        "significantly"
    )
    for row in sorted(rows, key=lambda row: row[5])[:10]:
        print(*row[:4], f"{row[5]:.3f} width {row[8]:.3f}")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
