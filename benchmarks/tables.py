"""Time and memory of `qipf score` on a text file of a million rows.

    python benchmarks/tables.py

Makes training and test logits (seeded: ten classes, rows that drift away from them), then runs
`qipf fit` and `qipf score` as a user would, each in a process of its own, and checks the result:
as many rows as came in, in their order, with the uncertainties that the field gives in Python.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

DIMENSION, CENTERS, TRAINING_ROWS = 10, 6_000, 60_000
ROWS_AT_A_TIME = 50_000

#: Rows of the result that are computed again in Python.
CHECKED = 2_000


class Row(NamedTuple):
    """One line of the table: a command, what it read, and what it took."""

    command: str
    rows: int
    columns: int
    centers: int
    megabytes_in: float
    seconds: float
    rows_per_second: float
    peak_megabytes: float
    cores: int


def logits(random: np.random.Generator, rows: int, drift: float) -> np.ndarray:  # (rows, DIMENSION)
    """Ten classes, one logit of each raised; with drift, lower and noisier."""
    heights = 12 * (1 - drift * random.uniform(size=rows))
    noise = random.normal(scale=1.5 + drift, size=(rows, DIMENSION))
    return heights[:, None] * np.eye(DIMENSION)[random.integers(DIMENSION, size=rows)] + noise


def write_logits(path: Path, rows: int, seed: int, drift: float) -> None:
    random = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["id", *(f"logit_{k}" for k in range(DIMENSION))])
        for start in range(0, rows, ROWS_AT_A_TIME):
            block = logits(random, min(ROWS_AT_A_TIME, rows - start), drift)
            lines.writerows([start + i, *row] for i, row in enumerate(block.round(5).tolist()))


def measure(arguments: list[str]) -> tuple[float, float]:
    """Seconds, and the largest resident memory in MB, of one `qipf` command."""
    code = "from qipf.cli import main; main()"
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    # of this child alone; it would never count less than this process, which is why torch is not
    # imported here before
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"qipf {' '.join(arguments)} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def check(field: Path, test: Path, scored: Path, rows: int) -> None:
    """The result has every row, in order, with the field's own uncertainties."""
    import qipf

    with scored.open(newline="") as file:
        lines = csv.reader(file)
        if next(lines) != ["id", "uncertainty"]:
            raise SystemExit("the result has other columns")
        found = np.array([[float(cell) for cell in line] for line in lines])
    if not np.array_equal(found[:, 0], np.arange(rows)):
        raise SystemExit("rows are missing, or not in order")
    drawn = np.sort(np.random.default_rng(0).choice(rows, min(CHECKED, rows), replace=False))
    wanted = set(drawn.tolist())
    with test.open(newline="") as file:
        lines = csv.reader(file)
        next(lines)
        inputs = [[float(x) for x in line[1:]] for i, line in enumerate(lines) if i in wanted]
    expected = qipf.load(field).uncertainty(np.array(inputs))
    # blocks of other sizes are summed in another order, in float32
    np.testing.assert_allclose(found[drawn, 1], expected, rtol=1e-4, atol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path("results/tables.csv"))
    options = parser.parse_args()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        train, test, field, scored = (
            Path(folder, name) for name in ("train.csv", "test.csv", "field.qipf", "scored.csv")
        )
        write_logits(train, TRAINING_ROWS, seed=0, drift=0.0)
        write_logits(test, options.rows, seed=1, drift=0.8)
        for name, source, rows, arguments in (
            ("fit", train, TRAINING_ROWS, [train, "-o", field, "--max-centers", CENTERS]),
            ("score", test, options.rows, [field, test, "-o", scored]),
        ):
            seconds, peak = measure([name, *map(str, arguments)])
            size = source.stat().st_size / 1e6
            table.append(
                Row(f"qipf {name}", rows, DIMENSION, CENTERS, size, seconds, rows / seconds, peak,
                    os.cpu_count() or 0)
            )  # fmt: skip
        check(field, test, scored, options.rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows([f"{x:.5g}" if isinstance(x, float) else x for x in row] for row in table)
    sys.stdout.write(options.out.read_text())


if __name__ == "__main__":
    main()
