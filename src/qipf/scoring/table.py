"""Judging a file of logits row by row, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.field.engines.base import blocks
from qipf.field.engines.fused import BLOCK_BYTES
from qipf.field.estimator import QIPF
from qipf.io.logits.reading import open_table
from qipf.io.logits.writing import written
from qipf.progress import progress_bar
from qipf.validation.not_fitted import QIPFNotFittedError

#: Queries that PyTorch's attention takes at a time on the CPU, when there are at least so many.
TILE, FEWEST = 256, 768


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

    def join(self, other: Scored) -> None:
        """Count the rows of another summary in."""
        if other.rows == 0:
            return
        self.rows += other.rows
        self.mean += (other.mean - self.mean) * (other.rows / self.rows)
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.outliers += other.outliers


def checked_field(field: Any) -> QIPF:
    """A fitted field, or the error that says what came instead."""
    if not isinstance(field, QIPF):
        raise QIPFInputError(
            f"field must be a fitted QIPF, such as qipf.load gives, got {type(field).__name__}."
        )
    if not hasattr(field, "offset_"):
        raise QIPFNotFittedError("This QIPF is not fitted yet. Call fit(train_logits) first.")
    return field


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
    require_width(table.path, table.dimension, field)
    output, scored = Path(output), Scored()
    with written(output) as write, progress_bar("scoring", table.rows, unit="row") as bar:
        for block in table.blocks():
            results = _results(field, block.logits, modes)
            scored.add(results["uncertainty"], -field.offset_)
            others = {} if output.suffix.lower() == ".npy" else block.others
            taken = next((name for name in results if name in others), None)
            if taken is not None:
                what = "an array" if Path(path).suffix.lower() == ".npz" else "a column"
                raise QIPFInputError(
                    f"{path} has {what} {taken!r} already. Rename it, or write an .npy file, "
                    "which holds the scores alone."
                )
            write({**others, **results})
            bar.update(len(block.logits))
    return scored


def result_names(field: QIPF, modes: bool) -> list[str]:
    """The columns that scoring adds."""
    return ["uncertainty", *(f"mode_{order}" for order in field.orders if modes)]


def require_new_names(
    path: str, present: Sequence[str], chosen: Sequence[str], field: QIPF, modes: bool
) -> None:
    """Refuse a table that has a column of a result's name, but for logits, which are left out."""
    for name in result_names(field, modes):
        if name in present and name not in chosen:
            raise QIPFInputError(f"{path} has a column {name!r} already. Rename it first.")


def steady_results(
    field: QIPF,
    logits: NDArray[Any],  # (n, d)
    modes: bool,
) -> dict[str, NDArray[np.float64]]:
    """The scores of a block by column, the same to the last bit whatever the number of threads.

    On the CPU, attention takes queries in tiles. Whole tiles of one size are computed alike, row by
    row, however many threads share them and whoever else is in the block; small blocks and odd ends
    are not. So the block is cut into whole tiles, the last filled up with copies of a row, whose
    scores are dropped. Only rows that float32 does not resolve, which the engine collects and
    computes once more, may still differ in the last digits of float64 from block to block.

    >>> field = QIPF().fit(np.random.default_rng(0).normal(size=(100, 2)))
    >>> steady_results(field, np.zeros((3, 2)), modes=False)["uncertainty"].shape
    (3,)
    """
    parts = [_results(field, piece, modes) for piece in _pieces(logits)]
    if not parts:
        return {name: np.empty(0) for name in result_names(field, modes)}
    return {
        name: np.concatenate([part[name] for part in parts])[: len(logits)] for name in parts[0]
    }


def _pieces(logits: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Whole tiles, as many as the engine takes at a time."""
    count, dimension = logits.shape
    size = BLOCK_BYTES["cpu"] // (8 * (dimension + 2)) // TILE * TILE
    for part in blocks(count, max(size, FEWEST)):
        piece = logits[part]
        missing = max(FEWEST - len(piece), -len(piece) % TILE)
        yield np.concatenate([piece, np.repeat(piece[:1], missing, axis=0)])


def _results(field: QIPF, logits: NDArray[Any], modes: bool) -> dict[str, NDArray[np.float64]]:
    if not modes:
        return {"uncertainty": field.uncertainty(logits)}
    columns = field.modes(logits)
    # torch's mean, as in field.uncertainty: numpy's may differ in the last digit
    results = {"uncertainty": torch.from_numpy(columns).mean(1).numpy()}
    return results | {f"mode_{order}": columns[:, k] for k, order in enumerate(tuple(field.orders))}


def require_width(path: str, dimension: int, field: QIPF) -> None:
    """Refuse logits of another number than the field was fitted with."""
    if dimension != field.n_features_in_:
        ways_out = {
            ".npy": "Judge logits of the network that the field was fitted with.",
            ".npz": "Name another array with --columns.",
        }
        raise QIPFInputError(
            f"{path} has {dimension} logits a row, but the field was fitted with "
            f"{field.n_features_in_}. "
            + ways_out.get(Path(path).suffix.lower(), "Choose them with --columns.")
        )
