"""A local Ray cluster for tests, the end of one of its workers, and what one cannot read."""

import importlib
import os
import signal
from contextlib import contextmanager


@contextmanager
def running(workers=2):
    from qipf.ray import cluster

    with cluster(workers=workers) as plan:
        yield plan


def die_once(marker):
    """Kill the process that is the first to come here; its id stays in the file `marker`."""
    try:
        with open(marker, "x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Missing:
    """What a machine cannot read that lacks a package."""

    device = "cpu"

    def __reduce__(self):
        return importlib.import_module, ("not_installed_there",)
