"""Accuracy of the layers' mixture (`Prediction.mixture_class`) beside the network's, in any suite.

    python benchmarks/mixture_class.py                       # digits, which trains in seconds
    python benchmarks/mixture_class.py --suite paper --run runs/paper --data DATA [--device cuda]

`LayeredQIPF` as it comes, on test images as they are and under every corruption and level of the
suite. Networks are those of the run, or are trained into it. Adds the rows of a suite and seed to
results/mixture-class.csv, in place of those that were there.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import qipf
from qipf.bench.corruptions import corrupt
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, Suite, find
from qipf.progress import progress

Row = dict[str, str]


def measured(bench: NetworkBench, name: str, suite: Suite, count: int) -> Iterator[Row]:
    """Both accuracies at every level."""
    data, net = bench.dataset, bench.network
    images, labels = unit_range(data.train_images), data.train_labels
    model = qipf.LayeredQIPF(net).fit(zip(images.split(1000), labels.split(1000), strict=True))
    shown, truth = unit_range(data.test_images[:count]).to(net.device), data.test_labels[:count]
    levels = dict.fromkeys((task.corruption, task.level) for task in suite.tasks())
    for corruption, level in progress(list(levels), "corruptions"):
        inputs = shown if corruption == CLEAN else corrupt(shown, corruption, level)
        found = [model(part) for part in inputs.split(1000)]
        right = [
            float((torch.cat([getattr(p, kind) for p in found]).cpu() == truth).double().mean())
            for kind in ("predicted", "mixture_class")
        ]
        yield {
            "suite": suite.name,
            "seed": str(suite.seed),
            "network": name,
            "corruption": corruption,
            "level": f"{level:g}",
            "images": str(len(truth)),
            "network_accuracy": f"{right[0]:.4f}",
            "mixture_accuracy": f"{right[1]:.4f}",
        }


def report(rows: list[Row]) -> None:
    """Mean accuracies by suite and network: clean, and over all levels of all corruptions."""
    for case in dict.fromkeys((row["suite"], row["network"]) for row in rows):
        own = [row for row in rows if (row["suite"], row["network"]) == case]
        for kind in ("clean", "corrupted"):
            cells = [row for row in own if (row["corruption"] == CLEAN) == (kind == "clean")]
            net, mixture = (
                np.mean([float(row[f"{name}_accuracy"]) for row in cells])
                for name in ("network", "mixture")
            )
            better = np.mean([row["mixture_accuracy"] >= row["network_accuracy"] for row in cells])
            print(
                f"{' '.join(case):24} {kind:9} network {net:.1%}, mixture {mixture:.1%}; the "
                f"mixture is at least as good in {better:.0%} of {len(cells)} levels"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", default="digits")
    parser.add_argument("--run", type=Path, help="folder of a run; default: a temporary one")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("-o", "--output", type=Path, default=Path("results/mixture-class.csv"))
    options = parser.parse_args()
    suite = replace(find(options.suite), seed=options.seed)
    rows: list[Row] = []
    if options.output.exists():
        with options.output.open(newline="") as file:
            rows = list(csv.DictReader(file))
    same = (suite.name, str(suite.seed))
    rows = [row for row in rows if (row["suite"], row["seed"]) != same]
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(suite, options.run or Path(folder), options.device, options.data)
        for spec in suite.networks:
            rows += measured(NetworkBench(setting, spec.name), spec.name, suite, options.images)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    report(rows)


if __name__ == "__main__":
    main()
