"""Opening a file of logits by its suffix."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from qipf.errors import QIPFError, QIPFInputError
from qipf.io.atomic import checked_name
from qipf.io.inputs import checked_input, file_version, reading, require_unchanged
from qipf.io.logits.columns import AUTO
from qipf.io.logits.csv_files import open_csv
from qipf.io.logits.numpy_files import open_numpy, read_labels
from qipf.io.logits.parquet_files import open_parquet
from qipf.io.logits.table import Block, Table

#: How to open a file of logits, by its suffix.
_READERS = {".npz": open_numpy, ".npy": open_numpy, ".csv": open_csv, ".parquet": open_parquet}

#: Suffixes of files that hold logits.
KINDS = tuple(_READERS)

#: Suffixes of files that must be unpacked first.
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def open_table(
    path: Path | str, columns: str | None = None, labels: str | None = AUTO, finite: bool = True
) -> Table:
    """Open a file of logits and check its header.

    Parameters
    ----------
    path : .npz with an array `logits` (and `labels`), .npy with logits alone, or .csv and
        .parquet with one column per logit.
    columns : names or patterns of the logits' columns, separated by commas; ``logit*`` if not
        given. For .npz, the name of the array.
    labels : the column or array of true classes, or an .npy file with them; ``"auto"`` takes
        `labels` or `label` if there is one, None takes none.
    finite : whether logits that are NaN or infinite are an error.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "test.csv")
    >>> _ = path.write_text("id,logit_0,logit_1\\na,1.5,-2\\nb,0,3\\n")
    >>> table = open_table(path)
    >>> table.rows, table.columns, [block.logits.tolist() for block in table.blocks()]
    (2, ('logit_0', 'logit_1'), [[[1.5, -2.0], [0.0, 3.0]]])
    """
    path = _readable(checked_name(path))
    own = labels is not None and labels.lower().endswith(".npy")
    version = file_version(path)
    with reading(path):
        table = _READERS[path.suffix.lower()](path, columns, None if own else labels, finite)
    table = replace(table, blocks=partial(_blocks, table, version))
    return _with_labels(table, _readable(Path(str(labels)))) if own else table


def read_table(path: Path | str, columns: str | None = None, labels: str | None = AUTO) -> Block:
    """Read the logits and labels of all rows at once; see `open_table`."""
    blocks = list(open_table(path, columns, labels).blocks())
    truth = [block.labels for block in blocks if block.labels is not None]
    logits = np.concatenate([block.logits for block in blocks])
    return Block(logits, np.concatenate(truth) if truth else None)


def _readable(path: Path) -> Path:
    if path.suffix.lower() not in KINDS:
        if not path.suffix and not os.path.exists(path):
            raise QIPFInputError(f"There is no file or folder {path}.")
        packed = " Unpack it first." if path.suffix.lower() in PACKED else ""
        raise QIPFInputError(
            f"Cannot read {str(path)!r}: a file in {' or '.join(KINDS)} is expected.{packed}"
        )
    return checked_input(path)


def _blocks(table: Table, version: tuple[int, ...] | None) -> Iterator[Block]:
    """The blocks of a table; raises if the file is not the one whose header was read."""
    require_unchanged(table.path, version)
    try:
        with reading(table.path):
            yield from table.blocks()
    except QIPFError:
        require_unchanged(table.path, version)  # a change is the likely cause of another error
        raise
    require_unchanged(table.path, version)


def _with_labels(table: Table, path: Path) -> Table:
    """The table with labels from a file of their own."""

    def blocks() -> Iterator[Block]:
        start = 0
        with reading(path):
            labels = read_labels(path, table.dimension)
        for block in table.blocks():
            part = labels[start : start + len(block.logits)]
            start += len(block.logits)
            if len(part) == len(block.logits):
                yield replace(block, labels=part)
        if start != len(labels):
            raise QIPFInputError(f"{path} has {len(labels)} labels, but {table.path} {start} rows.")

    return replace(table, labelled=True, blocks=blocks)
