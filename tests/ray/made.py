"""Rows of logits and labels, and a dataset that holds them in blocks of odd sizes."""

from itertools import pairwise

import numpy as np
import pyarrow as pa

from tests.conftest import make_logits

ROWS = 3000
LOGITS = make_logits(ROWS).numpy()
LABELS = (LOGITS + np.random.default_rng(0).normal(scale=3.0, size=LOGITS.shape)).argmax(1)
CUTS = [0, 700, 701, 1900, ROWS]


def table(**more):
    named = {f"logit_{k}": LOGITS[:, k] for k in range(10)}
    return pa.table({"id": np.arange(ROWS), **named, **more})


def dataset(whole=None):
    """The table in four blocks of odd sizes."""
    import ray.data

    whole = table(label=LABELS) if whole is None else whole
    parts = pairwise(CUTS)
    made = ray.data.from_arrow([whole.slice(start, end - start) for start, end in parts])
    made.context.enable_progress_bars = False
    return made
