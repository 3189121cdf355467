"""Scoring a file of logits row by row, in constant memory; the limit of outliers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.atomic import checked_name
from qipf.io.logits.reading import open_table
from qipf.io.logits.writing import table_writer
from qipf.progress import progress_bar
from qipf.scoring.results import block_results, require_new_names, result_names
from qipf.validation.parameters import propagates


@dataclass
class Scored:
    """Summary of the scores of a file."""

    rows: int = 0
    mean: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf
    outliers: int = 0  # rows that the field's `predict` calls outliers
    missing: int = 0  # rows with NaN or infinity, which have no scores

    @property
    def with_scores(self) -> int:
        """Number of rows that have scores."""
        return self.rows - self.missing

    def add(
        self,
        uncertainty: NDArray[np.float64],  # (n,)
        threshold: float,
        logits: NDArray[Any] | None = None,  # (n, d)
    ) -> None:
        """Add the next rows; those whose logits are not finite have no scores."""
        if logits is not None:
            finite = np.isfinite(logits).all(axis=1)
            self.missing += int((~finite).sum())
            self.rows += int((~finite).sum())
            uncertainty = uncertainty[finite]
        if len(uncertainty):
            # relative to the present mean: sums of extreme scores would overflow
            mean = self.mean + float((uncertainty - self.mean).mean())
            lowest, highest = float(uncertainty.min()), float(uncertainty.max())
            outliers = int((uncertainty > threshold).sum())
            self.join(Scored(len(uncertainty), mean, lowest, highest, outliers))

    def join(self, other: "Scored") -> None:
        """Add the rows of another summary."""
        self.rows += other.rows
        self.missing += other.missing
        if other.with_scores == 0:
            return
        self.mean += (other.mean - self.mean) * (other.with_scores / self.with_scores)
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
    results: Sequence[str] | None = None,
) -> Scored:
    """Write predicted class, uncertainty and decisions of every row of a file, in order.

    The row's other columns are written too.

    Parameters
    ----------
    field : a fitted field; its `nan_policy` says what becomes of rows with NaN or infinity.
    path : logits, as `open_table` reads them.
    output : .csv, .parquet, .npz, or .npy (by default with the uncertainty and modes alone); see
        `table_writer`.
    columns : which columns are the logits.
    modes : write the modes too, as `mode_1`, `mode_2`, … by their orders.
    results : which of `qipf.scoring.results.RESULTS` to write besides `uncertainty`; by default all
        that the field knows.
    """
    table = open_table(path, columns, labels=None, finite=not propagates(field.nan_policy))
    require_width(table.path, table.dimension, field)
    output, scored = checked_name(output), Scored()
    single = output.suffix.lower() == ".npy"
    names = result_names(field, modes, () if single and results is None else results)
    with table_writer(output) as write, progress_bar("scoring", table.rows, unit="row") as bar:
        for block in table.blocks():
            found = block_results(field, block.logits, names)
            scored.add(found["uncertainty"], field.outlier_limit_, block.logits)
            others = {} if single else block.others
            require_new_names(table.path, list(others), [], names)
            write({**others, **found})
            bar.update(len(block.logits))
    return scored


def require_width(path: str, dimension: int, field: QIPF) -> None:
    """Raise if the number of logits differs from that of the field's training rows."""
    if dimension != field.n_features_in_:
        raise QIPFInputError(
            f"{path} has {dimension} logits a row, but the field was fitted with "
            f"{field.n_features_in_}. Select the logits with --columns, or score those of the "
            "network that the field was fitted with."
        )


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
                "that holds for new rows: qipf calibrate MODEL HELD_OUT"
            )
        if math.isinf(self.above):
            return f"{self.held_out:,} held-out rows are too few to detect {share} outliers"
        return f"more uncertain than {usual} of {self.held_out:,} held-out rows"


def outlier_limit(field: QIPF) -> Limit:
    """The limit of a field's `predict`, with the rows it was estimated on."""
    held_out = field.build().calibration_
    count = None if held_out is None else len(held_out)
    return Limit(field.outlier_limit_, float(field.contamination), count)
