"""Opening a file of logits by its suffix."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from qipf.errors import QIPFInputError
from qipf.io.logits.columns import AUTO
from qipf.io.logits.csv_files import open_csv
from qipf.io.logits.numpy_files import open_numpy, read_labels
from qipf.io.logits.parquet_files import open_parquet
from qipf.io.logits.table import Block, Table, warn_of_probabilities

#: How to open a file of logits, by its suffix.
_READERS = {".npz": open_numpy, ".npy": open_numpy, ".csv": open_csv, ".parquet": open_parquet}

#: Suffixes of files that hold logits.
KINDS = tuple(_READERS)

#: Suffixes of files that must be unpacked first.
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def open_table(path: Path | str, columns: str | None = None, labels: str | None = AUTO) -> Table:
    """Open a file of logits and check its header.

    Parameters
    ----------
    path : .npz with an array `logits` (and `labels`), .npy with logits alone, or .csv and
        .parquet with one column per logit.
    columns : names or patterns of the logits' columns, separated by commas; ``logit*`` if not
        given. For .npz, the name of the array.
    labels : the column or array of true classes, or an .npy file with them; ``"auto"`` takes
        `labels` or `label` if there is one, None takes none.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "test.csv")
    >>> _ = path.write_text("id,logit_0,logit_1\\na,1.5,-2\\nb,0,3\\n")
    >>> table = open_table(path)
    >>> table.rows, table.columns, [block.logits.tolist() for block in table.blocks()]
    (2, ('logit_0', 'logit_1'), [[[1.5, -2.0], [0.0, 3.0]]])
    """
    path = _readable(Path(path))
    own = labels is not None and labels.lower().endswith(".npy")
    table = _READERS[path.suffix.lower()](path, columns, None if own else labels)
    if own:
        table = _with_labels(table, _readable(Path(str(labels))))
    return replace(table, blocks=lambda: _warned(table))


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
    try:
        path.open("rb").close()
    except IsADirectoryError:
        raise QIPFInputError(f"{path} is a folder; name a file in it.") from None
    except FileNotFoundError:
        raise QIPFInputError(f"There is no file {path}.") from None
    except OSError as error:
        raise QIPFInputError(f"Cannot read {path}: {error.strerror}.") from error
    return path


def _warned(table: Table) -> Iterator[Block]:
    """The blocks of a table, with a warning if the first one looks like probabilities."""
    for number, block in enumerate(table.blocks()):
        if number == 0:
            warn_of_probabilities(table.path, block.logits)
        yield block


def _with_labels(table: Table, path: Path) -> Table:
    """The table with labels from a file of their own."""

    def blocks() -> Iterator[Block]:
        start, labels = 0, read_labels(path, table.dimension)
        for block in table.blocks():
            part = labels[start : start + len(block.logits)]
            start += len(block.logits)
            if len(part) == len(block.logits):
                yield replace(block, labels=part)
        if start != len(labels):
            raise QIPFInputError(f"{path} has {len(labels)} labels, but {table.path} {start} rows.")

    return replace(table, labelled=True, blocks=blocks)
