"""What the uncertainty of a prediction costs beside the network's own pass: time, memory, files.

    python benchmarks/layers_cost.py --run runs/paper --data DATA [--device cuda] [--networks ...]
    python benchmarks/layers_cost.py --no-fit [--device cuda]

Every method gets the same images and gives an uncertainty for each, the network's pass included.
Times are medians of rounds in which all methods take turns in a random order, each called twice and
timed the second time, for batches of 1, 32, 200 (on a CPU) and 1,000 images, and ratios to the bare
network's time in the same rounds; a batch for which the bare network takes more than `LONGEST`
seconds is left out. A method that raises an error is reported and left out. With `--busy`, for a
machine that does other work too, one thread runs and its CPU time is counted. KNN, ViM and NNGuide
are those of `qipf.bench`, which are tested to equal pytorch-ood's. On the CPU, exported files of
the bare network and of the models run in ONNX Runtime too. Seconds to fit include passes of the
network; those of the network itself are one pass over the training images.

Networks are read from a finished run, and data from DATA. A network that is not there gets random
weights. With `--no-fit` nothing is read: weights and images are random, and `qipf_plus` has random
fields of `--layers` layers with as many centres as a fitted one, which take the same time. One pass
of `--train` images, by default `FEW_IMAGES`, is what `qipf` is fitted on; methods that search all
examples get its outputs repeatedly, as many as there are training images. The column `weights` says
which. Where the bare network takes more than `SLOW` seconds, methods of several passes are left
out: their times are multiples of its own. Writes results/layers-cost-DEVICE.csv; rows of other
networks stay.
"""

from __future__ import annotations

import argparse
import copy
import csv
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from random_models import LARGEST, random_data, unfitted
from torch import Tensor, nn

import qipf
from qipf.bench.methods import Batch, CleanData, Method, create
from qipf.bench.methods.network import LayeredNetwork, unit_range
from qipf.bench.scoring import NetworkBench, Setting
from qipf.bench.suites import find
from qipf.network.features import run_in_batches

SUITES = {"mnist_lenet": "paper", "cifar10_vgg3": "paper", "cifar10_resnet18": "modern"}
BATCHES = {"cpu": (1, 32, 200, 1000), "cuda": (1, 32, 1000)}
PASSES = 10

#: Seconds of the bare network for a batch that is still measured, and for one that is measured with
#: methods of several passes; and of all rounds of a batch.
LONGEST, SLOW, BUDGET = 5.0, 0.3, {"cpu": 8.0, "cuda": 2.0}

#: Fewest and most rounds.
ROUNDS = (3, 50)

#: Centres of the fields of models that are not fitted, and images that their metrics are of.
CENTERS, FEW_IMAGES = {"qipf_plus": 1500, "qipf_plus, all centres": 60_000}, 1000

STARTED = time.perf_counter()

Row = dict[str, Any]
Scoring = Callable[[Tensor], object]


def entropy(networks: Iterable[nn.Module], images: Tensor) -> Tensor:  # (n,)
    """Of the mean softmax of several passes."""
    probabilities = torch.stack([torch.softmax(net(images), 1) for net in networks]).mean(0)
    return torch.special.entr(probabilities).sum(1)


#: Counts seconds; with `--busy` those of this process.
clock = time.perf_counter


def scored(method: Method, net: LayeredNetwork, images: Tensor) -> Tensor:  # (n,)
    """Scores of a method of the benchmark, with the network's pass."""
    return method.score(Batch.of(net, images))


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Print an error and go on: an hour of other measurements is not lost."""
    try:
        yield
    except Exception:
        said(f"ERROR in {name}: {traceback.format_exc(limit=-4)}")


def timed(work: Callable[[], object], device: str) -> float:
    """Milliseconds of one go."""
    begin = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (clock() - begin)


def milliseconds(work: Mapping[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Median time of each, in rounds in which they take turns, in a random order.

    Each is called twice in its turn, and the second call is timed: in use the same one runs again
    and again, and finds its own memory in the caches.
    """
    least, most = ROUNDS
    order = []
    for name in work:
        with reported(name):
            for _ in range(3):  # to warm up; a graph is captured at the second go
                timed(work[name], device)
            order.append(name)
    found: dict[str, list[float]] = {name: [] for name in order}
    start = clock()
    for number in range(most):
        if number >= least and clock() - start > BUDGET[device]:
            break
        for name in random.Random(number).sample(order, len(order)):
            timed(work[name], device)
            found[name].append(timed(work[name], device))
    return {name: median(times) for name, times in found.items()}


