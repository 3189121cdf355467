"""Logits on disk: .npz, .npy, .csv and .parquet, read and written in blocks of rows."""

from qipf.tables.reading import KINDS, open_table, read_table
from qipf.tables.scoring import Scored, score_table
from qipf.tables.shards import ScoredShards, score_shards
from qipf.tables.table import Block, Table
from qipf.tables.writing import written

__all__ = [
    "KINDS",
    "Block",
    "Scored",
    "ScoredShards",
    "Table",
    "open_table",
    "read_table",
    "score_shards",
    "score_table",
    "written",
]
