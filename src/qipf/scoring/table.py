"""Scoring a file of logits row by row, in constant memory; the limit of outliers."""

import copy
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qipf.calibration.quantization import highest, rounded
from qipf.errors import QIPFInputError
from qipf.field.engines.base import blocks
from qipf.field.engines.fused import BLOCK_BYTES
from qipf.field.estimator import QIPF
from qipf.io.logits.reading import open_table
from qipf.io.logits.writing import table_writer
from qipf.progress import progress_bar

#: Queries that PyTorch's attention processes at a time on the CPU, if there are at least FEWEST.
TILE, FEWEST = 256, 768


@dataclass
class Scored:
    """Summary of the scores of a file."""

    rows: int = 0
    mean: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf
    outliers: int = 0  # rows that the field's `predict` calls outliers

    def add(self, uncertainty: NDArray[np.float64], threshold: float) -> None:
        """Add the next rows."""
        if len(uncertainty):
            # relative to the present mean: sums of extreme scores would overflow
            mean = self.mean + float((uncertainty - self.mean).mean())
            lowest, highest = float(uncertainty.min()), float(uncertainty.max())
            outliers = int((uncertainty > threshold).sum())
            self.join(Scored(len(uncertainty), mean, lowest, highest, outliers))

    def join(self, other: "Scored") -> None:
        """Add the rows of another summary."""
        if other.rows == 0:
            return
        self.rows += other.rows
        self.mean += (other.mean - self.mean) * (other.rows / self.rows)
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.outliers += other.outliers


def checked_field(field: Any) -> QIPF:
    """Return a fitted field; raise if it is anything else."""
    if not isinstance(field, QIPF):
        raise QIPFInputError(
            f"field must be a fitted QIPF, such as qipf.load gives, got {type(field).__name__}."
        )
    return field.build()


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
    output : .csv, .parquet, .npz, or .npy (which holds the scores alone); see `table_writer`.
    columns : which columns are the logits.
    modes : write the modes too, as `mode_1`, `mode_2`, … by their orders.
    """
    table = open_table(path, columns, labels=None)
    require_width(table.path, table.dimension, field)
    output, scored = Path(output), Scored()
    with table_writer(output) as write, progress_bar("scoring", table.rows, unit="row") as bar:
        for block in table.blocks():
            results = _results(field, block.logits, modes)
            scored.add(results["uncertainty"], -field.offset_)
            others = {} if output.suffix.lower() == ".npy" else block.others
            require_new_names(table.path, list(others), [], field, modes)
            write({**others, **results})
            bar.update(len(block.logits))
    return scored


def result_names(field: QIPF, modes: bool) -> list[str]:
    """Names of the columns that scoring adds."""
    return ["uncertainty", *(f"mode_{order}" for order in field.orders if modes)]


def require_new_names(
    path: str, present: Sequence[str], chosen: Sequence[str], field: QIPF, modes: bool
) -> None:
    """Raise if a column other than the logits, which are not written, has a result's name."""
    for name in result_names(field, modes):
        if name in present and name not in chosen:
            raise QIPFInputError(f"{path} already has a column {name!r}. Rename it first.")


def require_width(path: str, dimension: int, field: QIPF) -> None:
    """Raise if the number of logits differs from that of the field's training rows."""
    if dimension != field.n_features_in_:
        raise QIPFInputError(
            f"{path} has {dimension} logits a row, but the field was fitted with "
            f"{field.n_features_in_}. Select the logits with --columns, or score those of the "
            "network that the field was fitted with."
        )


def steady_results(
    field: QIPF,
    logits: NDArray[Any],  # (n, d)
    modes: bool,
) -> dict[str, NDArray[np.float64]]:
    """The scores of a block by column, the same to the last bit for any number of threads.

    On the CPU, attention takes queries in tiles. Whole tiles of one size are computed alike, row by
    row, for any number of threads and any other rows in the block; small blocks and incomplete
    tiles are not. So the block is cut into whole tiles, the last one padded with copies of a row,
    whose scores are dropped. Only rows that float32 does not resolve, which the engine collects and
    computes once more, may still differ in the last digits of float64 from block to block.
    """
    parts = [_results(field, piece, modes) for piece in _whole_tiles(logits)]
    if not parts:
        return {name: np.empty(0) for name in result_names(field, modes)}
    return {
        name: np.concatenate([part[name] for part in parts])[: len(logits)] for name in parts[0]
    }


def _whole_tiles(logits: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The rows in pieces of whole tiles, as many as the engine takes at a time."""
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


@dataclass(frozen=True)
class Limit:
    """A limit of the uncertainty of inliers, and the rows it was estimated on."""

    above: float  # infinite if there are too few held-out rows for any outlier
    share: float  # expected share of outliers among rows like those it was estimated on
    held_out: int | None  # number of held-out rows; None: the training rows were used

    def __str__(self) -> str:
        share, usual = f"{100 * self.share:.4g}%", f"{100 * (1 - self.share):.4g}%"
        if self.held_out is None:
            return (
                f"more uncertain than {usual} of the training rows, which score low because the "
                f"field was fitted on them: of new rows, expect more than {share}. For a limit "
                "that holds for new rows, fit with --calibrate HELD_OUT"
            )
        if math.isinf(self.above):
            return f"{self.held_out:,} held-out rows are too few to detect {share} outliers"
        return f"more uncertain than {usual} of {self.held_out:,} held-out rows"


def outlier_limit(field: QIPF) -> Limit:
    r"""The limit of a field, from its calibration if it has one.

    With :math:`n` held-out scores and a share :math:`\alpha`, its `contamination`, an outlier has a
    conformal p-value :math:`(1 + \#\{i : s_i \ge s\})/(n + 1) \le \alpha`, which for rows like the
    held-out ones has probability :math:`\alpha` at most. Scores are compared after rounding (see
    `qipf.calibration.quantization`).

    Without a calibration the limit is that of `predict`: the :math:`1 - \alpha` quantile of the
    training rows. These score low because the field was fitted on them, so that a larger share of
    new rows lies above it.
    """
    share, held_out = float(field.build().contamination), field.calibration_
    if held_out is None:
        return Limit(-float(field.offset_), share, None)
    n = len(held_out)
    # an outlier has fewer held-out scores than this at least as high as its own
    fewer = math.floor(share * (n + 1))
    above = highest(float(rounded(held_out.scores[[n - fewer]])[0])) if fewer else math.inf
    return Limit(above, share, n)


def with_limit(field: QIPF, limit: Limit) -> QIPF:
    """A copy of the field whose `predict` uses this limit."""
    limited = copy.copy(field)
    limited.offset_ = -min(limit.above, sys.float_info.max)
    return limited