def tensors_in(thing: Any, seen: dict[int, Any]) -> Iterator[tuple[int, int]]:
    """Address and bytes of all tensors and arrays that an object holds, caches included."""
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)):
        return
    seen[id(thing)] = thing
    if isinstance(thing, Tensor):
        storage = thing.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(thing, np.ndarray):
        yield thing.__array_interface__["data"][0], thing.nbytes
    elif isinstance(thing, dict):
        for part in thing.values():
            yield from tensors_in(part, seen)
    elif isinstance(thing, (tuple, list)):
        for part in thing:
            yield from tensors_in(part, seen)
    elif hasattr(thing, "__dict__"):
        yield from tensors_in(vars(thing), seen)


def megabytes(*things: Any) -> float:
    """What models and networks hold in memory."""
    return sum(dict(pair for thing in things for pair in tensors_in(thing, {})).values()) / 1e6


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


def models_of(
    net: LayeredNetwork, train: list[tuple[Tensor, Tensor]], layers: int | None
) -> Iterator[tuple[str, qipf.LayeredQIPF, float | None]]:
    """Name, model and seconds to fit of each `qipf_plus`; with `layers` they are not fitted."""
    reductions = dict(zip(CENTERS, ("distilled", "random"), strict=True))
    for name, centers in CENTERS.items():
        if layers is not None:
            images, labels = (part.to(net.device) for part in train[0])
            yield name, unfitted(net, images, labels, centers, layers), None
        else:
            start = clock()
            model = qipf.LayeredQIPF(net, reduction=reductions[name]).fit(train)
            yield name, model, clock() - start


