"""Fitting a field to a file of training logits, and reading the held-out rows that go with it."""

from pathlib import Path

from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.logits import Block, Table, read_table
from qipf.io.logits.columns import AUTO
from qipf.progress import progress_bar


def fit_table(field: QIPF, table: Table) -> QIPF:
    """Fit a field to an open table, block by block, so that the file may be larger than memory."""
    with progress_bar("reading", table.rows, unit="row") as bar:
        for block in table.blocks():
            field.partial_fit(block.logits, block.labels)
            bar.update(len(block.logits))
    return field.build()


def read_held_out(
    path: Path | str,
    train: str,
    dimension: int,
    columns: str | None = None,
    labels: str | None = AUTO,
) -> Block:
    """Read held-out rows; raise if they are the training file or have another number of logits.

    `train` is the file of training logits, or of a model, that has `dimension` logits per row.
    """
    if Path(path).exists() and Path(path).samefile(train):
        raise QIPFInputError(
            f"{path} is the training data itself, which is less uncertain than new data. "
            "Calibrate with held-out predictions."
        )
    held_out = read_table(path, columns, labels)
    width = held_out.logits.shape[1]
    if width != dimension:
        raise QIPFInputError(
            f"{path} has {width} logits per row, but {train} has {dimension}. Calibrate with "
            "predictions of the same network."
        )
    return held_out


def labels_for(own: str | None, shared: str | None) -> str:
    """Where the labels of one of several files are: `own`, or the name they `share`.

    An .npy file holds the labels of one file only, so it is not shared.

    >>> labels_for(None, "class"), labels_for(None, "t.npy"), labels_for("y.npy", "class")
    ('class', 'auto', 'y.npy')
    """
    if own is not None:
        return own
    return AUTO if shared is None or shared.lower().endswith(".npy") else shared
