"""Our engines against every peer, in one run: speed, memory, accuracy, growth.

    python benchmarks/engines.py                 # CPU, about nine minutes on two quiet cores
    python benchmarks/engines.py --device cuda   # on a GPU
    python benchmarks/engines.py --quick         # a minute, to see that it works

On the CPU every measurement is a process of its own, so that its peak memory is its own; one that
outlasts the limit or runs out of memory is reported as such. A time is the median of at least three
evaluations, one if it takes over ten seconds; at the headline size, and for one prediction, the
median of three such rounds with the other peers between them, so that a disturbance meets one
round, not one peer. Writes results/engines-DEVICE.csv, .json (the machine, the versions, the
ratios) and .png.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from clusters import logits
from torch import Tensor

from qipf.field.bandwidth import silverman
from qipf.field.engines import create
from qipf.field.potential import curvature
from qipf.progress import progress

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import peers  # noqa: E402

HEADLINE = (10_000, 60_000, 10)
ONE = (1, 6_000, 10)  # one prediction, and the centres a field has unless told otherwise
ROUNDS = 3
CUDA_HEADLINE = (1_000_000, 60_000, 10)
GROWTH = {
    "queries": [(10**k, 10_000, 10) for k in (2, 3, 4, 5, 6)],
    "centers": [(10_000, 10**k, 10) for k in (2, 3, 4, 5, 6)],
}
SLOW = ("SciPy gaussian_kde", "scikit-learn KernelDensity")
DIMENSIONS = [(2_000, 20_000, d) for d in (1, 2, 10, 32, 128, 512, 4096)]
CHECKED = 200  # queries compared with float64

Size = tuple[int, int, int]


def measured(peer: str, size: Size, device: str, least_seconds: float) -> dict[str, Any]:
    """Seconds (median), peak extra megabytes, and errors against float64 of one peer."""
    queries_count, centers_count, dimension = size
    centers = logits(centers_count, dimension, 0).to(device)
    queries = logits(queries_count, dimension, 1).to(device)
    bandwidth = silverman(centers)
    make = {**getattr(peers, device.upper()), **peers.CPU_ESTIMATOR}[peer]
    make(centers[:50], bandwidth)(queries[:50])  # loads libraries, and compiles where needed
    before = held(device)
    evaluate = make(centers, bandwidth)
    log_density, bend = evaluate(queries[:CHECKED])
    seconds: list[float] = []
    fewest = 200 if size == ONE else 3
    while not enough(seconds, least_seconds, fewest):
        started = time.perf_counter()
        evaluate(queries)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    extra = highest(device) - before
    return {
        "seconds": float(np.median(seconds)),
        "megabytes": extra / 1e6,
        **against_float64(queries[:CHECKED], centers, bandwidth, log_density, bend),
    }


def enough(seconds: list[float], least_seconds: float, fewest: int) -> bool:
    """The fewest evaluations and `least_seconds`; less if they are slow, and at most 2,000."""
    if len(seconds) < fewest:
        return sum(seconds) > 10
    return sum(seconds) >= least_seconds or len(seconds) >= 2_000


def held(device: str) -> int:
    """Bytes held now; the record of the most that were held starts anew where it can."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forgets the process's peak
    return highest(device)


def highest(device: str) -> int:
    """The most bytes held since `held` was asked."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def against_float64(
    queries: Tensor,
    centers: Tensor,
    bandwidth: float,
    log_density: peers.Values | None,
    bend: peers.Values | None,
) -> dict[str, float | None]:
    """Largest errors, relative to max(1, |truth|); none of what the peer does not tell."""
    truth = create("reference", centers, bandwidth)(queries)

    def worst(value: peers.Values | None, true: Tensor) -> float | None:
        if value is None:
            return None
        found, exact = torch.as_tensor(value).cpu().double(), true.cpu()
        return float(((found - exact).abs() / exact.abs().clamp(min=1)).max())

    return {
        "error_log_density": worst(log_density, truth.log_density),
        "error_curvature": worst(bend, curvature(truth, bandwidth)),
    }


def attempted(*arguments: Any) -> dict[str, Any]:
    """A measurement, or why there is none."""
    try:
        return {"status": "ok", **measured(*arguments)}
    except (MemoryError, torch.cuda.OutOfMemoryError):
        return {"status": "out of memory"}
    except Exception as error:  # a peer's failure is a result
        return {"status": f"{type(error).__name__}: {error}".splitlines()[0][:80]}


def _work(queue: Any, arguments: tuple[Any, ...]) -> None:
    queue.put(attempted(*arguments))


def isolated(limit: float, *arguments: Any) -> dict[str, Any]:
    """An attempt in a process of its own, ended when it outlasts the limit."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_work, args=(queue, arguments))
    process.start()
    try:
        found: dict[str, Any] = queue.get(timeout=limit)
    except Empty:
        found = {"status": f"over {limit:g} s"}
    process.kill()
    process.join()
    return found


