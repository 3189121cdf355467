"""Whether SVI has learned: its clean accuracy beside that of the network it started from.

    python benchmarks/svi.py --run runs/paper --data DATA --seeds 1 2

Networks and variational networks that the run's folder holds are read, others trained there.
Writes results/svi.csv.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import torch

from qipf.bench.methods import Batch
from qipf.bench.methods.network import unit_range
from qipf.bench.methods.sampling import PredictiveEntropy
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import find

METHODS = ("svi_entropy", "svi_ll_entropy")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", default="paper")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, default=Path("results/svi.csv"))
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        suite = replace(find(options.suite), seed=seed)
        setting = Setting(suite, options.run, options.device, options.data)
        for network in suite.networks:
            found = accuracies(setting, network.name)
            rows.append({"network": network.name, "seed": seed, **found})
            print(rows[-1], flush=True)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def accuracies(setting: Setting, network: str) -> dict[str, float]:
    """Shares of clean test images that the network and its variational forms have right."""
    bench = NetworkBench(setting, network)
    labels = bench.dataset.test_labels.to(setting.device)
    images = unit_range(bench.dataset.test_images.to(setting.device))
    batch = Batch.of(bench.network, images)
    found = {"deterministic": float((batch.predicted == labels).double().mean())}
    for name in METHODS:
        method = bench.method(name)
        assert isinstance(method, PredictiveEntropy)
        answer = method.samples(batch).mean.argmax(1)
        found[name.removesuffix("_entropy")] = float((answer == labels).double().mean())
    return found


if __name__ == "__main__":
    main()
