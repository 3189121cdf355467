"""A local Ray cluster for tests, the end of one of its workers, and what one cannot read."""

import importlib
import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(workers=2):
    from qipf.distributed import cluster

    with cluster(workers=workers) as plan:
        yield plan


def own_workers(title):
    """Ids of the processes with such a title whose Ray was started by this very process."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().decode(errors="replace")
            if title in command and _parent(_parent(int(place.name))) == os.getpid():
                yield int(place.name)
        except (OSError, ValueError):
            continue  # it ended while we looked


def _parent(process):
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[1])


@contextmanager
def killing(victims, times=1):
    """While this lasts, kill what `victims()` yields, `times` different processes; their ids."""
    killed, over = [], threading.Event()

    def watch():
        while len(killed) < times and not over.is_set():
            for process in victims():
                if process not in killed:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                    break
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()


class Missing:
    """What a machine cannot read that lacks a package."""

    device = "cpu"

    def __reduce__(self):
        return importlib.import_module, ("not_installed_there",)