def table_row(peer: str, size: Size, device: str, least: float, limit: float) -> dict[str, Any]:
    """One line of the table."""
    if device == "cuda":  # counts its own memory, and compiling anew each time takes long
        found = attempted(peer, size, device, least)
    else:
        found = isolated(limit, peer, size, device, least)
    queries_count, centers_count, dimension = size
    if "seconds" in found:
        found["pairs_per_second"] = queries_count * centers_count / found["seconds"]
    return {
        "peer": peer,
        "device": device,
        "queries": queries_count,
        "centers": centers_count,
        "dimension": dimension,
        **found,
    }


def median_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several rounds of one measurement the middle one, by time; what failed counts as slow."""
    rows = sorted(rows, key=lambda row: row.get("seconds", float("inf")))
    return rows[(len(rows) - 1) // 2]


def plan(device: str, quick: bool) -> list[tuple[str, Size]]:
    """Everybody at the headline sizes and up to 10⁸ pairs; ours to 10¹⁰ and in many dimensions.

    What is to be measured in several rounds stands there several times.
    """
    names = list(getattr(peers, device.upper()))
    one = [(name, ONE) for name in peers.CPU_ESTIMATOR]
    if quick:
        return [(name, (1_000, 2_000, 10)) for name in names] + (one if device == "cpu" else [])
    if device == "cuda":
        sizes = [CUDA_HEADLINE, HEADLINE, (1_000_000, 6_000, 10)]
        wide = [(100_000, 60_000, d) for d in (1, 2, 10, 32, 64, 128)]
        return [(n, s) for s in sizes for n in names] + [("qipf triton", s) for s in wide]
    # the two slowest are measured once: they are far behind
    close = [name for name in names if name not in ("qipf reference", *SLOW)]
    rounds = [(name, HEADLINE) for name in close] + one
    jobs = [(name, (10_000, 6_000, 10)) for name in names]
    jobs += [(name, HEADLINE) for name in SLOW]
    for sizes in GROWTH.values():
        jobs += [("qipf attention", size) for size in sizes]
        others = [name for name in names if name not in ("qipf attention", "bare attention")]
        jobs += [(name, size) for size in sizes for name in others if size[0] * size[1] <= 10**8]
    jobs += [("qipf attention", size) for size in DIMENSIONS]
    jobs += [("qipf attention", size) for size in [(1_000, 1_000, 10), (100_000, 100_000, 10)]]
    jobs = list(dict.fromkeys(jobs))
    third = len(jobs) // (ROUNDS - 1)  # at the beginning, in the middle and at the end
    return [*rounds, *jobs[:third], *rounds, *jobs[third:], *rounds]


def growth(rows: list[dict[str, Any]], peer: str) -> dict[str, float]:
    """The exponents of time in the number of queries and of centres, from 10⁶ pairs on."""
    found = {}
    for axis, sizes in GROWTH.items():
        points = [
            (row[axis], row["seconds"])
            for row in rows
            if row["peer"] == peer
            and "seconds" in row
            and (row["queries"], row["centers"], row["dimension"]) in sizes
            and row["queries"] * row["centers"] >= 10**6
        ]
        if len(points) >= 3:
            found[axis] = float(np.polyfit(*np.log(np.array(points)).T, 1)[0])
    if peer == "qipf attention":
        square = [
            (row["queries"] * row["centers"], row["seconds"])
            for row in rows
            if row["peer"] == peer and row["dimension"] == 10 and "seconds" in row
        ]
        if len(square) >= 3:
            found["pairs"] = float(np.polyfit(*np.log(np.array(square)).T, 1)[0])
    return found


def printed(rows: list[dict[str, Any]]) -> None:
    """The table in the terminal, and the ratios at the headline size."""
    columns = "peer", "queries", "centers", "d", "G pairs/s", "ms", "MB", "err log ρ", "err K"
    widths = 27, 9, 9, 5, 10, 10, 8, 10, 10
    print("".join(name.rjust(width) for name, width in zip(columns, widths, strict=True)))
    for row in sorted(rows, key=lambda r: (r["dimension"], r["queries"] * r["centers"])):
        head = (row["peer"], f"{row['queries']:,}", f"{row['centers']:,}", row["dimension"])
        tail: tuple[str, ...] = (row["status"],)
        if "seconds" in row:
            errors = row["error_log_density"], row["error_curvature"]
            tail = (
                f"{row['pairs_per_second'] / 1e9:.3f}",
                f"{1e3 * row['seconds']:.{1 if row['queries'] > 1 else 3}f}",
                f"{row['megabytes']:.0f}",
                *("" if error is None else f"{error:.0e}" for error in errors),
            )
        cells = (*head, *tail)
        print("".join(str(c).rjust(w) for c, w in zip(cells, widths, strict=False)))


def ratios(rows: list[dict[str, Any]], size: Size, best: str) -> dict[str, float]:
    """How many times faster `best` is than each peer at one size."""
    at = {
        row["peer"]: row["seconds"]
        for row in rows
        if (row["queries"], row["centers"], row["dimension"]) == size and "seconds" in row
    }
    return {name: at[name] / at[best] for name in at if name != best} if best in at else {}


def machine(device: str) -> dict[str, Any]:
    """What it ran on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.name == "posix" else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    names = "torch", "numpy", "scipy", "scikit-learn", "pykeops", "triton"
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "accelerator": torch.cuda.get_device_name() if device == "cuda" else None,
        "python": platform.python_version(),
        "versions": versions,
    }


