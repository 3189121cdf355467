"""How well few centres stand for many: coresets and random subsamples against the full field.

    python benchmarks/coresets.py --logits mnist_logits.npz

The file holds `train_logits` (n, d), `test_logits` (q, d), clean and corrupted, and `test_wrong`
(q,), where the network erred; with `train_labels` (n,) bandwidths are chosen by the detection of
errors. Without a file, synthetic logits are used.

Every row of the table compares uncertainties over the same queries and, except for the fields
"as fitted", at the same bandwidth: the one that `QIPF(reduction="coreset")` chooses, the one that a
field of all rows chooses by other held-out rows, and multiples of Silverman's width. Rows named
"cells" show the coreset before it is fitted to a bandwidth.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from qipf import QIPF
from qipf.field.bandwidth import silverman
from qipf.field.coreset import coreset
from qipf.field.kernel import Coreset, field_of
from qipf.field.potential import bare_modes
from qipf.progress import progress

ORDERS = (1, 2, 3, 4)


class Logits(NamedTuple):
    """What a network gave its training inputs, and queries with its errors."""

    name: str
    train: torch.Tensor
    test: torch.Tensor
    test_wrong: np.ndarray
    train_labels: np.ndarray | None


class Row(NamedTuple):
    """One line of the table."""

    logits: str
    bandwidth: str  # what set it
    factor: float  # of Silverman's width for all rows
    method: str
    size: int
    seconds: float  # to choose the centres; to fit, where the field is as fitted
    cpu_seconds: float  # the same in processor time, of all cores together
    spearman: float  # with the full field's uncertainty
    auc: float  # of error detection
    auc_loss: float  # against the full field


def read(path: Path, features: str) -> Logits:
    with np.load(path) as file:
        # only logits tell errors
        labels = file.get("train_labels") if features == "logits" else None
        train, test = (torch.from_numpy(file[f"{part}_{features}"]) for part in ("train", "test"))
        name = path.stem if features == "logits" else f"{path.stem}:{features}"
        return Logits(name, train, test, file["test_wrong"], labels)


def synthetic(rows: int = 20_000, queries: int = 6_000) -> Logits:
    """Ten classes; half of the queries are damped and noisy, as those of corrupted images are."""
    random = np.random.default_rng(0)
    labels, asked = random.integers(10, size=rows), random.integers(10, size=queries)
    shape = random.normal(size=(10, 10, 10)) * 0.6 + 2 * np.eye(10)  # each class has its own
    tops = 12 * np.eye(10)

    def logits(classes: np.ndarray, height: np.ndarray) -> np.ndarray:
        noise = random.normal(size=(len(classes), 10)) * random.gamma(4, 0.25, (len(classes), 1))
        return tops[classes] * height[:, None] + np.einsum("nij,nj->ni", shape[classes], noise)

    train = logits(labels, np.ones(rows))
    test = logits(asked, np.where(np.arange(queries) % 2, random.uniform(0.1, 0.9, queries), 1))
    return Logits(
        "synthetic",
        torch.from_numpy(train).float(),
        torch.from_numpy(test).float(),
        test.argmax(1) != asked,
        labels,
    )


def uncertainty(queries: torch.Tensor, centers: Coreset, sigma: float) -> np.ndarray:
    weights = torch.as_tensor(centers.log_weights)
    field = field_of("auto", torch.as_tensor(centers.centers), sigma, weights, centers.spread)
    return bare_modes(field(queries), sigma, ORDERS).mean(1).numpy()


def random_centers(rows: torch.Tensor, size: int) -> Coreset:
    chosen = rows[np.random.RandomState(0).permutation(len(rows))[:size]]
    return Coreset(chosen, torch.ones(len(chosen), dtype=torch.float64))


class Timed(NamedTuple):
    """Something made, and what that took."""

    made: Any
    seconds: float
    cpu_seconds: float


def timed(make: Callable[[], Any]) -> Timed:
    start, cpu_start = time.perf_counter(), time.process_time()
    made = make()
    return Timed(made, time.perf_counter() - start, time.process_time() - cpu_start)


def compare(logits: Logits, sizes: list[int], factors: list[float]) -> list[Row]:
    rows, queries, wrong = logits.train, logits.test, logits.test_wrong
    everything = Coreset(rows, torch.ones(len(rows), dtype=torch.float64))
    width = silverman(rows)
    full = QIPF(max_centers=len(rows), reduction="random").fit(rows, logits.train_labels)
    small = QIPF(max_centers=max(sizes), reduction="coreset").fit(rows, logits.train_labels)
    bandwidths = {f"its own ({small.bandwidth_criterion_})": small.bandwidth_}
    others = {f"full field ({full.bandwidth_criterion_})": full.bandwidth_}
    others |= {f"{factor:g} x Silverman": factor * width for factor in factors}
    for name, sigma in others.items():
        if not any(math.isclose(sigma, known, rel_tol=1e-3) for known in bandwidths.values()):
            bandwidths[name] = sigma
    table = []
    unfitted: dict[tuple[str, int], Timed] = {}
    for size in progress(sizes, "choosing centres"):
        unfitted["random", size] = timed(lambda size=size: random_centers(rows, size))
        unfitted["cells", size] = timed(lambda size=size: coreset(rows, size))
    for name, sigma in progress(bandwidths.items(), "comparing fields"):
        truth = uncertainty(queries, everything, sigma)
        best = float(roc_auc_score(wrong, truth))
        line = (logits.name, name, sigma / width)
        table.append(Row(*line, "all", len(rows), 0.0, 0.0, 1.0, best, 0.0))
        fitted = {
            ("coreset", size): timed(
                lambda size=size, sigma=sigma: coreset(rows, size, bandwidth=sigma)
            )
            for size in progress(sizes, "fitting centres to a bandwidth")
        }
        for (method, size), (chosen, *seconds) in (unfitted | fitted).items():
            doubt = uncertainty(queries, chosen, sigma)
            rank, auc = spearmanr(doubt, truth)[0], float(roc_auc_score(wrong, doubt))
            table.append(Row(*line, method, size, *seconds, rank, auc, best - auc))
    return table + as_fitted(logits, full, width, sizes)


def as_fitted(logits: Logits, full: QIPF, width: float, sizes: list[int]) -> list[Row]:
    """What a user gets: each field with the bandwidth it chooses itself."""
    truth = full.uncertainty(logits.test).numpy()
    best = float(roc_auc_score(logits.test_wrong, truth))
    table = []
    for size in progress(sizes, "fitting fields"):
        for method in ("random", "coreset"):
            field = QIPF(max_centers=size, reduction=method)
            _, *seconds = timed(lambda field=field: field.fit(logits.train, logits.train_labels))
            doubt = field.uncertainty(logits.test).numpy()
            rank, auc = spearmanr(doubt, truth)[0], float(roc_auc_score(logits.test_wrong, doubt))
            line = (logits.name, "as fitted", field.bandwidth_ / width)
            table.append(Row(*line, method, size, *seconds, rank, auc, best - auc))
    return table


def show(table: list[Row], console: Console) -> None:
    shown = Table(*Row._fields)
    for row in table:
        cells = [f"{x:.5f}" if isinstance(x, float) else str(x) for x in row]
        cells[2], cells[5] = f"{row.factor:.2f}", f"{row.seconds:.1f}"
        cells[6] = f"{row.cpu_seconds:.1f}"
        shown.add_row(*cells, end_section=row.method == "coreset" and row.size == table[-1].size)
    console.print(shown)
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logits", type=Path, nargs="*", default=[], help=".npz files")
    parser.add_argument("--features", default="logits", help="arrays train_X and test_X to use")
    parser.add_argument("--sizes", type=int, nargs="*", default=[500, 2000])
    parser.add_argument(
        "--factors", type=float, nargs="*", default=[1.0, 2.0], help="of Silverman's width, to try"
    )
    parser.add_argument("--out", type=Path, default=Path("results/coresets.csv"))
    options = parser.parse_args()
    sources = [read(path, options.features) for path in options.logits] or [synthetic()]
    table = [row for logits in sources for row in compare(logits, options.sizes, options.factors)]
    show(table, Console())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in table)


if __name__ == "__main__":
    main()
