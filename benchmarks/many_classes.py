"""Many classes: time, memory and error detection of our models beside nearest neighbours.

    python benchmarks/many_classes.py
    python benchmarks/many_classes.py --device cuda

Made-up features of independent classes, (n, d): a class is a Gaussian cluster, and the logits are
those of a linear classifier that was estimated from half of the features' dimensions, so that it
errs where the features still tell the class. Every method runs in a process of its own. Memory is
the peak during fit and score above that of the loaded arrays; on a GPU, what PyTorch allocated.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from qipf import QIPF, FeatureQIPF

METHODS = ("largest logit", "entropy", "knn (scikit-learn)", "knn (torch)", "QIPF", "FeatureQIPF")

#: Neighbours of a query: the distance to the last of them is the score.
NEIGHBORS = 10


class Data(NamedTuple):
    """Features, logits and classes of training examples and of queries."""

    features: torch.Tensor  # (n, d)
    logits: torch.Tensor  # (n, classes)
    labels: torch.Tensor  # (n,)


def made_up(classes: int, rows: int, queries: int, dimension: int) -> tuple[Data, Data]:
    """Training examples and queries, half of which are noisier."""
    random = torch.Generator().manual_seed(0)
    means = torch.randn(classes, dimension, generator=random)
    seen = dimension // 2  # dimensions that the classifier uses
    parts = []
    for count, noisy in ((rows, 1.0), (queries, 1.6)):
        labels = torch.randint(classes, (count,), generator=random)
        noise = torch.randn(count, dimension, generator=random)
        scale = torch.where(torch.arange(count) % 2 == 0, 1.0, noisy)[:, None]
        features = means[labels] + 1.2 * scale * noise
        head = means[:, :seen] / 1.2**2
        logits = features[:, :seen] @ head.T - head.square().sum(1) * 1.2**2 / 2
        parts.append(Data(features, logits, labels))
    return parts[0], parts[1]


def run(method: str, train: Data, test: Data) -> dict[str, Any]:
    """Seconds, memory and ROC-AUC of one method."""
    before = memory(train.logits.device)
    start, cpu = time.perf_counter(), time.process_time()
    model: Any = None
    if method == "QIPF":
        model = QIPF().fit(train.logits, train.labels)
    elif method == "FeatureQIPF":
        model = FeatureQIPF().fit({"features": train.features}, train.logits, train.labels)
    elif method == "knn (scikit-learn)":
        model = NearestNeighbors(n_neighbors=NEIGHBORS, algorithm="brute")
        model.fit(train.features.cpu().numpy())
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    scores = scored(method, model, train, test)
    done, done_cpu = time.perf_counter(), time.process_time()
    wrong = (test.logits.argmax(1) != test.labels).cpu().numpy()
    return {
        "fit_seconds": fitted - start,
        "fit_cpu_seconds": fitted_cpu - cpu,
        "score_seconds": done - fitted,
        "score_cpu_seconds": done_cpu - fitted_cpu,
        "peak_mb": memory(train.logits.device, peak=True) - before,
        "roc_auc": float(roc_auc_score(wrong, scores)),
    }


def scored(method: str, model: Any, train: Data, test: Data) -> np.ndarray:  # (n,)
    if method == "QIPF":
        found = model.uncertainty(test.logits)
    elif method == "FeatureQIPF":
        found = model.uncertainty({"features": test.features}, test.logits)
    elif method == "knn (scikit-learn)":
        return np.asarray(model.kneighbors(test.features.cpu().numpy())[0][:, -1])
    elif method == "knn (torch)":
        parts = [torch.cdist(part, train.features) for part in test.features.split(256)]
        found = torch.cat([part.topk(NEIGHBORS, largest=False).values[:, -1] for part in parts])
    elif method == "entropy":
        found = torch.distributions.Categorical(logits=test.logits.double()).entropy()
    else:
        found = -test.logits.amax(1)
    return np.asarray(found.cpu())


def memory(device: torch.device, peak: bool = False) -> float:
    """Megabytes of the process or, on a GPU, of PyTorch; the peak since the last call without."""
    if device.type == "cuda":
        if not peak:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated() / 1e6
        return torch.cuda.max_memory_allocated() / 1e6
    if not peak:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    name = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the method of a process of its own
    parser.add_argument("--out", type=Path, default=Path("results/many-classes.csv"))
    options = parser.parse_args()
    if options.one is not None:
        warnings.simplefilter("ignore")
        sizes = options.classes[0], options.rows, options.queries, options.dimension
        data = made_up(*sizes)
        placed = [Data(*(part.to(options.device) for part in one)) for one in data]
        del data
        print(json.dumps(run(options.one, *placed)))
        return
    table: list[dict[str, Any]] = []
    for classes in options.classes:
        for method in options.methods:
            sizes = ["--classes", classes, "--rows", options.rows, "--queries", options.queries]
            sizes += ["--dimension", options.dimension, "--device", options.device]
            command = [sys.executable, __file__, "--one", method, *map(str, sizes)]
            found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            line = {"device": options.device, "classes": classes, "method": method, **found}
            table.append(line)
            same = [row for row in table if row["classes"] == classes and "sci" in row["method"]]
            peer = same[0]["score_cpu_seconds"] if same else None
            line["score_cpu_of_knn"] = peer and found["score_cpu_seconds"] / peer
            print({key: round(v, 3) if isinstance(v, float) else v for key, v in line.items()})
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        for line in table:
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in line.items()})


if __name__ == "__main__":
    main()