def summarised(
    rows: list[dict[str, Any]], device: str, headline: Size, best: str
) -> dict[str, Any]:
    """The machine, and what is read off the table."""
    faster = ratios(rows, headline, best)
    summary = {
        "machine": machine(device),
        "headline": dict(zip(("queries", "centers", "dimension"), headline, strict=True)),
        "times_faster": faster,
        "growth": {peer: growth(rows, peer) for peer in dict.fromkeys(row["peer"] for row in rows)},
    }
    if device == "cpu":
        found = [row for row in rows if row["peer"] in peers.CPU_ESTIMATOR and "seconds" in row]
        summary["one_prediction_ms"] = {row["peer"]: 1e3 * row["seconds"] for row in found}
        if "bare attention" in faster:
            summary["cost_over_bare_attention"] = 1 / faster["bare attention"]
    elif find_spec("triton") is not None:
        from exponentials import exponentials_per_second

        summary["exponentials_per_second"] = exponentials_per_second()
        summary["pairs_per_second"] = {
            row["peer"]: row["pairs_per_second"]
            for row in rows
            if "seconds" in row and (row["queries"], row["centers"], row["dimension"]) == headline
        }
    return summary


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Pairs per second of every peer as the work grows."""
    from qipf.plots.drawing import drawing

    sides = (("queries", "centers", "queries"), ("centers", "queries", "centres"))
    shown = [row for row in rows if row["dimension"] == 10 and "seconds" in row]
    shown = [row for row in shown if 10_000 in (row["queries"], row["centers"])]
    styles = dict(zip(dict.fromkeys(row["peer"] for row in shown), "os^vDPX*", strict=False))
    with drawing(path, width=9.0, height=3.6, columns=2) as ((left, right),):
        for axis, (varied, fixed, label) in zip((left, right), sides, strict=True):
            for number, (peer, marker) in enumerate(styles.items()):
                points = sorted(
                    (row[varied], row["pairs_per_second"])
                    for row in shown
                    if row["peer"] == peer and row[fixed] == 10_000
                )
                if points:
                    style = marker + ("-" if peer.startswith("qipf") else "--")
                    line = {"color": f"C{number}", "markersize": 4, "label": peer}
                    axis.plot(*zip(*points, strict=True), style, **line)
            axis.set(xscale="log", yscale="log", xlabel=f"{label} (10,000 of the other, d = 10)")
        left.set_ylabel("pairs per second")
        right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="one small size only")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for one measurement")
    parser.add_argument("--output", type=Path, default=HERE.parent / "results")
    options = parser.parse_args()
    best = "qipf triton" if options.device == "cuda" else "qipf attention"
    headline = CUDA_HEADLINE if options.device == "cuda" else HEADLINE

    jobs = plan(options.device, options.quick)
    least = 0.2 if options.quick else 1.0
    rounds: dict[tuple[str, Size], list[dict[str, Any]]] = {}
    for peer, size in progress(jobs, "measuring"):
        row = table_row(peer, size, options.device, least, options.limit)
        rounds.setdefault((peer, size), []).append(row)
    rows = [median_row(found) for found in rounds.values()]
    printed(rows)
    summary = summarised(rows, options.device, headline, best)
    print(json.dumps(summary, indent=2))
    if options.quick:
        return
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"engines-{options.device}"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with stem.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    stem.with_suffix(".json").write_text(json.dumps(summary, indent=2) + "\n")
    if options.device == "cpu":
        draw(rows, stem.with_suffix(".png"))


if __name__ == "__main__":
    main()
