"""Scoring files and folders of logits with a fitted model."""

from qipf.scoring.shards import ScoredShards, score_shards
from qipf.scoring.table import Scored, score_table

__all__ = ["Scored", "ScoredShards", "score_shards", "score_table"]
