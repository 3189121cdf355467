"""Whether SVI has learned: its clean accuracy beside that of the network it started from.

    python benchmarks/svi.py --run runs/paper --data DATA

Networks and variational networks that the run's folder holds are read, others trained there.
Writes results/svi.csv.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch

from qipf.bench.scoring import Contender, Setting
from qipf.bench.suites import find
from qipf.methods import Batch
from qipf.methods.layered import unit_range
from qipf.methods.sampling import PredictiveEntropy

METHODS = ("svi_entropy", "svi_ll_entropy")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", default="paper")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("results/svi.csv"))
    options = parser.parse_args()
    suite = find(options.suite)
    setting = Setting(suite, options.run, options.device, options.data)
    rows = []
    for network in suite.networks:
        contender = Contender(setting, network.name)
        labels = contender.dataset.test_labels.to(options.device)
        images = unit_range(contender.dataset.test_images.to(options.device))
        batch = Batch.of(contender.network, images)
        row = {
            "network": network.name,
            "deterministic": float((batch.predicted == labels).double().mean()),
        }
        for name in METHODS:
            method = contender.method(name)
            assert isinstance(method, PredictiveEntropy)
            answer = method.samples(batch).mean.argmax(1)
            row[name.removesuffix("_entropy")] = float((answer == labels).double().mean())
        rows.append(row)
        print(row, flush=True)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
