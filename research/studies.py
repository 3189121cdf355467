"""What recipes are tried on: a bench network's layers on clean, disturbed and spoilt images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from qipf.bench.corruptions import corrupt
from qipf.bench.scoring import Contender
from qipf.bench.suites import CLEAN
from qipf.layered.disturbing import FOR_IMAGES, disturbed, strengths
from qipf.layered.gathering import LABELS, Kept
from qipf.layered.reading import in_parts
from qipf.layered.taps import Rows, Tap, chosen_taps
from qipf.layered.tuning import Tuning
from qipf.methods.layered import evaluating, unit_range

#: Shares of its accuracy above chance that the network keeps on the disturbed images.
KEPT = (0.97, 0.9, 0.7, 0.5)
FAMILIES = tuple(FOR_IMAGES)
CLASSES = 10

#: Logits and rows of the layers, of one set of images.
Seen = tuple[Tensor, Rows]


@dataclass
class Study:
    """All rows of one network."""

    taps: tuple[Tap, ...]
    centers: Kept
    tuning: Tuning  # sets "clean" and "family/share"
    test: dict[str, Seen]  # "corruption/level"
    test_labels: Tensor


def study_of(contender: Contender, centers: int, tuning: int, test: int) -> Study:
    """Run the network on all images that the recipes are tried on."""
    data, network = contender.dataset, contender.network
    device = network.device
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(1))
    held = order[: min(tuning, len(order) // 4)]
    kept = order[len(held) :][:centers]
    images = unit_range(data.train_images[held]).to(device)
    labels = data.train_labels[held].to(device)
    shown = unit_range(data.test_images[:test]).to(device)
    tasks = dict.fromkeys((t.corruption, t.level) for t in contender.setting.suite.tasks())
    with torch.no_grad(), evaluating(network):
        taps = chosen_taps(network, lambda: network(images[:2]))
        levels = _levels(network, images[:600], labels[:600])
        print(contender.spec.name, levels, flush=True)
        rows = in_parts(network, unit_range(data.train_images[kept]).to(device), taps)[1]
        sets = {"clean": in_parts(network, images, taps)}
        for family, found in levels.items():
            for share, t in zip(KEPT, found, strict=True):
                copies = disturbed(images, FOR_IMAGES[family], t, 2)
                sets[f"{family}/{share}"] = in_parts(network, copies, taps)
        spoilt = {
            f"{c}/{level}": in_parts(
                network, shown if c == CLEAN else corrupt(shown, c, level), taps
            )
            for c, level in tasks
        }
    every = Kept(len(kept))
    every.add(np.arange(len(kept)), kept.numpy(), {**rows, LABELS: data.train_labels[kept]})
    every.settle()
    return Study(taps, every, Tuning(sets, labels), spoilt, data.test_labels[:test].to(device))


def _levels(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Strengths of each family at which the network keeps the shares `KEPT`."""

    def accuracy(shown: Tensor) -> float:
        return float((network(shown).argmax(1) == labels).double().mean())

    return {
        name: strengths(accuracy, images, disturb, 1 / CLASSES, 5, KEPT)
        for name, disturb in FOR_IMAGES.items()
    }
