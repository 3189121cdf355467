"""Logits in the blocks of a Ray Data dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.io.logits.values import as_floats, require_finite
from qipf.ray.connection import ray as import_ray

#: The name of the table in error messages.
NAME = "The dataset"


def checked_dataset(dataset: Any) -> Any:
    """Return a Ray Data dataset; raise if it is anything else."""
    import_ray()
    import ray.data

    if not isinstance(dataset, ray.data.Dataset):
        raise QIPFInputError(
            f"dataset must be a ray.data.Dataset, got {type(dataset).__name__}. Make one with "
            "ray.data.read_parquet(folder), or score arrays with field.uncertainty."
        )
    return dataset


def in_order(dataset: Any) -> Any:
    """A copy of the dataset whose blocks come in order whenever it is read."""
    # with its own options: those of the caller's dataset stay as they are
    own = type(dataset).copy(dataset, _deep_copy=True)
    own.context.execution_options.preserve_order = True
    return own


def block_logits(block: Any, columns: Sequence[str]) -> NDArray[Any]:  # (n, d)
    """The logits of a block: one column for each, or one column of lists or tensors."""
    parts = [column_values(block, name) for name in columns]
    if len(parts) == 1 and (parts[0].dtype == object or parts[0].ndim == 2):
        try:
            logits = np.stack(list(parts[0])) if len(parts[0]) else np.empty((0, 0))
        except ValueError as error:
            raise unequal_lengths() from error
    else:
        logits = np.stack(parts, axis=1)
    if logits.ndim != 2 or logits.dtype.kind not in "fiu":
        raise QIPFInputError(
            f"{NAME}'s logits must be numbers, one column each or all in one as a list, got "
            f"{logits.dtype} of shape {logits.shape[1:]} per row."
        )
    logits = as_floats(logits)
    names = columns if len(columns) == logits.shape[1] else [columns[0]] * logits.shape[1]
    require_finite(logits, NAME, row_of_block, names)
    return logits


def column_values(block: Any, column: str) -> NDArray[Any]:  # (n,) or (n, …)
    """A column of a block of any of Ray's formats."""
    from ray.data.block import BlockAccessor

    values: Any = BlockAccessor.for_block(block).to_numpy(column)
    return values


def row_of_block(row: int) -> str:
    """Describe a row in error messages."""
    return f"row {row} of a block"


def unequal_lengths() -> QIPFInputError:
    """The error for lists of logits that differ in length."""
    return QIPFInputError(f"{NAME} has rows with different numbers of logits.")
