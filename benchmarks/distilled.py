"""What LayeredQIPF loses with few centres, on networks of a finished paper run.

    python benchmarks/distilled.py --run runs/paper --data DATA --networks kmnist10k_lenet

All training examples as centres, a coreset of 1,000 and 1,000 distilled centres. Mean ROC-AUC and
PR-AUC of error detection over the levels of the paper's corruptions, seconds of the processor
beside those of reading the network's layers, and bytes of the file. Writes results/distilled.csv;
the rows of other networks and seeds stay.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qipf
from qipf.bench.corruptions import corrupt
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, find
from qipf.metrics.error_detection import evaluate

CASES: dict[str, dict[str, Any]] = {
    "all examples": {},
    "coreset of 1,000": {"reduction": "coreset", "max_centers": 1000},
    "distilled to 1,000": {"reduction": "distilled", "max_centers": 1000},
}


def rows_of(bench: NetworkBench, images: int) -> Iterator[dict[str, str]]:
    """A line for each case."""
    data, net = bench.dataset, bench.network
    train = [
        (unit_range(part), labels)
        for part, labels in zip(
            data.train_images.split(1000), data.train_labels.split(1000), strict=True
        )
    ]
    shown = unit_range(data.test_images[:images]).to(net.device)
    truth = data.test_labels[:images]
    levels = dict.fromkeys(
        (t.corruption, t.level) for t in bench.setting.suite.tasks() if t.corruption != CLEAN
    )
    inputs = {level: corrupt(shown, *level) for level in levels}
    for case, options in CASES.items():
        start = time.process_time()
        model = qipf.LayeredQIPF(net, **options).fit(train)
        seconds = time.process_time() - start
        found: dict[str, list[tuple[float, float]]] = {}
        for (corruption, _), corrupted in inputs.items():
            prediction = model(corrupted)
            wrong = (prediction.predicted.cpu() != truth).numpy()
            if wrong.all() or not wrong.any():
                continue
            metrics = evaluate(prediction.uncertainty.cpu().numpy(), wrong)
            found.setdefault(corruption, []).append((metrics["roc_auc"], metrics["pr_auc"]))
        means = np.array([np.mean(pairs, axis=0) for pairs in found.values()]).mean(0)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.qipf"
            model.save(file)
            size = file.stat().st_size
        yield {
            "network": bench.spec.name,
            "seed": str(bench.setting.suite.seed),
            "case": case,
            "layers": str(len(model.fields_)),
            "roc_auc": f"{means[0]:.5f}",
            "pr_auc": f"{means[1]:.5f}",
            "megabytes": f"{size / 1e6:.2f}",
            "cpu_seconds_to_fit": f"{seconds:.0f}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("-o", "--output", type=Path, default=Path("results/distilled.csv"))
    options = parser.parse_args()
    suite = replace(find("paper"), seed=options.seed)
    setting = Setting(suite, options.run, options.device, options.data)
    for network in options.networks:
        rows = []
        for row in rows_of(NetworkBench(setting, network), options.images):
            rows.append(row)
            print(*row.values(), sep="  ", flush=True)
        old: list[dict[str, str]] = []
        if options.output.exists():
            with options.output.open(newline="") as lines:
                old = list(csv.DictReader(lines))
        mine = (network, str(options.seed))
        rows = [row for row in old if (row["network"], row["seed"]) != mine] + rows
        with options.output.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
