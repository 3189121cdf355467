"""What scores of error are chosen from: all that the layers say of tuning sets and of test levels.

    python research/error_data.py --run RUN --data DATA -o OUT --networks mnist_lenet --seed 0

Writes OUT/NETWORK-SEED.npz in half precision: for every set its logits, the log posteriors of the
softmax and of all layers, the layers' log densities at several bandwidths, the logarithms of the
lengths of their rows, the labels, two peers' scores of novelty (KNN and ViM), and what else may
tell novelty (`Distances`). Names of sets are ``tuning/FAMILY/SHARE`` (perturbed training images),
``test/CORRUPTION/LEVEL`` and ``unseen/DATASET``. The fields are those of `LayeredQIPF`, with all
layers kept. With ``--novelty`` no corrupted test images, which the novelty is not judged by.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor, nn

from qipf.bench.corruptions import CORRUPTIONS, corrupt
from qipf.bench.datasets import UNSEEN, load_unseen
from qipf.bench.methods.feature_scores import class_means
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import BENCH_NETWORKS, CLEAN, PAPER_CORRUPTIONS, Suite
from qipf.export.program import Example
from qipf.field.engines.base import full_precision
from qipf.layered.class_field import ClassField
from qipf.layered.effort import FULL
from qipf.layered.holdout import LABELS, PLACES
from qipf.layered.metric import unit_length
from qipf.layered.mixture import posteriors_of
from qipf.layered.mixture_fit import fit_mixture
from qipf.layered.perturbations import FOR_IMAGES, perturbed, strengths
from qipf.layered.selection import chosen_fields
from qipf.layered.tuning import Tuning
from qipf.network.features import LayerSite, Rows, chosen_sites, run_in_batches
from qipf.network.forward import evaluating

#: Shares of its accuracy above chance that the network keeps on the perturbed images.
KEPT = (0.97, 0.9, 0.7, 0.5)

#: Levels of the paper's corruptions that are looked at; of all others, severities 2 and 4.
LEVELS = {
    "rotation": (15, 30, 60, 120, 225),
    "shear": (10, 30, 50, 70),
    "zoom": (0.5, 0.8, 1.5, 2.5),
    "brightness": (0.2, 0.4, 1.5, 3),
}

#: Recipes of checkpoints that were trained otherwise than their names say.
RECIPES: dict[str, dict[str, Any]] = {"cifar10_resnet18": {"epochs": 30, "cutout": 0}}

CLASSES = 10

#: Factors on a layer's bandwidth at which log densities are written.
DENSITIES = (0.35, 0.5, 0.7, 1.0, 1.4)


def bench_of(name: str, options: argparse.Namespace) -> NetworkBench:
    """The trained network and its data."""
    network = replace(BENCH_NETWORKS[name], recipe=RECIPES.get(name, {}))
    suite = Suite("research", (network,), seed=options.seed)
    return NetworkBench(Setting(suite, options.run, options.device, options.data, False), name)


class Peers:
    """KNN (k = 50) and ViM over the last layer's rows."""

    def __init__(self, rows: Tensor, logits: Tensor) -> None:
        rows = rows[:20_000].double()
        self._units = unit_length(rows.float())
        self._mean = rows.mean(0)
        _, vectors = torch.linalg.eigh((rows - self._mean).T @ (rows - self._mean))
        kept = min(rows.shape[1] // 2, 512)
        self._rest = vectors[:, : rows.shape[1] - kept]
        residual = self._residual(rows)
        self._scale = float(logits[: len(rows)].amax(1).double().mean() / residual.mean())

    def _residual(self, rows: Tensor) -> Tensor:  # (n,)
        return ((rows.double() - self._mean) @ self._rest).norm(dim=1)

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:  # (n, 2)
        cosines = [
            (part @ self._units.T).topk(50).values[:, -1]
            for part in unit_length(rows.float()).split(500)
        ]
        vim = self._scale * self._residual(rows) - logits.double().logsumexp(1)
        return torch.stack([-torch.cat(cosines).double(), vim], 1)


class Distances:
    """Lengths and distances of rows, each a column of novelty or several.

    ``residual``: logarithm of what the last row has outside of the half of its directions in which
    training rows vary most. ``mahalanobis``: of the last row from
    the nearest class mean, by the shrunk covariance within the classes. ``whitened``: lengths of
    the rows in the layers' metrics, before these scale them to one. ``class_distances``: distances
    to the nearest class mean there. ``alignment``: minus NCI's cosine times the class's weight.
    """

    def __init__(
        self,
        net: nn.Module,
        rows: Rows,
        labels: Tensor,
        sites: list[LayerSite],
        fields: dict[LayerSite, ClassField],
    ) -> None:
        self._last, self._fields = sites[-1], fields
        last = rows[self._last].double()
        offsets = last - last.mean(0)
        _, vectors = torch.linalg.eigh(offsets.T @ offsets)  # ascending
        self._least = vectors[:, : last.shape[1] - last.shape[1] // 2]
        self._shortest = 1e-3 * offsets.norm(dim=1).mean()
        means = class_means(last, labels, CLASSES)
        shrunk = torch.from_numpy(ledoit_wolf((last - means[labels]).cpu().numpy())[0])
        values, vectors = torch.linalg.eigh(shrunk.to(last))
        self._whiten = vectors / values.clamp(min=1e-10 * values[-1]).sqrt()
        self._means, self._mean = means @ self._whiten, last.mean(0)
        self._class_means = {
            site: class_means(field.metric.whitened(rows[site]).double(), labels, CLASSES)
            for site, field in fields.items()
        }
        heads = [m for m in net.modules() if isinstance(m, nn.Linear)]
        fits = heads and heads[-1].weight.shape == (CLASSES, last.shape[1])
        self._weight = heads[-1].weight.double() if fits else None

    def __call__(self, logits: Tensor, rows: Rows) -> dict[str, Tensor]:  # (n, columns) each
        last = rows[self._last].double()
        offsets = last - self._mean
        whitened = {s: f.metric.whitened(rows[s]).double() for s, f in self._fields.items()}
        nearest = [torch.cdist(w, self._class_means[s]).amin(1) for s, w in whitened.items()]
        found = {
            "residual": ((offsets @ self._least).norm(dim=1) + self._shortest).log()[:, None],
            "mahalanobis": torch.cdist(last @ self._whiten, self._means).amin(1)[:, None],
            "whitened": torch.stack([w.norm(dim=1) for w in whitened.values()], 1).log(),
            "class_distances": torch.stack(nearest, 1).log(),
        }
        if self._weight is not None:
            own = (offsets * self._weight[logits.argmax(1)]).sum(1)
            found["alignment"] = -(own / offsets.norm(dim=1).clamp(min=1e-30))[:, None]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--centers", type=int, default=60_000)
    parser.add_argument("--tuning", type=int, default=1000)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--halvings", type=int, default=FULL.halvings)
    parser.add_argument("--novelty", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.networks:
        start = time.perf_counter()
        with torch.no_grad():
            found = collected(name, options)
        np.savez_compressed(options.output / f"{name}-{options.seed}.npz", **found)
        print(name, options.seed, f"{time.perf_counter() - start:.0f} s", flush=True)


def collected(name: str, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """All arrays of one network."""
    bench = bench_of(name, options)
    data, net = bench.dataset, bench.network
    order = torch.randperm(
        len(data.train_labels), generator=torch.Generator().manual_seed(options.seed)
    )
    held, kept = order[: options.tuning], order[options.tuning :][: options.centers]
    device = torch.device(options.device)
    images, labels = unit_range(data.train_images[held]), data.train_labels[held].to(device)

    with evaluating(net):
        sites = chosen_sites(
            net, lambda part: net(part.inputs[0].to(device)), Example((images[:2],), {})
        )
        parts = [
            run_in_batches(net, unit_range(data.train_images[p]), sites) for p in kept.split(5000)
        ]
        logits = torch.cat([logits for logits, _ in parts])
        rows = {site: torch.cat([r[site] for _, r in parts]) for site in sites}
        centers: dict[Any, Any] = {**rows, PLACES: kept, LABELS: data.train_labels[kept]}
        peers = Peers(rows[sites[-1]], logits)
        sets = {"clean": run_in_batches(net, images, sites)}
        for family, perturb in FOR_IMAGES.items():

            def accuracy(t: float, perturb: Any = perturb) -> float:
                few = perturbed(images[: len(images) // 2], perturb, t, options.seed)
                return float((net(few.to(device)).argmax(1) == labels[: len(few)]).double().mean())

            for share, t in zip(
                KEPT, strengths(accuracy, 1 / CLASSES, KEPT, options.halvings), strict=True
            ):
                copies = perturbed(images, perturb, t, options.seed + 1)
                sets[f"{family}/{share}"] = run_in_batches(net, copies, sites)
    shipped = {n: s for n, s in sets.items() if not n.endswith("0.97")}
    tuning = Tuning(shipped, labels)
    every = chosen_fields(centers, tuning, sites, CLASSES, 128)
    found, weights, _ = fit_mixture(every, tuning, 0.0)
    print(
        name,
        {str(s): round(w, 3) for s, w in zip(("softmax", *found), weights.tolist(), strict=True)},
        flush=True,
    )

    distances = Distances(net, rows, centers[LABELS].to(device), list(sites), found)
    arrays: dict[str, np.ndarray] = {"weights": weights.cpu().numpy()}
    arrays["sites"] = np.array([str(site) for site in found])

    def keep(what: str, seen: tuple[Tensor, Rows], labels: Tensor) -> None:
        logits, rows = seen
        with full_precision(device):
            values = [field(rows[site]) for site, field in found.items()]
            densities = [
                value.log_density
                for site, field in found.items()
                for value in field.at_bandwidths(
                    rows[site], [k * field.bandwidth for k in DENSITIES]
                )
            ]
        posteriors = posteriors_of(logits, found.values(), values)
        lengths = [rows[site].double().norm(dim=1).clamp(min=1e-30).log() for site in found]
        columns = {
            "logits": logits,
            "log_posteriors": posteriors.clamp(min=1e-20).log(),
            "densities": torch.stack(densities, 1),
            "lengths": torch.stack(lengths, 1),
            "labels": labels,
            "peers": peers(logits, rows[sites[-1]]),
            **distances(logits, rows),
        }
        for column, value in columns.items():
            arrays[f"{what}|{column}"] = value.half().cpu().numpy()

    for what, seen in sets.items():
        keep(f"tuning/{what}", seen, labels)
    count = slice(options.test)
    test, truth = unit_range(data.test_images[count]), data.test_labels[count]
    levels: dict[str, tuple[float, ...]] = {CLEAN: (0,)} | ({} if options.novelty else LEVELS)
    if data.dimensions[0] == 3 and not options.novelty:
        others = [
            n for n, c in CORRUPTIONS.items() if c.kind == "images" and n not in PAPER_CORRUPTIONS
        ]
        levels |= dict.fromkeys(others, (2, 4))
    with evaluating(net):
        whole, truth_all = (
            unit_range(data.test_images[: 4 * options.test]),
            data.test_labels[: 4 * options.test],
        )
        for corruption, values in levels.items():
            for level in values:
                clean = corruption == CLEAN
                shown = whole if clean else corrupt(test, corruption, level)
                keep(
                    f"test/{corruption}/{level}",
                    run_in_batches(net, shown, sites),
                    truth_all if clean else truth,
                )
        for unseen in UNSEEN.get(data.name, ()):
            inputs = unit_range(load_unseen(unseen, data, options.data, False)[count])
            keep(
                f"unseen/{unseen}",
                run_in_batches(net, inputs, sites),
                torch.full((len(inputs),), -1),
            )
    return arrays


if __name__ == "__main__":
    main()
