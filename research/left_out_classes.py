"""What the novelty is chosen from: networks trained on some of the classes of their data.

    python research/left_out_classes.py --data DATA -o OUT --networks cifar10_lenet --seed 0

Trains a network of the benchmark on some of its classes, fits `LayeredQIPF` on their training data,
and writes OUT/NETWORK-SEED.npz: for every set the columns that a novelty can be made of. The seed
draws the classes too. Names of sets are ``tuning/FAMILY STRENGTH`` (held-out training inputs, clean
and perturbed, as the package has them), ``package/KIND`` (its pseudo-outliers of the same inputs),
``outlier/KIND`` (all that were tried, see `pseudo_outliers`), ``test/known`` and ``test/unknown``
(test inputs of the known classes and of the others), ``far/KIND`` and ``larger/FACTOR`` (known ones
times a number). No out-of-distribution set of the suite `ood` is read.

Columns: ``odds`` (`qipf.layered.error_model.Evidence`); ``unusual``: energy, densities and lengths
as there, and the logarithm of what the last row has outside of half of its directions, which the
package had at first; ``outside_N``: of the rows of each layer, the same outside of one in N
directions; ``class_fields`` (minus the log of the largest class field of each layer), ``mixture``
(entropy and GEN of the mixture), ``mahalanobis_layers`` and ``relative_layers`` (of the rows of
each layer, log distance to the nearest class mean by the shrunk covariance within the classes, and
the same minus that to the mean of all), ``standardised`` and ``largest`` (of the same rows, root
mean square and largest of the standardised numbers, in logarithms), ``cosine`` (minus that with the
nearest class mean, last layer), ``logits``, and a column for each peer of the benchmark by its
name.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from pseudo_outliers import far_inputs, outliers
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from qipf.bench.datasets import load
from qipf.bench.methods import Batch, CleanData, create
from qipf.bench.methods.feature_scores import class_means
from qipf.bench.methods.network import LayeredNetwork, unit_range
from qipf.bench.modern_networks import ResNet18, VisionTransformer
from qipf.bench.networks import build
from qipf.bench.suites import BENCH_NETWORKS
from qipf.bench.training import Recipe, train
from qipf.layered import model as model_module
from qipf.layered.holdout import INPUTS, LABELS, Examples
from qipf.layered.metric import unit_length
from qipf.layered.mixture import evidence_of
from qipf.layered.mixture_fit import thinning
from qipf.layered.model import LayeredQIPF
from qipf.layered.outliers import of_other_classes
from qipf.layered.tuning import Tuning
from qipf.network.features import LayerSite, Rows, run_in_batches
from qipf.network.forward import evaluating

#: Peers of one pass, with their options.
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name in (
            "softmax", "entropy", "max_logit", "energy", "knn", "mahalanobis", "gen", "kl_matching",
            "she", "nci", "fdbd", "vim", "sirc", "react", "ash", "scale", "nnguide", "rmds",
        )
    },
    "knn5": ("knn", {"k": 5}),
}  # fmt: skip

#: Narrower networks than the benchmark's, trained briefly on a CPU: data set, network and width.
NARROW: dict[str, tuple[str, type[VisionTransformer] | type[ResNet18], int]] = {
    "cifar10_vit_128": ("cifar10", VisionTransformer, 128),
    "fashion_vit_64": ("fashion_mnist", VisionTransformer, 64),
    "kmnist10k_vit_128": ("kmnist10k", VisionTransformer, 128),
    "cifar10_resnet18_16": ("cifar10", ResNet18, 16),
}

#: The benchmark's networks on CIFAR-10 whose rates the narrow ones have.
WIDE = {VisionTransformer: "cifar10_vit", ResNet18: "cifar10_resnet18"}

#: Share of the classes that are known.
KNOWN = {"clinc150": 2 / 3}

#: Training inputs from which peers are made, at most.
TRAINED = 10_000

HEAD = LayerSite("head", "input")

#: Inputs are multiplied by these, as in another unit.
LARGER = (2, 5, 255)

#: One in so many directions are usual.
SHARES = (16, 8, 4, 2)


class Known:
    """A data set with some of its classes, relabelled, and the test inputs of the others."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        data = load(name, folder, download=False)
        count = len(data.class_names)
        order = np.random.RandomState(1000 + seed).permutation(count)
        self.classes = np.sort(order[: round(KNOWN.get(name, 0.6) * count)])
        new = torch.full((count,), -1)
        new[torch.from_numpy(self.classes)] = torch.arange(len(self.classes))
        train_labels, test_labels = new[data.train_labels], new[data.test_labels]
        images, test = data.train_images, data.test_images
        self.dimensions = data.dimensions
        if name == "digits":  # as a table
            images, test = (unit_range(part).flatten(1) for part in (images, test))
        self.train, self.labels = images[train_labels >= 0], train_labels[train_labels >= 0]
        self.known, self.unknown = test[test_labels >= 0], test[test_labels < 0]
        self.truth = test_labels[test_labels >= 0]


