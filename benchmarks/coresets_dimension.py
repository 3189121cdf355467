"""Coresets in many dimensions: up to which they stand for all rows better than a random sample.

    python benchmarks/coresets_dimension.py

Made-up rows of ten clusters: "round" ones, with the same variance in every dimension, and "flat"
ones, whose variance falls as 1/k over the dimensions k, as that of a network's features does. Half
of the queries are damped and noisier. Against the field of all rows at the same bandwidth: the rank
correlation of log density and uncertainty, and the ROC-AUC of the damped queries.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from qipf import Coreset, coreset
from qipf.field.bandwidth import silverman
from qipf.field.kernel import field_of
from qipf.field.potential import bare_modes

ORDERS = (1, 2, 3, 4)


def made_up(kind: str, rows: int, queries: int, dimension: int) -> tuple[torch.Tensor, ...]:
    """Rows, queries, and which of these are damped."""
    random = torch.Generator().manual_seed(0)
    scale = torch.ones(dimension)
    if kind == "flat":
        scale = (1 + torch.arange(dimension)) ** -0.5
    means = 3 * scale * torch.randn(10, dimension, generator=random)
    found = []
    for count in (rows, queries):
        chosen = torch.randint(10, (count,), generator=random)
        noise = scale * torch.randn(count, dimension, generator=random)
        damped = (torch.arange(count) % 2 == 1) & (count == queries)
        height = torch.where(damped, torch.rand(count, generator=random), 1.0)[:, None]
        found.append(height * means[chosen] + torch.where(damped, 1.3, 1.0)[:, None] * noise)
    return found[0], found[1], damped


def compare(kind: str, dimension: int, options: argparse.Namespace) -> list[dict[str, object]]:
    rows, queries, damped = made_up(kind, options.rows, options.queries, dimension)
    size = options.size
    table: list[dict[str, object]] = []
    for factor in options.factors:
        sigma = factor * silverman(rows)
        methods: dict[str, Callable[[], Coreset]] = {
            "all": lambda: Coreset.of_rows(rows),
            "random": lambda: Coreset.of_rows(rows[:size]),  # rows are in random order
            "cells": lambda: coreset(rows, size),
            "coreset": lambda sigma=sigma: coreset(rows, size, bandwidth=sigma),
        }
        truth: tuple[np.ndarray, ...] | None = None
        for method, make in methods.items():
            start = time.process_time()
            small = make()
            seconds = time.process_time() - start
            field = field_of("auto", small.centers, sigma, small.log_weights, small.spread)
            moments = field(queries)
            scores = bare_modes(moments, sigma, ORDERS).mean(1)
            found = (moments.log_density.numpy(), scores.numpy())
            truth = truth or found
            ranks = [float(spearmanr(one, two)[0]) for one, two in zip(found, truth, strict=True)]
            aucs = [float(roc_auc_score(damped, score)) for score in (-found[0], found[1])]
            table.append(
                {
                    "rows": kind,
                    "dimension": dimension,
                    "factor": factor,
                    "method": method,
                    "centers": len(small.centers),
                    "cpu_seconds": round(seconds, 2),
                    "rank_log_density": round(ranks[0], 4),
                    "rank_uncertainty": round(ranks[1], 4),
                    "roc_auc_log_density": round(aucs[0], 4),
                    "roc_auc_uncertainty": round(aucs[1], 4),
                }
            )
            print(table[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dimensions", type=int, nargs="*", default=[10, 16, 32, 64, 128, 1000])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--size", type=int, default=2_000)
    parser.add_argument("--factors", type=float, nargs="*", default=[1.0, 2.0])
    parser.add_argument("--out", type=Path, default=Path("results/coresets-dimension.csv"))
    options = parser.parse_args()
    table = [
        row
        for kind in ("round", "flat")
        for dimension in options.dimensions
        for row in compare(kind, dimension, options)
    ]
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
