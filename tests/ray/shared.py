"""Marks of the tests with Ray, rows of logits, and faults of workers."""

import importlib
import os
import signal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import make_logits

RAY = [
    pytest.mark.slow,
    # Ray warns of options that it sets itself
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ROWS = 1500
LOGITS = make_logits(ROWS).numpy()
LABELS = (LOGITS + np.random.default_rng(0).normal(scale=3.0, size=LOGITS.shape)).argmax(1)
CUTS = [0, 350, 351, 950, ROWS]


def table(**more):
    named = {f"logit_{k}": LOGITS[:, k] for k in range(10)}
    return pa.table({"id": np.arange(ROWS), **named, **more})


def dataset(whole=None, scale=1):
    """A table in four blocks of different sizes."""
    import ray.data

    whole = table(label=LABELS) if whole is None else whole
    cuts = pairwise(scale * cut for cut in CUTS)
    blocks = [whole.slice(start, end - start) for start, end in cuts]
    made = ray.data.from_arrow(blocks)
    made.context.enable_progress_bars = False
    return made


def die_once(marker):
    """Kill the first process that calls this; its id is written to the file `marker`."""
    try:
        with open(marker, "x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Missing:
    """An object that a machine without some package cannot unpickle."""

    def __reduce__(self):
        return importlib.import_module, ("not_installed_there",)
