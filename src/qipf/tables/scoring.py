"""Judging a file of logits row by row, in constant memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.estimator import QIPF
from qipf.progress import progress_bar
from qipf.tables.reading import open_table
from qipf.tables.table import Table
from qipf.tables.writing import written


@dataclass
class Scored:
    """What the scores of a file come to."""

    rows: int = 0
    mean: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf
    outliers: int = 0  # rows that the field's `predict` calls outliers

    def add(self, uncertainty: NDArray[np.float64], threshold: float) -> None:
        """Count the next rows in."""
        self.rows += len(uncertainty)
        # a running mean: sums of extreme scores would leave the floating-point range
        self.mean += float((uncertainty - self.mean).mean()) * len(uncertainty) / self.rows
        self.lowest = min(self.lowest, float(uncertainty.min()))
        self.highest = max(self.highest, float(uncertainty.max()))
        self.outliers += int((uncertainty > threshold).sum())


def score_table(
    field: QIPF,
    path: Path | str,
    output: Path | str,
    columns: str | None = None,
    modes: bool = False,
) -> Scored:
    """Write the uncertainty of every row of a file, in order, and the row's other columns.

    Parameters
    ----------
    field : a fitted field.
    path : logits, as `open_table` reads them.
    output : .csv, .parquet, .npz, or .npy (which holds the numbers alone); see `written`.
    columns : which columns are the logits.
    modes : write the modes too, as `mode_1`, `mode_2`, … by their orders.
    """
    table = open_table(path, columns, labels=None)
    _check_width(table, field)
    output, scored = Path(output), Scored()
    with written(output) as write, progress_bar("scoring", table.rows, unit="row") as bar:
        for block in table.blocks():
            results = _results(field, block.logits, modes)
            scored.add(results["uncertainty"], -field.offset_)
            others = {} if output.suffix.lower() == ".npy" else block.others
            taken = next((name for name in results if name in others), None)
            if taken is not None:
                raise QIPFInputError(
                    f"{path} has a column {taken!r} already. Rename it, or write an .npy file, "
                    "which holds the scores alone."
                )
            write({**others, **results})
            bar.update(len(block.logits))
    return scored


def _results(field: QIPF, logits: NDArray[Any], modes: bool) -> dict[str, NDArray[np.float64]]:
    if not modes:
        return {"uncertainty": field.uncertainty(logits)}
    columns = field.modes(logits)
    # torch's mean, as in field.uncertainty: numpy's may differ in the last digit
    results = {"uncertainty": torch.from_numpy(columns).mean(1).numpy()}
    return results | {f"mode_{order}": columns[:, k] for k, order in enumerate(tuple(field.orders))}


def _check_width(table: Table, field: QIPF) -> None:
    if table.dimension != field.n_features_in_:
        raise QIPFInputError(
            f"{table.path} has {table.dimension} logits a row, but the field was fitted with "
            f"{field.n_features_in_}. Choose them with --columns."
        )
