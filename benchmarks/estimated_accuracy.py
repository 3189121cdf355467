"""How far estimated accuracies are off at all levels of a suite.

    python benchmarks/estimated_accuracy.py --suite paper --run runs/paper --data DATA --seeds 0 1 2

`LayeredQIPF` as it comes is calibrated on one half of the clean test inputs; windows are 1,000 of
the other half, in random order, as they are and under every corruption and level. Beside
`qipf.estimate_accuracy` its estimate without the predicted classes (`label_shift=True`), the mean
confidence of the softmax, and average thresholded confidence (Garg et al. 2022) on the same halves.
Networks are those of the run, or are trained into it. Writes results/estimated-accuracy.csv, where
rows of other networks and seeds stay, and prints the table; without networks only that.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import qipf
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, find
from qipf.progress import progress

Row = dict[str, str]

#: Predictions of a window, and points of accuracy that a mild shift costs at most.
WINDOW, MILD = 1000, 0.05

ESTIMATES = ("estimate", "without_classes", "confidence", "threshold")


def rows_of(bench: NetworkBench, reduction: str) -> Iterator[Row]:
    """A line for each level."""
    data, suite = bench.dataset, bench.setting.suite
    images, labels = unit_range(data.train_images), data.train_labels
    model = qipf.LayeredQIPF(bench.network, reduction=reduction, random_state=suite.seed)
    model.fit(zip(images.split(1000), labels.split(1000), strict=True))
    # some sets are sorted by class, and a window must not have classes of its own
    order = torch.randperm(
        len(bench.test_labels), generator=torch.Generator().manual_seed(suite.seed)
    )
    clean, truth = bench.inputs(CLEAN, 0.0)[order], bench.test_labels[order]
    half = len(truth) // 2
    held_out = list(zip(clean[half:].split(1000), truth[half:].split(1000), strict=True))
    model.calibrate(held_out)
    softmax = [bench.network(part).softmax(1).amax(1) for part, _ in held_out]
    wrong = [bench.network(part).argmax(1).cpu() != own for part, own in held_out]
    confident = qipf.AccuracyEstimator(-torch.cat(softmax), torch.cat(wrong))
    corrupted = suite.levels_of(bench.spec)
    levels = [(corruption, level) for corruption, own in corrupted.items() for level in own]
    for corruption, level in progress(levels, bench.spec.name):
        found = model(bench.inputs(corruption, level)[order[: min(WINDOW, half)]])
        right = found.predicted.cpu() == truth[: len(found.predicted)]
        top = found.logits.softmax(1).amax(1)
        estimate = qipf.estimate_accuracy(found, model)
        without_classes = qipf.estimate_accuracy(found, model, label_shift=True)
        yield {
            "suite": suite.name,
            "network": bench.spec.name,
            "seed": str(suite.seed),
            "corruption": corruption,
            "level": f"{level:g}",
            "reduction": reduction,
            "accuracy": f"{right.double().mean():.4f}",
            "estimate": f"{estimate.accuracy:.4f}",
            "low": f"{estimate.low:.4f}",
            "high": f"{estimate.high:.4f}",
            "novel": f"{estimate.novel:.4f}",
            "surplus": f"{estimate.surplus:.4f}",
            "reliable": str(estimate.reliable),
            "without_classes": f"{without_classes.accuracy:.4f}",
            "confidence": f"{top.mean():.4f}",
            "threshold": f"{confident.estimate(-top).accuracy:.4f}",
        }


def table(rows: list[Row]) -> str:
    """Mean absolute errors in points by network, and shares of intervals that hold."""
    lines = [
        "| network | seeds | estimate | without predicted classes | mean confidence | thresholded "
        "confidence | reliable windows | others | intervals that hold, reliable and mild shift |",
        "| --- |" + " --- |" * 8,
    ]
    means = []
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == network]
        truth = np.array([float(row["accuracy"]) for row in own])
        off = {k: 100 * np.abs([float(r[k]) for r in own] - truth) for k in ESTIMATES}
        reliable = np.array([row["reliable"] == "True" for row in own])
        holds = np.array([float(r["low"]) <= float(r["accuracy"]) <= float(r["high"]) for r in own])
        clean = {r["seed"]: float(r["accuracy"]) for r in own if r["corruption"] == CLEAN}
        mild = reliable & (truth >= np.array([clean[row["seed"]] for row in own]) - MILD)
        means.append([off[k].mean() for k in ESTIMATES])
        inside = f"{holds[mild].sum()} of {mild.sum()}"
        numbers = [*means[-1], off["estimate"][reliable].mean(), off["estimate"][~reliable].mean()]
        seeds = len({row["seed"] for row in own})
        shown = " | ".join(f"{number:.1f}" for number in numbers)
        lines.append(f"| {network} | {seeds} | {shown} | {inside} |")
    shown = " | ".join(f"{number:.1f}" for number in np.mean(means, axis=0))
    return "\n".join([*lines, f"| mean | | {shown} | | | |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", default="paper")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--reduction", default="distilled", help="as in LayeredQIPF")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/estimated-accuracy.csv"))
    options = parser.parse_args()
    for network in options.networks:
        for seed in options.seeds:
            suite = replace(find(options.suite), seed=seed)
            setting = Setting(suite, options.run, options.device, options.data)
            bench = NetworkBench(setting, network)
            bench.network.eval()  # trained now, if it has to be: not without gradients
            with torch.no_grad():
                rows = list(rows_of(bench, options.reduction))
            old = read(options.output)
            kept = [r for r in old if (r["network"], r["seed"]) != (network, str(seed))]
            with options.output.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(kept + rows)
    print(table(read(options.output)))


def read(path: Path) -> list[Row]:
    """The rows of an earlier run."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
