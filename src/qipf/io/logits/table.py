"""An open table of logits: its shape, and its rows in blocks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.io.logits.values import as_floats, checked_labels, require_finite

#: Most numbers in a block (32 MB in float64), and most rows.
NUMBERS_PER_BLOCK, ROWS_PER_BLOCK = 2**22, 2**15


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table."""

    logits: NDArray[Any]  # (n, d) float32 or float64, finite
    labels: NDArray[np.int64] | None = None  # (n,) true classes 0..d-1
    others: dict[str, Any] = field(default_factory=dict)  # other columns, n values each


@dataclass(frozen=True)
class Table:
    """A file of logits whose header has been read, and whose rows are still on disk."""

    path: str
    rows: int  # for a text file the number of lines, an upper bound if quotes hold line breaks
    columns: tuple[str, ...]  # names of the d logits
    labelled: bool
    blocks: Callable[[], Iterator[Block]]

    @property
    def dimension(self) -> int:
        """Number of logits in a row."""
        return len(self.columns)


def checked_block(
    path: str,
    where: Callable[[int], str],
    columns: Sequence[str],
    logits: NDArray[Any],  # (n, d)
    labels: NDArray[Any] | None,  # (n,)
    others: dict[str, Any],
) -> Block:
    """Convert and check rows; `where` describes a row of the block in error messages."""
    logits = as_floats(logits)
    require_finite(logits, path, where, columns)
    if labels is not None:
        labels = checked_labels(labels, len(columns), path, where)
    return Block(logits, labels, others)


def rows_per_block(dimension: int) -> int:
    """Number of rows of this length in a block."""
    return max(1, min(ROWS_PER_BLOCK, NUMBERS_PER_BLOCK // max(1, dimension)))


def row_from(start: int, of: str = "") -> Callable[[int], str]:
    """Describe the rows of a block whose first row is row `start` of the file."""
    return lambda row: f"row {start + row}{of}"
