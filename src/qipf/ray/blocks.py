"""Logits in the blocks of a Ray Data dataset."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.io.logits.columns import chosen_columns
from qipf.io.logits.parquet_files import pyarrow
from qipf.io.logits.table import require_finite
from qipf.ray.connection import ray as asked_for

#: What errors call the table.
NAME = "The dataset"


def checked_dataset(dataset: Any) -> Any:
    """A Ray Data dataset, or a refusal."""
    asked_for()  # told here, if it is missing
    import ray.data

    if not isinstance(dataset, ray.data.Dataset):
        raise QIPFInputError(
            f"dataset must be a ray.data.Dataset, got {type(dataset).__name__}. Make one with "
            "ray.data.read_parquet(folder), or score arrays with field.uncertainty."
        )
    return dataset


def chosen_of(dataset: Any, columns: str | None) -> list[str]:
    """The columns of a dataset that hold logits, which must be numbers as far as is known."""
    chosen = chosen_columns(NAME, dataset.columns() or [], columns)
    types = pyarrow().types
    for name, kind in _kinds(dataset).items():
        single = not isinstance(kind, type) and not (types.is_nested(kind) or _is_extension(kind))
        if name in chosen and single and not (types.is_floating(kind) or types.is_integer(kind)):
            raise QIPFInputError(f"{NAME}: the column {name!r} holds {kind}, not numbers.")
    return chosen


def known_width(dataset: Any, chosen: Sequence[str]) -> int | None:
    """How many logits a row has, by the schema; None where the rows alone can tell."""
    if len(chosen) > 1:
        return len(chosen)
    kind, types = _kinds(dataset).get(chosen[0]), pyarrow().types
    if kind is None or isinstance(kind, type):  # blocks of pandas hold whatever they hold
        return None
    if _is_extension(kind):  # a tensor, perhaps of any length
        shape = tuple(getattr(kind, "shape", ()))
        return shape[0] if len(shape) == 1 else None
    if types.is_fixed_size_list(kind):
        return int(kind.list_size)
    return None if types.is_nested(kind) else 1


def _kinds(dataset: Any) -> dict[str, Any]:
    """The type of every column: Arrow's, or Python's where Arrow has none."""
    schema = dataset.schema()
    return {} if schema is None else dict(zip(schema.names, schema.types, strict=True))


def _is_extension(kind: Any) -> bool:
    return isinstance(kind, pyarrow().BaseExtensionType)


def ordered(dataset: Any) -> Any:
    """The same dataset, whose blocks come in order whenever it is read."""
    # with options of its own: what map_batches makes shares those of what it was made from
    own = type(dataset).copy(dataset, _deep_copy=True)
    own.context.execution_options.preserve_order = True
    return own


@contextmanager
def in_order(dataset: Any) -> Iterator[None]:
    """While this lasts, the dataset's blocks come in order, and Ray Data says nothing."""
    context, log = dataset.context, logging.getLogger("ray.data")
    was = context.execution_options.preserve_order, context.enable_progress_bars, log.level
    context.execution_options.preserve_order, context.enable_progress_bars = True, False
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.execution_options.preserve_order, context.enable_progress_bars = was[:2]
        log.setLevel(was[2])


def logits_of(batch: Any, columns: Sequence[str]) -> NDArray[Any]:  # (n, d)
    """The logits of an Arrow block: a column for each, or one column of lists or tensors."""
    logits = _whole([values_of(batch, name) for name in columns])
    names = columns if len(columns) == logits.shape[1] else [columns[0]] * logits.shape[1]
    require_finite(logits, NAME, lambda row: f"row {row} of a block", names)
    return logits


def uneven() -> QIPFInputError:
    """The error for lists of logits that differ in length."""
    return QIPFInputError(f"{NAME} has rows with different numbers of logits.")


def values_of(batch: Any, column: str) -> NDArray[Any]:  # (n,) or (n, …)
    """A column of a block, whichever library holds it."""
    from ray.data.block import BlockAccessor

    values: Any = BlockAccessor.for_block(batch).to_numpy(column)
    return values


def _whole(parts: list[NDArray[Any]]) -> NDArray[Any]:  # (n, d)
    if len(parts) == 1 and (parts[0].dtype == object or parts[0].ndim == 2):
        try:
            stacked = np.stack(list(parts[0])) if len(parts[0]) else np.empty((0, 0))
        except ValueError as error:
            raise uneven() from error
        parts = [stacked]
    else:
        parts = [np.stack(parts, axis=1)]
    logits = parts[0]
    if logits.ndim != 2 or logits.dtype.kind not in "fiu":
        raise QIPFInputError(
            f"{NAME}'s logits must be numbers, one column each or all in one as a list, got "
            f"{logits.dtype} of shape {logits.shape[1:]} a row."
        )
    small = logits.dtype in (np.float16, np.float32)
    return np.ascontiguousarray(logits, np.float32 if small else np.float64)
