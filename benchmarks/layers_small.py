"""What becomes of LayeredQIPF where there is little to learn from, on the paper suite's networks.

    python benchmarks/layers_small.py --run runs/paper --data DATA [--device cuda]

Fitted with 200 examples to tune by, with 10 (too few: the softmax is used alone), without errors
(only training examples that the network gets right), without any example of the last class, and
with 200 examples in all. Mean ROC-AUC of error detection over the 16 cells, against the softmax's
entropy. Writes results/layers-small.csv.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import qipf
from qipf.bench.corruptions import corrupt
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, find
from qipf.metrics.error_detection import roc_auc

Examples = tuple[Tensor, Tensor]


def fitted(bench: NetworkBench) -> Iterator[tuple[str, qipf.LayeredQIPF, str]]:
    """Every case: its name, the model, and what it warned of."""
    data, net = bench.dataset, bench.network
    images, labels = unit_range(data.train_images), data.train_labels
    device = net.device
    with torch.no_grad():
        parts = [net(part.to(device)).argmax(1).cpu() for part in images.split(2000)]
    right = torch.cat(parts) == labels
    last = labels != labels.max()
    cases: dict[str, tuple[Examples, int]] = {
        "as it comes": ((images, labels), 1000),
        "200 to tune by": ((images, labels), 200),
        "10 to tune by": ((images, labels), 10),
        "no errors": ((images[right], labels[right]), 200),
        "a class missing": ((images[last], labels[last]), 200),
        "200 examples in all": ((images[:200], labels[:200]), 200),
    }
    for name, ((shown, truth), tuning) in cases.items():
        batches = zip(shown.split(1000), truth.split(1000), strict=True)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", qipf.QIPFWarning)
            model = qipf.LayeredQIPF(net, max_tuning=tuning).fit(batches)
        yield name, model, " ".join(str(w.message) for w in said)


def detected(bench: NetworkBench, model: qipf.LayeredQIPF, count: int) -> dict[str, list[float]]:
    """Mean ROC-AUC of the model and of the entropy by corruption."""
    data = bench.dataset
    images = unit_range(data.test_images[:count]).to(bench.network.device)
    truth = data.test_labels[:count]
    found: dict[str, list[tuple[float, float]]] = {}
    tasks = dict.fromkeys((t.corruption, t.level) for t in bench.setting.suite.tasks())
    for corruption, level in tasks:
        shown = images if corruption == CLEAN else corrupt(images, corruption, level)
        prediction = model(shown)
        wrong = (prediction.predicted.cpu() != truth).numpy()
        entropy = torch.special.entr(prediction.logits.double().softmax(1)).sum(1)
        pair = (prediction.uncertainty.cpu().numpy(), entropy.cpu().numpy())
        found.setdefault(corruption, []).append((roc_auc(pair[0], wrong), roc_auc(pair[1], wrong)))
    return {name: np.nanmean(pairs, axis=0).tolist() for name, pairs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("-o", "--output", type=Path, default=Path("results/layers-small.csv"))
    options = parser.parse_args()
    suite = replace(find("paper"), seed=options.seed)
    rows = []
    for spec in suite.networks:
        setting = Setting(suite, options.run, options.device, options.data)
        bench = NetworkBench(setting, spec.name)
        for case, model, said in fitted(bench):
            for corruption, (ours, entropy) in detected(bench, model, options.images).items():
                rows.append(
                    {
                        "case": case,
                        "network": spec.name,
                        "corruption": corruption,
                        "qipf_plus": f"{ours:.5f}",
                        "entropy": f"{entropy:.5f}",
                        "warned": said,
                    }
                )
            print(spec.name, case, said or "no warning", flush=True)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = [row for row in rows if row["case"] == case and row["corruption"] != CLEAN]
        ours, theirs = (np.mean([float(row[k]) for row in cells]) for k in ("qipf_plus", "entropy"))
        print(f"{case:20} {ours:.4f} against {theirs:.4f} of the entropy: {ours - theirs:+.4f}")


if __name__ == "__main__":
    main()
