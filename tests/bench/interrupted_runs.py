"""Runs the tiny suite in processes that die: killed from outside, or at a chosen write.

Run as a program of its own, ``python -m tests.bench.interrupted_runs FOLDER``, so that it may fork:
a child starts at once, with everything imported, and no thread of pytest's is around.
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

from qipf.bench.runner import run
from tests.bench.tiny import TINY, without_timings

KILLS = 6
STARTS = 1000  # far more than are ever needed


def forked(work, *arguments):
    """The process id of a child that does `work` and is gone."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(*arguments)
            status = 0
        finally:
            os._exit(status)
    return child


def ended(child):
    """How a child ended: its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def undisturbed(out):
    start = time.perf_counter()
    assert ended(forked(run, TINY, out)) == 0
    return time.perf_counter() - start


def killed_from_outside(folder, duration):
    """Kill at random moments until that has hit a running process often enough."""
    generator = random.Random(0)
    kills, runs, found = 0, 0, []
    for _ in range(STARTS):
        child = forked(run, TINY, folder / f"killed{runs}")
        # short against the whole, so that one run is killed several times
        time.sleep(generator.uniform(0, 0.7 * duration))
        os.kill(child, signal.SIGKILL)  # until it is waited for, its number is not given away
        if ended(child) == -signal.SIGKILL:
            kills += 1
            found.append(lines_in(folder / f"killed{runs}"))
            if kills == KILLS:
                break
        else:
            runs += 1
    undisturbed(folder / f"killed{runs}")
    return {"kills": kills, "runs": runs + 1, "lines found": found}


def lines_in(out):
    file = Path(out, "results.jsonl")
    return file.read_bytes().count(b"\n") if file.exists() else 0


def dying_at_writes(folder):
    """Die before or after the first, second, … durable step of each start, until all is done."""
    for start in range(STARTS):
        child = forked(doomed, folder / "died", 1 + 5 * start % 23, start % 2 == 1)
        if ended(child) == 0:
            return start
    raise AssertionError("the run makes no progress")


def doomed(out, steps, whole):
    """Run with a last durable step: done whole, or not at all; of a write, half is done."""
    left = [steps]
    for name in ("write", "fsync", "replace", "truncate"):
        setattr(os, name, last_step(getattr(os, name), left, whole))
    run(TINY, out)


def last_step(act, left, whole):
    def counted(*arguments):
        left[0] -= 1
        if left[0] > 0:
            return act(*arguments)
        if whole:
            act(*arguments)
        elif act.__name__ == "write":
            handle, content = arguments
            act(handle, content[: len(content) // 2])
        os._exit(9)

    return counted


if __name__ == "__main__":
    import torch._dynamo  # Adam imports it on first use; here once, instead of in every child

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    duration = undisturbed(folder / "reference")
    summary = killed_from_outside(folder, duration)
    summary["deaths"] = dying_at_writes(folder)
    reference = without_timings(folder / "reference")
    ends = [folder / "died", *(folder / f"killed{number}" for number in range(summary["runs"]))]
    summary["equal"] = all(without_timings(end) == reference for end in ends)
    print(json.dumps(summary))
