"""What a file of logits gives: its shape, and its rows block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError

#: Numbers in a block, at most: 32 MB in float64, and no more rows than below.
NUMBERS_PER_BLOCK, ROWS_PER_BLOCK = 2**22, 2**15


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table."""

    logits: NDArray[Any]  # (n, d) float32 or float64, finite
    labels: NDArray[np.int64] | None = None  # (n,) true classes 0..d-1
    others: dict[str, Any] = field(default_factory=dict)  # by column: n values each, as they came


@dataclass(frozen=True)
class Table:
    """A file of logits, opened: what it holds is known, its rows are still on the disk."""

    path: str
    rows: int  # for a text file: its lines, which quoted line breaks may exceed
    columns: tuple[str, ...]  # names of the d logits
    labelled: bool
    blocks: Callable[[], Iterator[Block]]

    @property
    def dimension(self) -> int:
        """Logits in a row."""
        return len(self.columns)


def rows_per_block(dimension: int) -> int:
    """How many rows of this length make a block.

    >>> rows_per_block(10), rows_per_block(1000)
    (32768, 4194)
    """
    return max(1, min(ROWS_PER_BLOCK, NUMBERS_PER_BLOCK // max(1, dimension)))


def require_finite(
    logits: NDArray[Any],  # (n, d)
    path: str,
    where: Callable[[int], str],
    columns: Sequence[str],
) -> None:
    """Refuse NaN and infinity, naming the place of the first."""
    if np.isfinite(logits.sum()):  # one pass; only a suspicion is looked into
        return
    rows, at = np.nonzero(~np.isfinite(logits))
    if not len(rows):
        return
    raise QIPFInputError(
        f"{path}, {where(int(rows[0]))}: {columns[at[0]]} is {logits[rows[0], at[0]]}. "
        "Drop rows with NaN or inf, or repair them."
    )


def checked_labels(
    values: NDArray[Any],  # (n,)
    classes: int,
    path: str,
    where: Callable[[int], str],
) -> NDArray[np.int64]:  # (n,)
    """True classes as whole numbers 0..classes-1."""
    if values.dtype.kind in "fiub":
        bad = ~np.isin(values, np.arange(classes))
        if not bad.any():
            return values.astype(np.int64)
        first = int(np.flatnonzero(bad)[0])
    else:
        first = 0
    raise QIPFInputError(
        f"{path}, {where(first)}: the label is {str(values[first])!r}, but {classes} logits have "
        f"classes 0..{classes - 1}."
    )
