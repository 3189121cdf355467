"""Logits of a run's trained networks, for benchmarks/coresets.py.

    python benchmarks/logits.py RUN --data DATA --out logits --seeds 0 1

For each network and seed a file with its training logits and labels, and its test logits, clean and
under seven corruptions, with where it erred. RUN is a folder of `qipf bench run --suite paper`.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import torch

from qipf.bench.corruptions import corrupt
from qipf.bench.methods.network import predict, unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import CLEAN, find
from qipf.progress import progress

LEVELS = (
    (CLEAN, 0.0), ("rotation", 30.0), ("rotation", 90.0), ("shear", 40.0), ("zoom", 0.6),
    ("zoom", 1.5), ("brightness", 0.4), ("brightness", 2.0),
)  # fmt: skip


def export(bench: NetworkBench, path: Path) -> None:
    """Write one network's file."""
    dataset, network = bench.dataset, bench.network
    train = predict(network, dataset.train_images).logits
    clean = unit_range(dataset.test_images.to(network.device))
    parts = []
    for kind, level in progress(LEVELS, f"judging {path.stem}"):
        images = clean if kind == CLEAN else corrupt(clean, kind, level)
        parts.append(predict(network, images).logits.cpu())
    test = torch.cat(parts)
    np.savez_compressed(
        path,
        train_logits=train.cpu().numpy(),
        train_labels=dataset.train_labels.numpy(),
        test_logits=test.numpy(),
        test_wrong=(test.argmax(1) != dataset.test_labels.repeat(len(LEVELS))).numpy(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("logits"))
    parser.add_argument("--networks", nargs="*", default=["mnist_lenet", "cifar10_vgg3"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        suite = dataclasses.replace(find("paper"), seed=seed)
        setting = Setting(suite, options.run, options.device, options.data)
        for name in options.networks:
            export(NetworkBench(setting, name), options.out / f"{name}_seed{seed}.npz")


if __name__ == "__main__":
    main()
