"""An open table of logits: its shape, its rows in blocks, and the checks of its values."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError


@dataclass(frozen=True)
class FileType:
    """A type of files that are not text."""

    what: str  # in words
    unpack: str | None = None  # the program that writes it unpacked to standard output


#: By patterns that no line of text begins with.
_TYPES = {
    rb"\x1f\x8b": FileType("compressed (gzip)", "zcat"),
    rb"\xfd7zXZ\x00": FileType("compressed (xz)", "xzcat"),
    rb"\x28\xb5\x2f\xfd": FileType("compressed (zstd)", "zstdcat"),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": FileType("compressed (bzip2)", "bzcat"),
    rb"PK\x03\x04": FileType("a zip archive, as .npz files are"),
    rb"\x93NUMPY": FileType("an .npy file"),
    rb"PAR1\x15": FileType("a Parquet file"),
}


def detect_binary(file: BinaryIO) -> FileType | None:
    """The type of a file, open at its start, that is not text; None if it is not known."""
    head = file.read(16)
    return next((found for pattern, found in _TYPES.items() if re.match(pattern, head)), None)


def parse_number(text: str | bytes) -> float:
    """Convert text to a float; raise ValueError for notations that only Python accepts.

    >>> parse_number("-1.5e3"), parse_number(b" inf")
    (-1500.0, inf)
    >>> parse_number("1_0")
    Traceback (most recent call last):
    ...
    ValueError: not a number
    """
    # Python reads 1_0 as ten, and accepts the digits of other scripts
    if not text.isascii() or (b"_" if isinstance(text, bytes) else "_") in text:  # type: ignore[operator]
        raise ValueError("not a number")
    return float(text)


def is_number(text: str | bytes) -> bool:
    """Whether `parse_number` can read the text."""
    try:
        parse_number(text)
    except ValueError:
        return False
    return True


def as_floats(values: NDArray[Any]) -> NDArray[Any]:
    """Convert numbers to float32 if they are floats of at most 32 bits, else to float64."""
    small = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    return np.ascontiguousarray(values, np.float32 if small else np.float64)


def require_finite(
    logits: NDArray[Any],  # (n, d)
    path: str,
    where: Callable[[int], str],
    columns: Sequence[str],
) -> None:
    """Raise if a logit is NaN or infinite, naming the first; `where` describes a row."""
    if np.isfinite(logits.sum()):  # one pass; the sum of finite numbers may still overflow
        return
    rows, at = np.nonzero(~np.isfinite(logits))
    if not len(rows):
        return
    raise QIPFInputError(
        f"{path}, {where(int(rows[0]))}: {columns[at[0]]} is {logits[rows[0], at[0]]}. "
        "Drop rows with NaN or inf, or repair them. (qipf score --nan-policy propagate gives them "
        "no scores; fit, calibrate and report always raise.)"
    )


def checked_labels(
    values: NDArray[Any],  # (n,)
    classes: int,
    path: str,
    where: Callable[[int], str],
) -> NDArray[np.int64]:  # (n,)
    """Convert labels to integers in 0..classes-1; raise if one is anything else.

    `classes` is the number of logits; one logit is that of class 1 against class 0.
    """
    logits = "1 logit has" if classes == 1 else f"{classes} logits have"
    classes = max(2, classes)
    bad = ~np.isin(values, np.arange(classes)) if values.dtype.kind in "fiub" else np.array([True])
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise QIPFInputError(
            f"{path}, {where(first)}: the label is {str(values[first])!r}, but {logits} classes "
            f"0..{classes - 1}."
        )
    return values.astype(np.int64)


#: Most numbers in a block (32 MB in float64), and most rows.
NUMBERS_PER_BLOCK, ROWS_PER_BLOCK = 2**22, 2**15


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table."""

    logits: NDArray[Any]  # (n, d) float32 or float64; finite, unless they were read otherwise
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
    finite: bool = True,
) -> Block:
    """Convert and check rows; `where` describes a row of the block in error messages."""
    logits = as_floats(logits)
    if finite:
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
