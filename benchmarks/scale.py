"""What a million predictions cost: in memory, as Parquet shards, and on a Ray cluster.

    python benchmarks/scale.py                  # CPU: a few minutes on two cores
    python benchmarks/scale.py --device cuda    # GPU: arrays in memory; needs no pyarrow, no Ray
    python benchmarks/scale.py --quick          # small sizes, to see that it works; writes nothing

Writes results/scale.csv, whose rows for the other device stay, and prints the tables of
docs/scale.md; `python benchmarks/scale_page.py` puts them there.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from clusters import logits

from qipf import QIPF
from qipf.progress import progress

sys.path.insert(0, str(Path(__file__).parent))
import scale_page

CENTERS = 6_000
COLUMNS = (
    "device", "machine", "way", "cores", "dimension", "centers", "predictions", "seconds",
    "predictions_per_second",
)  # fmt: skip

#: Predictions by the number of logits, so that each measurement takes seconds.
SIZES = {
    "cpu": {10: 400_000, 100: 100_000, 1000: 20_000},
    "cuda": {10: 20_000_000, 100: 4_000_000, 1000: 400_000},
}
SHARDS = 16

Row = dict[str, str]


def fitted(dimension: int, device: str) -> QIPF:
    train = logits(CENTERS, dimension, 0).numpy()
    return QIPF(bandwidth="silverman", max_centers=CENTERS, device=device).fit(train)


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Of several runs, after one that is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def row(way: str, device: str, cores: int, dimension: int, count: int, seconds: float) -> Row:
    """One line of the results."""
    values = (
        device, machine(device), way, cores, dimension, CENTERS, count, f"{seconds:.4g}",
        f"{count / seconds:.6g}",
    )  # fmt: skip
    return dict(zip(COLUMNS, map(str, values), strict=True))


def in_memory(device: str, dimension: int, count: int, cores: int, repeats: int) -> Row:
    """Arrays in, arrays out: on a GPU the way there and back is part of it."""
    field, queries = fitted(dimension, device), logits(count, dimension, 1).numpy()
    with threads(cores):
        seconds = median_seconds(lambda: field.uncertainty(queries), repeats)
    return row("memory", device, cores, dimension, count, seconds)


def as_shards(folder: Path, count: int, dimension: int) -> None:
    """Predictions with an id and a text of some length, in Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for number in range(SHARDS):
        rows = logits(count // SHARDS, dimension, 1 + number).numpy()
        columns = {f"logit_{k}": rows[:, k] for k in range(dimension)}
        names = [f"prediction {number}/{k}" for k in range(len(rows))]
        pq.write_table(
            pa.table({"id": np.arange(len(rows)), "name": names, **columns}),
            folder / f"part-{number:04}.parquet",
        )


def from_shards(folder: Path, count: int, dimension: int, repeats: int) -> Iterator[Row]:
    """One process with one thread, then Ray with one worker and with two, on the same files."""
    from qipf.scoring import score_shards

    field, outputs = fitted(dimension, "cpu"), iter(range(10**6))
    as_shards(folder / "in", count, dimension)

    def scored(run: object) -> Callable[[], object]:
        return lambda: score_shards(field, folder / "in", folder / f"out{next(outputs)}", run=run)

    with threads(1):
        yield row("shards", "cpu", 1, dimension, count, median_seconds(scored(None), repeats))
    if find_spec("ray") is None or (os.cpu_count() or 1) < 2:
        return
    from qipf.ray import cluster, on_ray

    with cluster(workers=2):
        median_seconds(scored(on_ray(workers=2)), 1)  # both workers have come up
        for workers in (1, 2):
            seconds = median_seconds(scored(on_ray(workers=workers)), repeats)
            yield row("ray", "cpu", workers, dimension, count, seconds)


def machine(device: str) -> str:
    """What it ran on, in a word."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.name == "posix" else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "CPU"


def plan(device: str, quick: bool) -> Iterator[Row]:
    repeats = 1 if quick else 3
    cores = 1 if device == "cuda" else len(os.sched_getaffinity(0))
    for dimension, count in SIZES[device].items():
        count = count // 20 if quick else count
        for used in dict.fromkeys((1, cores)):
            yield in_memory(device, dimension, count, used, repeats)
    if device == "cpu" and find_spec("pyarrow") is not None:
        with tempfile.TemporaryDirectory() as folder:
            count = SIZES["cpu"][10] // (10 if quick else 1)
            yield from from_shards(Path(folder), count, 10, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--output", type=Path, default=scale_page.RESULTS)
    options = parser.parse_args()
    rows = list(progress(plan(options.device, options.quick), "measuring"))
    if not options.quick:
        old = scale_page.read(options.output) if options.output.exists() else []
        others = [line for line in old if line["device"] != options.device]
        rows = sorted([*others, *rows], key=lambda line: line["device"] == "cuda")
        with options.output.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(scale_page.measured(rows))
    print(scale_page.a_day(rows))
    print(scale_page.speedup(rows))


if __name__ == "__main__":
    main()
