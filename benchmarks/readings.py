"""Kernel constants on real logits: poles in the data, order by density, regret of the width.

    python benchmarks/logits.py RUN --data DATA --networks mnist_lenet … --seeds 0 1 2
    python benchmarks/readings.py logits/*.npz > results/paper/readings.md

For each file of `benchmarks/logits.py` and each constant, the field as in the paper (6,000 random
training predictions, exact modes, orders 1 to 4):

- the poles of its modes between the 1 % and the 99 % quantile of ψ² over the training predictions,
- the median uncertainty in each tenth of the training predictions, sparsest to densest,
- the factor that `fit` chose, and what it loses against the best factor of the grid in ROC-AUC,
  averaged over clean images and seven corruptions.

With ``--rays > results/paper/rays.md`` instead: the share of the steps in which the uncertainty
falls along 300 rays from the mean through training predictions, from where they have passed every
training prediction to four times that distance, and the largest fall as a share of the ray's rise;
likewise along 300 rays in random directions.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paper_tables import table

from qipf import QIPF
from qipf.field.bandwidth import FACTORS
from qipf.field.potential import NORMALIZATIONS, log_kernel_constant
from qipf.metrics.error_detection import roc_auc
from qipf.progress import progress

#: Zeros of the Hermite polynomials H_2, H_3 and H_4 as values of ψ², by order; H_1 has none but 0.
POLES = {2: (0.5,), 3: (1.5,), 4: ((3 - math.sqrt(6)) / 2, (3 + math.sqrt(6)) / 2)}

ABOUT_RAYS = (
    "Share of the steps outwards in which the uncertainty falls, beyond all training predictions, "
    "and in brackets the largest fall as a share of a ray's rise.\n\n"
)

#: Rays of each kind, and places along a ray.
RAYS, STEPS = 300, 61

#: Test predictions of a file: clean, and under seven corruptions.
LEVELS = 8


def faithful(normalization: str, bandwidth: float | str = "cv") -> QIPF:
    return QIPF(
        reduction="random", normalization=normalization, bandwidth=bandwidth, fallback=False
    )


def reached(field: QIPF, log_density: NDArray) -> str:
    """The poles between the 1 % and the 99 % quantile of ψ², as text."""
    dimension = field.centers_.shape[1]
    constant = log_kernel_constant(field.normalization, field.bandwidth_, dimension)
    low, high = np.quantile(log_density, [0.01, 0.99]) + constant
    inside = [
        f"order {order} at ψ² = {pole:.2f}"
        for order, poles in POLES.items()
        for pole in poles
        if low < math.log(pole) < high
    ]
    return ", ".join(inside) or "none"


def by_density(uncertainty: NDArray, log_density: NDArray) -> NDArray:  # (10,)
    """Median uncertainty in each tenth of the predictions, from the sparsest to the densest.

    >>> by_density(np.arange(20.0), -np.arange(20.0))[[0, -1]].tolist()
    [18.5, 0.5]
    """
    tenths = np.array_split(np.argsort(log_density, kind="stable"), 10)
    return np.array([np.median(uncertainty[tenth]) for tenth in tenths])


def monotone(medians: NDArray) -> bool:
    """Whether no tenth's median exceeds that of a sparser one by a tenth of the range."""
    rise = np.max(medians - np.minimum.accumulate(medians))
    return bool(rise <= 0.1 * np.ptp(medians))


def falls(field: QIPF, train: NDArray, directions: NDArray) -> str:
    """Share of the steps outwards in which the uncertainty falls, and the largest fall."""
    mean = train.mean(0)
    units = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    farthest = ((train - mean) @ units.T).max(0)  # beyond it a ray has left the data
    steps = farthest[:, None] * np.linspace(1, 4, STEPS)  # (rays, steps)
    places = mean + steps[:, :, None] * units[:, None]
    flat = places.reshape(-1, train.shape[1]).astype(train.dtype)
    along = field.uncertainty(flat).reshape(steps.shape)
    fall = np.maximum.accumulate(along, axis=1) - along
    down = (np.diff(along, axis=1) < -1e-6 * np.abs(along[:, 1:])).mean()
    return f"{down:.2%} ({(fall.max(1) / np.ptp(along, axis=1)).max():.1%})"


def mean_area(field: QIPF, logits: NDArray, wrong: NDArray) -> float:
    scores = field.uncertainty(logits)
    parts = zip(np.array_split(scores, LEVELS), np.array_split(wrong, LEVELS), strict=True)
    return float(np.mean([roc_auc(score, errors) for score, errors in parts]))


def rows(path: Path) -> Iterator[list[object]]:
    with np.load(path) as file:
        train, labels = file["train_logits"], file["train_labels"]
        test, wrong = file["test_logits"], file["test_wrong"]
    for normalization in NORMALIZATIONS:
        field = faithful(normalization).fit(train, labels)
        density, uncertainty = field.log_density(train), field.uncertainty(train)
        medians = by_density(uncertainty, density)
        own = mean_area(field, test, wrong)
        width = field.bandwidth_ / field.bandwidth_factor_
        areas = {
            factor: mean_area(faithful(normalization, factor * width).fit(train), test, wrong)
            for factor in FACTORS
        }
        best = max(areas, key=lambda factor: areas[factor])
        order = f"{'yes' if monotone(medians) else 'no'}: " + " ".join(f"{m:.3g}" for m in medians)
        yield [
            path.stem, normalization, reached(field, density), order,
            f"{field.bandwidth_factor_:.2g} ({own:.3f})", f"{best:.2g} ({areas[best]:.3f})",
            f"{max(0.0, areas[best] - own):.4f}",
        ]  # fmt: skip


def rays(path: Path) -> Iterator[list[object]]:
    with np.load(path) as file:
        train, labels = file["train_logits"], file["train_labels"]
    for normalization in NORMALIZATIONS:
        field = faithful(normalization).fit(train, labels)
        random = np.random.RandomState(0)
        through = train[random.permutation(len(train))[:RAYS]] - train.mean(0)
        anywhere = random.normal(size=(RAYS, train.shape[1]))
        outwards = [falls(field, train, directions) for directions in (through, anywhere)]
        yield [path.stem, normalization, *outwards]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("logits", type=Path, nargs="+")
    parser.add_argument("--rays", action="store_true")
    options = parser.parse_args()
    measure = rays if options.rays else rows
    found = [row for path in progress(options.logits, "networks") for row in measure(path)]
    head = [
        "network", "kernel", "poles inside 1 % to 99 % of ψ²",
        "median uncertainty by tenth, sparsest to densest: falls?", "chosen factor (ROC-AUC)",
        "best factor (ROC-AUC)", "regret",
    ]  # fmt: skip
    if options.rays:
        head = ["network", "kernel", "along rays through the data", "along random rays"]
    sys.stdout.write(
        "# Kernel constants on the networks of the suite\n\n"
        "Written by `benchmarks/readings.py`.\n\n" + options.rays * ABOUT_RAYS + table(head, found)
    )


if __name__ == "__main__":
    main()
