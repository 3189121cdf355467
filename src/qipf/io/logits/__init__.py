"""Tables of logits on disk (.npz, .npy, .csv, .parquet), read and written in blocks of rows."""

from qipf.io.logits.reading import KINDS, open_table, read_table
from qipf.io.logits.table import Block, Table
from qipf.io.logits.writing import table_writer

__all__ = ["KINDS", "Block", "Table", "open_table", "read_table", "table_writer"]