def onnx_times(
    net: nn.Module, models: dict[str, Any], images: Tensor, batches: Iterable[int]
) -> dict[str, Row]:
    """Times of the models' files in ONNX Runtime, relative to the bare network's file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    sessions = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        shapes = ({0: torch.export.Dim("batch")},)
        torch.onnx.export(
            net, (images[:2],), path, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
        files = {"network": path}
        for number, (name, model) in enumerate(models.items()):
            files[name] = Path(folder) / f"{number}.onnx"
            model.export_onnx(files[name], images[:2], check=False)
        for name, file in files.items():
            sessions[name] = onnxruntime.InferenceSession(str(file), options)
    found: dict[str, Row] = {name: {} for name in files}
    for batch in batches:
        array = images[:batch].numpy()
        times = milliseconds(
            {
                name: partial(session.run, None, {session.get_inputs()[0].name: array})
                for name, session in sessions.items()
            },
            "cpu",
        )
        for name, own in times.items():
            found[name][f"onnx_times_the_network_{batch}"] = own / times["network"]
    return found


def said(line: str) -> None:
    """Print at once, with the seconds since the start."""
    print(f"[{time.perf_counter() - STARTED:5.0f} s] {line}", flush=True)


def repeated(clean: CleanData, count: int) -> CleanData:
    """As if the network had run on so many images: its outputs on fewer, repeatedly."""
    places = torch.arange(count) % len(clean.labels)
    images = clean.images[:1].expand(count, -1, -1, -1)
    whole = CleanData(clean.network, images, clean.labels[places])
    outputs = (part[places.to(part.device)] for part in clean.outputs)
    whole.__dict__["outputs"] = type(clean.outputs)(*outputs)
    return whole


def rows_of(
    bench: NetworkBench, device: str, layers: int | None, count: int | None
) -> Iterator[Row]:
    """A line a method."""
    data, net = bench.dataset, bench.network.eval()
    said(f"{bench.spec.name}: {data}")
    images, labels = data.train_images[:count], data.train_labels[:count]
    shown = unit_range(data.test_images[:LARGEST]).to(device)
    clean = CleanData(net, images, labels)
    recipe = bench.spec.full_recipe()
    networks = [copy.deepcopy(net) for _ in range(10)]
    dropping = with_dropout(net, recipe.dropout_rate)
    methods: dict[str, tuple[Scoring, list[Any]]] = {
        "network": (net, [net]),
        # as the models run it: on a CPU, images in parts whose activations stay in the cache
        "network, in parts": (partial(run_in_batches, net, sites=()), [net]),
        "entropy": (partial(entropy, [net]), [net]),
    }
    train = list(zip(unit_range(images).split(1000), labels.split(1000), strict=True))
    start = clock()
    _ = clean.outputs  # one pass over the training images, shared by the methods of the benchmark
    passing = clock() - start
    said(f"  one pass over {len(images):,} images: {passing:.1f} s")
    if layers is not None:
        clean = repeated(clean, len(data.train_labels))
    about: dict[str, Row] = {"network": {"seconds_to_fit": passing}}
    models: dict[str, Any] = {}
    with reported("qipf"):
        start = clock()
        models["qipf"] = qipf.wrap(net).fit(train)
        about["qipf"] = {"seconds_to_fit": clock() - start}
        methods["qipf"] = models["qipf"], [models["qipf"]]
        said(f"  qipf fitted: {clock() - start:.1f} s")
    with reported("qipf_plus"):
        for name, model, seconds in models_of(net, train, layers):
            with torch.no_grad():
                model(shown[:2])
            models[name] = model
            methods[name] = model, [model]
            centers = max((len(f.embeddings) for f in model.fields_), default=0)
            said(f"  {name}: {len(model.fields_)} layers, {centers:,} centres, fit {seconds} s")
            about[name] = {
                "layers": len(model.fields_), "centers": centers, "seconds_to_fit": seconds,
            }  # fmt: skip
    for several in (5, 10):
        members = networks[:several]
        methods[f"ensemble of {several}"] = partial(entropy, members), [members]
    methods[f"MC-Dropout, {PASSES} passes"] = partial(entropy, [dropping] * PASSES), [net]
    for name in ("knn", "vim", "nnguide"):
        with reported(name):
            start = clock()
            method = create(name).fit(clean)
            about[name] = {"seconds_to_fit": passing + clock() - start}
            methods[name] = partial(scored, method, net), [net, method]
            said(f"  {name} fitted: {clock() - start:.1f} s")
    for name, model in models.items():
        with reported(f"{name}, saved"), tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model.qipf")
            about[name]["megabytes_file"] = (Path(folder) / "model.qipf").stat().st_size / 1e6
    times: dict[int, dict[str, float]] = {}
    with torch.no_grad():
        for batch in BATCHES[device]:
            part = shown[:batch]
            timed(partial(net, part), device)
            alone = timed(partial(net, part), device)
            if alone > 1e3 * LONGEST:
                break
            works = {
                name: partial(score, part)
                for name, (score, _) in methods.items()
                if alone <= 1e3 * SLOW or not name.startswith(("ensemble", "MC-Dropout"))
            }
            times[batch] = milliseconds(works, device)
            for name, own in times[batch].items():
                ratio = own / times[batch]["network"]
                said(f"  batch {batch}, {name}: {own:.3f} ms, {ratio:.2f} times the network")
    runtime: dict[str, Row] = {}
    if device == "cpu":
        # a graph of all examples computes the kernels of a batch at once
        few = {
            name: model for name, model in models.items() if about[name].get("centers", 0) < 2**13
        }
        with reported("ONNX Runtime"):
            runtime = onnx_times(net, few, shown, [b for b in times if b <= 200])
    if layers is not None:
        about = {name: own | {"seconds_to_fit": None} for name, own in about.items()}
    for name, (score, held) in methods.items():
        row: Row = {"network": bench.spec.name, "method": name}
        for batch, found in times.items():
            if name in found:
                row[f"milliseconds_{batch}"] = found[name]
                row[f"times_the_network_{batch}"] = found[name] / found["network"]
        row |= {"megabytes_held": megabytes(*held), **about.get(name, {}), **runtime.get(name, {})}
        if device == "cuda":
            with reported(name), torch.no_grad():
                row["megabytes_more_at_work"] = peak(partial(score, shown))
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/paper"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--networks", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument("--no-fit", dest="fit", action="store_false")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--layers", type=int, default=4, help="with --no-fit; by default 4")
    parser.add_argument("--train", type=int, help="training images; by default all")
    parser.add_argument("--seconds", type=float, help="for all rounds of a batch of images")
    parser.add_argument("-o", "--output", type=Path, default=Path("results"))
    options = parser.parse_args()
    if options.busy:
        global clock
        clock = time.process_time
        torch.set_num_threads(1)
    if options.seconds is not None:
        BUDGET[options.device] = options.seconds
    options.output.mkdir(parents=True, exist_ok=True)
    for network in options.networks:
        with reported(network):
            measure(network, options)


def measure(network: str, options: argparse.Namespace) -> None:
    """Write the rows of a network."""
    setting = Setting(
        replace(find(SUITES[network]), seed=0), options.run, options.device, options.data
    )
    bench = NetworkBench(setting, network, None if options.fit else random_data(network))
    saved = options.run / "networks" / "seed0" / network / "network.pt"
    trained = options.fit and saved.exists()
    if not trained:  # random weights take the same time
        bench.__dict__["network"] = bench._build(0).to(options.device)
    rows = []
    layers = None if options.fit else options.layers
    count = options.train or (None if options.fit else FEW_IMAGES)
    for row in rows_of(bench, options.device, layers, count):
        row["weights"] = "trained" if trained else "random"
        rows.append({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
        said(" ".join(f"{k}={v}" for k, v in rows[-1].items()))
    joined(options.output / f"layers-cost-{options.device}.csv", network, rows)


def joined(file: Path, network: str, rows: list[Row]) -> None:
    """A network's rows written in the place of its old ones, beside those of the others."""
    old: list[Row] = []
    if file.exists():
        with file.open(newline="") as lines:
            old = [row for row in csv.DictReader(lines) if row["network"] != network]
    every = sorted([*old, *rows], key=lambda row: list(SUITES).index(row["network"]))
    columns = list(dict.fromkeys(name for row in [*rows, *old] for name in row))
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, columns)
        writer.writeheader()
        writer.writerows(every)


if __name__ == "__main__":
    main()
