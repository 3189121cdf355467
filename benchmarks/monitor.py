"""How fast a stream is watched, and in how much memory.

    python benchmarks/monitor.py                                   # a few minutes on two cores
    python benchmarks/monitor.py --predictions 20000               # to see that it works

Predictions of ten logits through a field of 6,000 centres, by `ShiftMonitor.update`
in windows of 1,000 and by `qipf monitor` from a file and from a pipe, its start and the saving of
its state included. No row comes twice; the rows of the library are drawn between its windows, and
only the windows are timed. Every measurement is a process of its own, so that its peak memory is
its own, and is made for a tenth of the stream too, to see whether memory grows. Writes
results/monitor.csv. `monitor_delay.py` measures how soon a shift is noticed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from clusters import logits

import qipf
from qipf.progress import progress

CENTERS, HELD_OUT, DIMENSION, WINDOW = 6_000, 5_000, 10, 1_000


def write_lines(path: Path, count: int) -> None:
    """A stream as text, written piece by piece."""
    with open(path, "w") as file:
        for start in range(0, count, 10_000):
            rows = logits(min(10_000, count - start), DIMENSION, 1 + start).tolist()
            if path.suffix == ".csv":
                file.writelines(",".join(f"{x:.6g}" for x in row) + "\n" for row in rows)
            else:
                file.writelines(json.dumps([round(x, 5) for x in row]) + "\n" for row in rows)


def through_library(folder: Path, count: int) -> None:
    """In this process, which does nothing else."""
    monitor = qipf.ShiftMonitor(qipf.load(folder / "field.qipf"), window=WINDOW)
    seconds = 0.0
    for start in range(0, count, WINDOW):
        rows = logits(min(WINDOW, count - start), DIMENSION, 1 + start).numpy()
        started = time.perf_counter()
        monitor.update(rows)
        seconds += time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "peak_kib": peak, "seen": monitor.seen}))


def measured(folder: Path, way: str, count: int) -> dict[str, object]:
    """Seconds and peak memory of one way, in a process of its own."""
    command = [sys.executable, __file__, "--only-library", str(folder)]
    command += ["--predictions", str(count)]
    source = None
    if way != "library":
        kind, form = way.split(" ")
        lines = folder / f"{count}.{form}"
        if not lines.exists():
            write_lines(lines, count)
        state = folder / f"{count}-{kind}-{form}.state"
        command = [sys.executable, "-c", "from qipf.cli import main; main()", "monitor"]
        command += [str(folder / "field.qipf"), "--json", "--state", str(state)]
        command += [str(lines)] if kind == "file" else []
        source = None if kind == "file" else lines
    started = time.perf_counter()
    feed = None if source is None else subprocess.Popen(["cat", source], stdout=subprocess.PIPE)
    process = subprocess.Popen(
        command, stdin=None if feed is None else feed.stdout, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    last = [*process.stdout][-1]
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    told = json.loads(last)
    if process.returncode or told["seen"] != count:
        raise RuntimeError(f"{way}: exit code {process.returncode}, {told['seen']} of {count} seen")
    if feed is not None:
        feed.wait()
    seconds = told.get("seconds", seconds)
    return {
        "way": way,
        "predictions": count,
        "seconds": round(seconds, 2),
        "predictions_per_second": round(count / seconds),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }


def speed(count: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        field = qipf.QIPF(bandwidth="silverman").fit(logits(CENTERS, DIMENSION, 0).numpy())
        field.calibrate(logits(HELD_OUT, DIMENSION, -1).numpy())
        qipf.save(field, folder / "field.qipf")
        ways = ("library", "file csv", "pipe csv", "file jsonl", "pipe jsonl")
        rows = [(way, size) for way in ways for size in (count // 10, count)]
        return [measured(folder, way, size) for way, size in progress(rows, "watching")]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(path.read_text(), end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--predictions", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--only-library", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.predictions < 10:
        parser.error("--predictions must be at least 10")
    if options.only_library:
        through_library(options.only_library, options.predictions)
        return
    write(options.out / "monitor.csv", speed(options.predictions))


if __name__ == "__main__":
    main()