class LastRows:
    """Distances of the rows of every layer, and of the last ones, from class means."""

    def __init__(self, rows: Rows, labels: Tensor, classes: int) -> None:
        self._sites = {site: self._whitened(own, labels, classes) for site, own in rows.items()}
        self._directions = {site: self._sorted_directions(own) for site, own in rows.items()}
        self._spread = {site: self._mean_and_scale(own.double()) for site, own in rows.items()}
        last = list(rows.values())[-1].double()
        self._mean = last.mean(0)
        self._units = unit_length(class_means(last, labels, classes) - self._mean)

    @staticmethod
    def _whitened(rows: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, ...]:
        rows = rows.double()
        means, mean = class_means(rows, labels, classes), rows.mean(0)
        parts = []
        for offsets, centers in ((rows - means[labels], means), (rows - mean, mean[None])):
            shrunk = torch.from_numpy(ledoit_wolf(offsets.cpu().numpy())[0]).to(rows)
            values, vectors = torch.linalg.eigh(shrunk)
            whiten = vectors / values.clamp(min=1e-10 * values[-1]).sqrt()
            parts += [whiten, centers @ whiten]
        return tuple(parts)

    @staticmethod
    def _sorted_directions(rows: Tensor) -> tuple[Tensor, Tensor]:  # (D,), (D, D)
        mean = rows.double().mean(0)
        offsets = rows.double() - mean
        return mean, torch.linalg.eigh(offsets.T @ offsets)[1]  # ascending

    @staticmethod
    def _mean_and_scale(rows: Tensor) -> tuple[Tensor, Tensor]:  # (D,), (D,)
        deviation = rows.std(0)
        return rows.mean(0), deviation.clamp(min=max(1e-2 * float(deviation.mean()), 1e-9))

    def standardised(self, rows: Rows) -> dict[str, Tensor]:  # (n, layers) each
        """Logarithms of the mean square and of the largest of the standardised numbers of rows."""
        mean, largest = [], []
        for site, (center, scale) in self._spread.items():
            offsets = (rows[site].double() - center) / scale
            mean.append(offsets.square().mean(1).clamp(min=1e-9).log() / 2)
            largest.append(offsets.abs().amax(1).clamp(min=1e-9).log())
        return {"standardised": torch.stack(mean, 1), "largest": torch.stack(largest, 1)}

    def outside(self, rows: Rows) -> dict[str, Tensor]:  # (n, layers) each
        """Logarithms of what rows have outside of some of their directions."""
        found: dict[str, list[Tensor]] = {f"outside_{share}": [] for share in SHARES}
        for site, (mean, vectors) in self._directions.items():
            squares = ((rows[site].double() - mean) @ vectors).square()
            for share in SHARES:
                part = squares[:, : -max(1, len(mean) // share)].sum(1)
                part = (part + 1e-6 * squares.sum(1)).clamp(min=1e-18)
                found[f"outside_{share}"].append(part.log() / 2)
        return {name: torch.stack(parts, 1) for name, parts in found.items()}

    def __call__(self, rows: Rows) -> dict[str, Tensor]:  # (n, columns) each
        within, relative = [], []
        for site, (whiten, means, whiten_all, mean) in self._sites.items():
            own = rows[site].double()
            near = torch.cdist(own @ whiten, means).amin(1).clamp(min=1e-9).log()
            whole = torch.cdist(own @ whiten_all, mean)[:, 0].clamp(min=1e-9).log()
            within.append(near)
            relative.append(near - whole)
        last = list(rows.values())[-1].double()
        cosine = (unit_length(last - self._mean) @ self._units.T).amax(1)
        return {
            **self.outside(rows),
            **self.standardised(rows),
            "mahalanobis_layers": torch.stack(within, 1),
            "relative_layers": torch.stack(relative, 1),
            "cosine": -cosine,
        }


def fitted(net: LayeredNetwork, data: Known, seed: int) -> tuple[LayeredQIPF, Examples, Tuning]:
    """The model with the package's defaults, its held-out inputs and their tuning sets."""
    kept: list[Any] = []
    make = model_module.tuning_sets

    def recorded(network: Any, held: Examples, *others: Any) -> Tuning:
        kept[:] = held, make(network, held, *others)
        return kept[1]

    def loader() -> Any:
        for inputs, labels in zip(data.train.split(2000), data.labels.split(2000), strict=True):
            yield unit_range(inputs), labels

    with mock.patch.object(model_module, "tuning_sets", recorded), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LayeredQIPF(net, random_state=seed).fit(loader())
    return model, kept[0], kept[1]


def briefly_trained(
    net: LayeredNetwork, images: Tensor, labels: Tensor, rate: float, epochs: int, seed: int
) -> None:
    """Train on a CPU, in bfloat16: AdamW, a one-cycle rate, flips and shifts of whole batches."""
    random, size = torch.Generator().manual_seed(seed), 128
    torch.manual_seed(seed)
    steps = epochs * (len(images) // size)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    net.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=random)
        for part in order[: len(order) // size * size].split(size):
            batch = unit_range(images[part])
            flipped = torch.rand(size, generator=random) < 0.5
            batch[flipped] = batch[flipped].flip(3)
            right, down = torch.randint(-3, 4, (2,), generator=random).tolist()
            height, width = batch.shape[2:]
            padded = torch.nn.functional.pad(batch, (3, 3, 3, 3))
            batch = padded[:, :, 3 + down : 3 + down + height, 3 + right : 3 + right + width]
            with torch.autocast("cpu", torch.bfloat16):
                logits = net(batch)
            loss = torch.nn.functional.cross_entropy(logits.float(), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()


def made(name: str, seed: int, options: argparse.Namespace) -> tuple[LayeredNetwork, Known, Recipe]:
    """A network with random weights, the classes that it is to know, and how it is trained."""
    narrow = NARROW.get(name)
    spec = BENCH_NETWORKS[WIDE[narrow[1]] if narrow else name]
    data = Known(narrow[0] if narrow else spec.dataset, options.data, seed)
    recipe = replace(spec.full_recipe(), **({"epochs": options.epochs} if options.epochs else {}))
    channels, size = data.dimensions
    if narrow is None:
        return build(spec.network, channels, len(data.classes), size, seed)[0], data, recipe
    _, make, width = narrow
    torch.manual_seed(seed)
    return make(channels, len(data.classes), size, width), data, recipe


def collected(name: str, seed: int, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """All arrays of one network."""
    net, data, recipe = made(name, seed, options)
    device = torch.device(options.device)
    channels = data.dimensions[0]
    start = time.perf_counter()
    if options.brief or name in NARROW:
        rate = recipe.learning_rate
        briefly_trained(net, data.train, data.labels, rate, recipe.epochs, seed)
    else:
        train(net, data.train, data.labels, recipe, seed=seed, device=device)
    after = time.perf_counter()
    model, held, tuning = fitted(net, data, seed)
    print(f"{name}-{seed}: trained in {after - start:.0f} s, fitted in", end=" ")
    print(f"{time.perf_counter() - after:.0f} s, classes {data.classes.tolist()}", flush=True)
    sites = model.lengths_.sites  # all that were tried, in order
    assert sites[-1] == HEAD, sites
    random = torch.Generator().manual_seed(seed)
    inputs = held[INPUTS][0].tensors["input"]  # of one shape: all
    others = inputs[of_other_classes(held[LABELS], random)]
    step = thinning(tuning)

    def part(whole: Tensor) -> Tensor:  # (m,) places
        return torch.randperm(len(whole), generator=random)[: options.test].sort().values

    def read(inputs: Tensor) -> tuple[Tensor, Rows]:
        return run_in_batches(net, inputs, sites)

    with evaluating(net), torch.no_grad():
        chosen = torch.randperm(len(data.train), generator=random)[:TRAINED]
        examples, labels = unit_range(data.train[chosen]), data.labels[chosen]
        _, rows = read(examples)
        clean = CleanData(net, examples, labels, seed=seed)
        peers = {peer: create(kind, **given).fit(clean) for peer, (kind, given) in PEERS.items()}
        distances = LastRows(rows, labels.to(device), len(data.classes))
        arrays: dict[str, np.ndarray] = {"weights": model.weights_.cpu().numpy()}
        arrays["layers"] = np.array([str(site) for site in model.layers_])
        arrays["sites"] = np.array([str(site) for site in sites])
        arrays["classes"] = data.classes

        def keep(what: str, seen: tuple[Tensor, Rows]) -> None:
            logits, rows = seen
            scorer = model._scorer(logits.device)
            posteriors, densities, lengths = scorer.posteriors(logits, rows)
            mixture, evidence = evidence_of(logits, posteriors, densities, scorer.weights)
            evidence = evidence.beside(lengths)
            fields = densities + posteriors[:, 1:].amax(2).clamp(min=1e-30).log()
            p = mixture.clamp(min=1e-12)
            gen = (p * (1 - p).clamp(min=1e-12)).pow(0.1).sum(1)
            batch = Batch(logits.new_zeros(len(logits), 0), logits, rows[HEAD])
            measured = distances(rows)
            known, part = evidence.unusual[:, : -len(sites)], measured["outside_2"][:, -1:]
            columns = {
                "unusual": torch.cat([known, part.to(known)], 1),
                "odds": evidence.odds,
                "class_fields": -fields,
                "mixture": torch.stack([-(p * p.log()).sum(1), gen], 1),
                "novelty": model.novelty_model_(evidence),
                **measured,
                **{peer: method.score(batch) for peer, method in peers.items()},
            }
            for column, value in columns.items():
                arrays[f"{what}|{column}"] = value.float().cpu().numpy()
            arrays[f"{what}|logits"] = logits.half().cpu().numpy()

        for prefix, sets in (("tuning", tuning.sets), ("package", tuning.outliers)):
            for family, (logits, rows) in sets.items():
                thinned = {site: own[::step] for site, own in rows.items()}
                keep(f"{prefix}/{family}", (logits[::step], thinned))
        for kind, make in outliers(inputs).items():
            keep(f"outlier/{kind}", read(make(inputs, others, random)[::step]))
        places = part(data.known)
        known = unit_range(data.known[places])
        seen = read(known)
        keep("test/known", seen)
        keep("test/unknown", read(unit_range(data.unknown[part(data.unknown)])))
        for kind, far in far_inputs(known[: options.test // 3], channels - 1, seed).items():
            keep(f"far/{kind}", read(far))
        if known.is_floating_point():
            for factor in LARGER:
                keep(f"larger/{factor}", read(known[: options.test // 3] * factor))
    right = seen[0].argmax(1).cpu() == data.truth[places]
    arrays["accuracy"] = right.double().mean().numpy()
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--seed", type=int, nargs="+", default=[0], dest="seeds")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--brief", action="store_true", help="train on a CPU, in bfloat16")
    parser.add_argument("--test", type=int, default=1500)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for seed in options.seeds:
        for name in options.networks:
            start = time.perf_counter()
            found = collected(name, seed, options)
            path = options.output / f"{name}-{seed}.npz"
            np.savez_compressed(path, **found)
            spent = time.perf_counter() - start
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MB, {spent:.0f} s,", end=" ")
            print(f"accuracy {float(found['accuracy']):.3f}", flush=True)


if __name__ == "__main__":
    main()
