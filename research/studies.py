"""What recipes are tried on: a bench network's layers on clean, perturbed and corrupted images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qipf.bench.corruptions import corrupt
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench
from qipf.bench.suites import CLEAN
from qipf.export.program import Example
from qipf.layered.holdout import LABELS, PLACES, Examples
from qipf.layered.perturbations import FOR_IMAGES, Perturbation, perturbed, strengths
from qipf.layered.tuning import Tuning
from qipf.network.features import LayerSite, Rows, chosen_sites, run_in_batches
from qipf.network.forward import evaluating

#: Shares of its accuracy above chance that the network keeps on the perturbed images.
KEPT = (0.97, 0.9, 0.7, 0.5)

#: Strengths that are the same for every network and family.
FIXED = (0.1, 0.25, 0.5)

#: Families that recipes are judged by, and one that only teaches.
FAMILIES = tuple(FOR_IMAGES)
BLEND = "blend"

CLASSES = 10

#: Logits and rows of the layers, of one set of images.
Seen = tuple[Tensor, Rows]


@dataclass
class Study:
    """All rows of one network."""

    sites: tuple[LayerSite, ...]
    centers: Examples
    tuning: Tuning  # sets "clean", "family/share" and "family/tstrength" (`set_name`)
    test: dict[str, Seen]  # "corruption/level"
    test_labels: Tensor


def blend(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of another image laid over each, which keeps its own label."""
    others = images[torch.randperm(len(images), generator=random).to(images.device)]
    return torch.lerp(images, others, t)


#: All families that can be learned from.
TEACHERS: dict[str, Perturbation] = {**FOR_IMAGES, BLEND: blend}


def set_name(family: str, strength: float, fixed: bool = False) -> str:
    """A family's set that keeps such a share of the accuracy, or that has a fixed strength."""
    return f"{family}/{'t' if fixed else ''}{strength}"


def study_of(bench: NetworkBench, centers: int, tuning: int, test: int, draw: int = 1) -> Study:
    """Run the network on all images that the recipes are tried on; `draw` chooses them."""
    data, network = bench.dataset, bench.network
    device = network.device
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(draw))
    held = order[: min(tuning, len(order) // 4)]
    kept = order[len(held) :][:centers]
    images = unit_range(data.train_images[held]).to(device)
    labels = data.train_labels[held].to(device)
    shown = unit_range(data.test_images[:test]).to(device)
    tasks = dict.fromkeys((t.corruption, t.level) for t in bench.setting.suite.tasks())
    with torch.no_grad(), evaluating(network):
        sites = chosen_sites(
            network, lambda part: network(*part.inputs), Example((images[:2],), {})
        )
        levels = _levels(network, images[:600], labels[:600])
        print(bench.spec.name, levels, flush=True)
        rows = run_in_batches(network, unit_range(data.train_images[kept]).to(device), sites)[1]
        sets = {"clean": run_in_batches(network, images, sites)}
        for family, found in levels.items():
            wanted = {set_name(family, share): t for share, t in zip(KEPT, found, strict=True)}
            wanted |= {set_name(family, t, fixed=True): t for t in FIXED}
            for name, t in wanted.items():
                copies = perturbed(images, TEACHERS[family], t, 1 + draw)
                sets[name] = run_in_batches(network, copies, sites)
        corrupted = {
            f"{c}/{level}": run_in_batches(
                network, shown if c == CLEAN else corrupt(shown, c, level), sites
            )
            for c, level in tasks
        }
    every = {**rows, PLACES: kept, LABELS: data.train_labels[kept]}
    every = {name: value.cpu() for name, value in every.items()}
    return Study(sites, every, Tuning(sets, labels), corrupted, data.test_labels[:test].to(device))


def _levels(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Strengths of each family at which the network keeps the shares `KEPT`."""

    def accuracy(shown: Tensor) -> float:
        return float((network(shown).argmax(1) == labels).double().mean())

    return {
        name: [
            *strengths(
                lambda t, perturb=perturb: accuracy(perturbed(images, perturb, t, 5)),
                1 / CLASSES,
                KEPT,
            )
        ]
        for name, perturb in TEACHERS.items()
    }
