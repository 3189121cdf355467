"""A Ray cluster for a while: one that runs already, or one on this machine."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qipf.errors import QIPFError, QIPFInputError

#: Bytes of shared memory for a cluster on this machine, which carries fields and little else.
OBJECT_STORE = 2**28

#: Seconds that a cluster has to answer at its address.
LISTENING = 10.0

#: How often work is begun again whose worker was lost: more often, and it is the work's own fault.
RETRIES = 3


@dataclass(frozen=True)
class Crew:
    """How many workers there are to be, and what each of them takes of the cluster."""

    workers: int
    needs: dict[str, float]  # for Ray's `options`


def ray() -> Any:
    """Ray itself, asked for only when it is needed; it sends no statistics anywhere."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # what future versions will do: leave the accelerators' variables alone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise QIPFError("Work on a cluster needs Ray: pip install 'qipf[ray]'.") from error
    return ray


@contextmanager
def cluster(
    address: str | None = None, workers: int | None = None, accelerated: bool = True
) -> Iterator[Crew]:
    """The cluster at `address`, the one connected already, or else one on this machine.

    Parameters
    ----------
    address : of a cluster that runs, ``"auto"`` for the one this machine belongs to; the
        environment's RAY_ADDRESS if not given.
    workers : how many, at most; one for every GPU if there are any (and `accelerated`), else one
        for every CPU.
    accelerated : whether GPUs are of use.
    """
    checked_workers(workers)
    ours = connected(address, workers)
    try:
        yield crew_of(workers, accelerated)
    finally:
        if ours:
            ray().shutdown()


def crew_of(workers: int | None, accelerated: bool) -> Crew:
    """Workers for the cluster that is connected."""
    has = ray().cluster_resources()
    gpus = int(has.get("GPU", 0)) if accelerated else 0
    most = gpus or max(1, int(has.get("CPU", 1)))
    needs = {"num_cpus": 1.0, "num_gpus": 1.0} if gpus else {"num_cpus": 1.0}
    return Crew(min(most, workers or most), needs)


def checked_workers(workers: int | None) -> None:
    """Refuse fewer than one."""
    if workers is not None and workers < 1:
        raise QIPFInputError(f"workers must be at least 1, got {workers}.")


def connected(address: str | None, workers: int | None) -> bool:
    """Connect to a cluster, and tell whether that was still to be done."""
    if ray().is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            _require_listener(address)
            ray().init(address=address, **quiet)
        else:
            mine = getattr(os, "sched_getaffinity", None)  # where the system tells
            cpus = workers or (len(mine(0)) if mine else os.cpu_count() or 1)
            here = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
            ray().init(address="local", num_cpus=cpus, **here, **quiet)
    except (RuntimeError, ValueError, OverflowError, OSError) as error:
        where = f"the Ray cluster at {address!r}" if address else "a Ray cluster on this machine"
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise QIPFError(f"Cannot connect to {where} ({said}).") from error
    return True


def _require_listener(address: str) -> None:
    """Refuse at once a host and port where nobody answers; Ray would try for minutes."""
    place = re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address)
    if place:
        socket.create_connection((place[1], int(place[2])), timeout=LISTENING).close()


def got(reference: Any, what: str, remedy: str) -> Any:
    """What a worker made, or the error that stopped it."""
    try:
        return ray().get(reference)
    except ray().exceptions.RayTaskError as error:
        raise cause(error) from error
    except ray().exceptions.RayError as error:
        raise QIPFError(
            f"{what} cost a worker its life {RETRIES + 1} times, perhaps for want of memory. "
            f"{remedy}"
        ) from error


def cause(error: Any) -> Exception:
    """What went wrong in a worker, without Ray's wrapping."""
    inner: Any = error
    while getattr(inner, "cause", None) is not None:
        inner = inner.cause
    return inner if isinstance(inner, QIPFError) else RuntimeError(repr(inner))
