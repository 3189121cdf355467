"""Scores shards in processes that die: killed from outside, or at a chosen write.

Run as a program of its own, ``python -m tests.scoring.interrupted_shards FOLDER``, so that it may
fork: a child starts at once, with everything imported, and no thread of pytest's is around.
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

import qipf
from qipf.io.logits import table as limits
from qipf.scoring import score_shards
from tests.bench.interrupted_runs import ended, forked, last_step
from tests.conftest import make_logits
from tests.scoring.shard_files import contents, drafts, write_shards

SHARDS = 5
KILLS = 5
STARTS = 1000  # far more than are ever needed


def scored(folder, out, steps=None, whole=False):
    """Score the shards; with `steps`, die at that durable step, done whole or not at all."""
    torch.set_num_threads(1)
    limits.ROWS_PER_BLOCK = 200
    field = qipf.load(folder / "field.qipf")
    if steps is not None:
        left = [steps]
        for name in ("fsync", "replace"):
            setattr(os, name, last_step(getattr(os, name), left, whole))
    score_shards(field, folder / "in", out, modes=True)


def prepare(folder):
    write_shards(folder / "in", SHARDS, 800)
    field = qipf.QIPF(bandwidth=3.0).fit(make_logits(500).numpy())
    qipf.save(field, folder / "field.qipf")


def undisturbed(folder, out):
    start = time.perf_counter()
    assert ended(forked(scored, folder, out)) == 0
    return time.perf_counter() - start


def killed_from_outside(folder, duration):
    """Kill at random moments until that has hit a running process often enough."""
    generator = random.Random(0)
    kills, runs, found, torn = 0, 0, [], 0
    for _ in range(STARTS):
        out = folder / f"killed{runs}"
        child = forked(scored, folder, out)
        time.sleep(generator.uniform(0, 0.8 * duration))
        os.kill(child, signal.SIGKILL)  # until it is waited for, its number is not given away
        if ended(child) == -signal.SIGKILL:
            kills += 1
            found.append(len(contents(out)))
            torn += len(drafts(out))
            if kills == KILLS:
                break
        else:
            runs += 1
    undisturbed(folder, folder / f"killed{runs}")
    return {"kills": kills, "runs": runs + 1, "finished": found, "torn": torn}


def dying_at_writes(folder):
    """Die before or after the first, second, … durable step of each start, until all is done."""
    for start in range(STARTS):
        if ended(forked(scored, folder, folder / "died", 1 + start % 5, start % 2 == 1)) == 0:
            return start
    raise AssertionError("the run makes no progress")


if __name__ == "__main__":
    warnings.simplefilter("error")
    folder = Path(sys.argv[1])
    assert ended(forked(prepare, folder)) == 0
    duration = undisturbed(folder, folder / "reference")
    summary = killed_from_outside(folder, duration)
    summary["deaths"] = dying_at_writes(folder)
    reference = contents(folder / "reference")
    ends = [folder / "died", *(folder / f"killed{number}" for number in range(summary["runs"]))]
    summary["equal"] = len(reference) == SHARDS and all(contents(end) == reference for end in ends)
    summary["left over"] = sum(len(drafts(end)) for end in ends)
    print(json.dumps(summary))
