"""What the uncertainty of a prediction costs, network included: time, memory, by method.

    python benchmarks/layers_cost.py --run runs/paper --data DATA [--device cuda]

The networks are those of a finished paper run. Every method gets the same images and gives an
uncertainty for each: the softmax's entropy (one pass), `qipf.QIPF` over the logits (6,000 centres),
`qipf.LayeredQIPF` as it comes and with a coreset of 6,000, ten networks, and a hundred passes with
dropout. Then the class fields of every layer against the plain field of the same rows, centres and
dimension. Writes results/layers-cost-DEVICE.csv; with `--networks` some of them, and the rows of
the others stay.
"""

from __future__ import annotations

import argparse
import copy
import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import qipf
from qipf.bench.methods.network import unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import find
from qipf.field.engines import create
from qipf.network.features import run_in_batches

NETWORKS = ("mnist_lenet", "cifar10_vgg3")
NETWORKS_IN_ENSEMBLE, PASSES = 10, 100
ROUNDS = 5

Row = dict[str, Any]


def entropy(probabilities: Tensor) -> Tensor:  # (n, classes) -> (n,)
    """Of the softmax, or of a mean of several."""
    return torch.special.entr(probabilities).sum(1)


def seconds(work: Callable[[], object], device: str) -> float:
    """The median time of one go, after one to warm up."""
    found = []
    for _ in range(ROUNDS + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return median(found[1:])


def megabytes(*things: nn.Module | Tensor) -> float:
    """What weights and centres take in memory."""
    tensors = [t for thing in things for t in _tensors(thing)]
    return sum(t.numel() * t.element_size() for t in tensors) / 1e6


def _tensors(thing: nn.Module | Tensor) -> list[Tensor]:
    return [thing] if isinstance(thing, Tensor) else [*thing.parameters(), *thing.buffers()]


def held(model: qipf.LayeredQIPF) -> float:
    """What a network and the fields of its layers take, with their order by class or its table."""
    arrays: list[Tensor] = []
    for f in model.fields_:
        arrays += [f.embeddings, f.labels, f.counts, f.examples, f.metric.mean, f.metric.directions]
        count = len(f.embeddings)
        on_cpu = f.embeddings.device.type == "cpu"
        arrays.append(
            torch.empty(count, dtype=torch.int64)
            if on_cpu
            else f.embeddings.new_empty(count, f.classes)
        )
    return megabytes(model.net, *arrays)


def peak(work: Callable[[], object]) -> float:
    """Megabytes of a GPU that one go takes beside what is held already."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def with_dropout(net: nn.Module, rate: float) -> nn.Module:
    """The network, drawing anew in each pass."""
    net = copy.deepcopy(net).eval()
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = rate
            layer.train()
    return net


def rows_of(bench: NetworkBench, batch: int, device: str) -> Iterator[Row]:
    """A line a method."""
    data, net = bench.dataset, bench.network.eval()
    images = unit_range(data.test_images[:batch]).to(device)
    train = list(
        zip(unit_range(data.train_images).split(1000), data.train_labels.split(1000), strict=True)
    )
    start = time.perf_counter()
    plus = qipf.LayeredQIPF(net).fit(train)
    fitting = time.perf_counter() - start
    small = qipf.LayeredQIPF(net, max_centers=6000, reduction="coreset").fit(train)
    plain = qipf.wrap(net).fit(train)
    centers = torch.as_tensor(plain.field.centers_)
    networks = [copy.deepcopy(net) for _ in range(NETWORKS_IN_ENSEMBLE)]
    dropping = with_dropout(net, bench.spec.full_recipe().dropout_rate)

    def mean_of(passes: list[nn.Module], shown: Tensor) -> Tensor:
        total = sum(torch.softmax(one(shown), 1) for one in passes)
        return entropy(torch.as_tensor(total) / len(passes))

    methods: dict[str, tuple[Callable[[Tensor], object], float]] = {
        "entropy": (lambda x: mean_of([net], x), megabytes(net)),
        "qipf": (lambda x: plain(x).uncertainty, megabytes(net, centers)),
        "qipf_plus": (plus.uncertainty, held(plus)),
        "qipf_plus, coreset of 6,000": (small.uncertainty, held(small)),
        "ensemble of 10": (lambda x: mean_of(networks, x), megabytes(*networks)),
        "MC-Dropout, 100 passes": (lambda x: mean_of([dropping] * PASSES, x), megabytes(net)),
    }
    for name, (method, size) in methods.items():
        with torch.no_grad():
            many = seconds(lambda method=method: method(images), device)
            one = seconds(lambda method=method: method(images[:1]), device)
        row = {
            "network": bench.spec.name,
            "method": name,
            "milliseconds_per_prediction": 1e3 * many / len(images),
            "milliseconds_for_one": 1e3 * one,
            "megabytes_held": size,
        }
        if device == "cuda":
            with torch.no_grad():
                row["megabytes_more_at_work"] = peak(lambda method=method: method(images))
        if name == "qipf_plus":
            row |= {"layers": len(plus.fields_), "seconds_to_fit": fitting}
        yield row
    _, rows = run_in_batches(net, images, plus.layers_)
    for site, field in zip(plus.layers_, plus.fields_, strict=True):
        engine = create("auto", field.embeddings, field.bandwidth)
        shown = rows[site]
        with torch.no_grad():
            ours = seconds(lambda f=field, r=shown: f(r), device)
            theirs = seconds(lambda f=field, r=shown, e=engine: e(f.metric(r)), device)
        yield {
            "network": bench.spec.name,
            "method": f"class fields of {site}",
            "milliseconds_per_prediction": 1e3 * ours / len(images),
            "times_the_plain_field": ours / theirs,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("results"))
    options = parser.parse_args()
    suite = replace(find("paper"), seed=options.seed)
    batch = 1000 if options.device == "cuda" else 200
    file = options.output / f"layers-cost-{options.device}.csv"
    for network in options.networks:
        setting = Setting(suite, options.run, options.device, options.data)
        rows = []
        for row in rows_of(NetworkBench(setting, network), batch, options.device):
            rows.append({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})
            print(*rows[-1].values(), sep="  ", flush=True)
        joined(file, network, rows)


def joined(file: Path, network: str, rows: list[Row]) -> None:
    """A network's rows written in the place of its old ones, beside those of the others."""
    old: list[Row] = []
    if file.exists():
        with file.open(newline="") as lines:
            old = [row for row in csv.DictReader(lines) if row["network"] != network]
    every = sorted([*old, *rows], key=lambda row: NETWORKS.index(row["network"]))
    columns = list(dict.fromkeys(name for row in [*rows, *old] for name in row))
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, columns)
        writer.writeheader()
        writer.writerows(every)


if __name__ == "__main__":
    main()
