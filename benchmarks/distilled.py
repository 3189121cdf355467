"""What LayeredQIPF loses with few centres, on trained networks of a suite's run.

    python benchmarks/distilled.py --suite paper --run runs/paper --data DATA --seeds 0 1 2
    python benchmarks/distilled.py --suite modern --run runs/modern --data DATA

All training examples as centres, a coreset of 1,500 and 1,500 distilled centres. Mean ROC-AUC and
PR-AUC of error detection over the levels of each of the suite's corruptions, then over the
corruptions; seconds to fit, and bytes of the file. Writes results/distilled.csv, where the rows of
other networks, seeds and cases stay, and prints the means over the seeds and what is lost against
all examples.
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
from qipf.bench.methods import CleanData
from qipf.bench.methods.network import ROWS
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, find
from qipf.metrics.error_detection import evaluate

Row = dict[str, str]

CASES: dict[str, dict[str, Any]] = {
    "all examples": {"reduction": "random"},
    "coreset of 1,500": {"reduction": "coreset", "max_centers": 1500},
    "distilled": {"reduction": "distilled"},
}


def rows_of(bench: NetworkBench, cases: list[str]) -> Iterator[Row]:
    """A line for each case."""
    data, net, suite = bench.dataset, bench.network, bench.setting.suite
    clean = CleanData(net, data.train_images, data.train_labels)
    levels = dict.fromkeys(
        (task.corruption, task.level)
        for task in suite.tasks()
        if task.network == bench.spec.name and task.corruption not in (CLEAN, *suite.unseen)
    )
    for case in cases:
        options = CASES[case]
        start = time.perf_counter()
        model = qipf.LayeredQIPF(net, random_state=suite.seed, **options).fit(clean.batches())
        seconds = time.perf_counter() - start
        found: dict[str, list[tuple[float, float]]] = {}
        for corruption, level in levels:
            parts = [model(part) for part in bench.inputs(corruption, level).split(ROWS)]
            predicted = torch.cat([part.predicted for part in parts]).cpu()
            wrong = (predicted != bench.test_labels).numpy()
            if wrong.all() or not wrong.any():
                continue
            uncertainty = torch.cat([part.uncertainty for part in parts]).cpu().numpy()
            metrics = evaluate(uncertainty, wrong)
            found.setdefault(corruption, []).append((metrics["roc_auc"], metrics["pr_auc"]))
        means = np.array([np.mean(pairs, axis=0) for pairs in found.values()]).mean(0)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.qipf"
            model.save(file)
            size = file.stat().st_size
        yield {
            "network": bench.spec.name,
            "seed": str(suite.seed),
            "case": case,
            "test_inputs": str(len(bench.test_labels)),
            "layers": str(len(model.fields_)),
            "centers": str(max((len(field.embeddings) for field in model.fields_), default=0)),
            "roc_auc": f"{means[0]:.5f}",
            "pr_auc": f"{means[1]:.5f}",
            "megabytes": f"{size / 1e6:.2f}",
            "seconds_to_fit": f"{seconds:.1f}",
            "device": str(next(net.parameters()).device.type),
        }


def summary(rows: list[Row]) -> Iterator[str]:
    """For each network and case the means over seeds, and what is lost against all examples."""
    for network in dict.fromkeys(row["network"] for row in rows):
        means = {}
        for case in CASES:
            own = [row for row in rows if (row["network"], row["case"]) == (network, case)]
            if own:
                pairs = [(float(row["roc_auc"]), float(row["pr_auc"])) for row in own]
                means[case] = np.mean(pairs, axis=0)
        for case, mean in means.items():
            lost = mean - means.get("all examples", mean)
            yield (
                f"{network:18} {case:18} ROC-AUC {mean[0]:.4f} ({lost[0]:+.4f})  "
                f"PR-AUC {mean[1]:.4f} ({lost[1]:+.4f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder with trained networks")
    parser.add_argument("--suite", default="paper")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", help="all of the suite, if not given")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--images", type=int, help="largest number of test inputs")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/distilled.csv"))
    options = parser.parse_args()
    suite = find(options.suite)
    if options.images is not None:
        suite = replace(suite, most=options.images)
    rows: list[Row] = []
    if options.output.exists():
        with options.output.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
    for network in options.networks or [spec.name for spec in suite.networks]:
        for seed in options.seeds:
            seeded = replace(suite, seed=seed)
            setting = Setting(seeded, options.run, options.device, options.data)
            new = []
            for row in rows_of(NetworkBench(setting, network), options.cases):
                new.append(row)
                print(*row.values(), sep="  ", flush=True)
            mine = [(network, str(seed), case) for case in options.cases]
            rows = [r for r in rows if (r["network"], r["seed"], r["case"]) not in mine] + new
            with options.output.open("w", newline="") as lines:
                writer = csv.DictWriter(lines, list(new[0]))
                writer.writeheader()
                writer.writerows(rows)
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
