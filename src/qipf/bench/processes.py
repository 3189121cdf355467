"""Work in several processes that end with their parent; importing it takes a moment only."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from qipf.errors import QIPFError

J = TypeVar("J")
R = TypeVar("R")


def in_processes(work: Callable[[J], R], jobs: Sequence[J], processes: int) -> Iterator[R]:
    """The results of `work` on each job, in the order in which they are finished.

    `processes` must be at least 2: joblib would run a single one inside this process.

    If this process ends, even by SIGKILL, the worker processes end too. `stop_processes` ends
    them earlier; until then they wait for more jobs.
    """
    parent = os.getpid()
    calls = [delayed(_in_worker)(work, job, parent) for job in jobs]
    try:
        yield from Parallel(processes, return_as="generator_unordered", batch_size=1)(calls)
    except TerminatedWorkerError as error:
        raise QIPFError(
            "A worker process ended unexpectedly, perhaps because memory ran out. Finished "
            "results are kept: run again, with fewer jobs."
        ) from error


def stop_processes() -> None:
    """End the worker processes at once, whatever they are doing."""
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


_watching = False


def _in_worker(work: Callable[[J], R], job: J, parent: int) -> R:
    global _watching
    if not _watching:
        _watching = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    return work(job)


def _end_with(parent: int) -> None:
    waiting = threading.Event()
    while os.getppid() == parent:
        waiting.wait(0.2)
    os._exit(1)
