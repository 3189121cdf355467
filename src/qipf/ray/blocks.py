"""Logits in the blocks of a Ray Data dataset."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qipf.errors import QIPFInputError
from qipf.io.logits.table import Block, checked_block
from qipf.ray.connection import ray as import_ray

#: The name of the table in error messages.
NAME = "The dataset"

#: The error for lists of logits that differ in length.
UNEQUAL = f"{NAME} has rows with different numbers of logits."


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


def read_block(block: Any, columns: Sequence[str], label: str | None = None) -> Block:
    """The logits of a block: one column for each, or one column of lists or tensors; its labels."""
    from ray.data.block import BlockAccessor

    values: Any = BlockAccessor.for_block(block).to_numpy  # of any of Ray's formats
    parts = [values(name) for name in columns]
    if len(parts) == 1 and (parts[0].dtype == object or parts[0].ndim == 2):
        try:
            logits = np.stack(list(parts[0])) if len(parts[0]) else np.empty((0, 0))
        except ValueError as error:
            raise QIPFInputError(UNEQUAL) from error
    else:
        logits = np.stack(parts, axis=1)
    if logits.ndim != 2 or logits.dtype.kind not in "fiu":
        raise QIPFInputError(
            f"{NAME}'s logits must be numbers, one column each or all in one as a list, got "
            f"{logits.dtype} of shape {logits.shape[1:]} per row."
        )
    names = columns if len(columns) == logits.shape[1] else [columns[0]] * logits.shape[1]
    labels = values(label) if label else None
    return checked_block(NAME, lambda row: f"row {row} of a block", names, logits, labels, {})
