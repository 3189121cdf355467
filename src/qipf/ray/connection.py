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

from qipf.errors import QIPFError, QIPFInputError, first_line

#: Bytes of shared memory for a cluster on this machine, which carries fields and little else.
OBJECT_STORE = 2**28

#: Seconds that a cluster has to answer at its address.
LISTENING = 10.0

#: How often work is begun again whose worker was lost: more often, and it is the work's own fault.
RETRIES = 3

#: What Ray says where a machine lacks the code that a worker needs.
UNKNOWN_THERE = "failed to import on the worker"

#: What to do where workers do not start.
SAME = "Every machine of the cluster needs this Python and this qipf: pip install 'qipf[ray]'."


@dataclass(frozen=True)
class WorkerPlan:
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
) -> Iterator[WorkerPlan]:
    """The cluster at `address`, the one connected already, or else one on this machine.

    Parameters
    ----------
    address : of a cluster that runs, ``"auto"`` for the one this machine belongs to; the
        environment's RAY_ADDRESS if not given. Where Ray is connected already, it must be there.
    workers : how many, at most; one for every GPU if there are any (and `accelerated`), else one
        for every CPU.
    accelerated : whether GPUs are of use.
    """
    checked_workers(workers)
    ours = connected(address, workers)
    try:
        yield plan_of(workers, accelerated)
    finally:
        if ours:
            ray().shutdown()


def plan_of(workers: int | None, accelerated: bool) -> WorkerPlan:
    """Workers for the cluster that is connected."""
    has = ray().cluster_resources()
    gpus = int(has.get("GPU", 0)) if accelerated else 0
    most = gpus or max(1, int(has.get("CPU", 1)))
    needs = {"num_cpus": 1.0, "num_gpus": 1.0} if gpus else {"num_cpus": 1.0}
    return WorkerPlan(min(most, workers or most), needs)


def checked_workers(workers: int | None) -> None:
    """Refuse fewer than one."""
    if workers is not None and workers < 1:
        raise QIPFInputError(f"workers must be at least 1, got {workers}.")


def connected(address: str | None, workers: int | None) -> bool:
    """Connect to a cluster, and tell whether that was still to be done."""
    require_connection(address)
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
        raise QIPFError(f"Cannot connect to {where} ({first_line(error)}).") from error
    return True


def _require_listener(address: str) -> None:
    """Refuse at once a host and port where nobody answers; Ray would try for minutes."""
    place = re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address)
    if place:
        socket.create_connection((place[1], int(place[2])), timeout=LISTENING).close()


def require_connection(address: str | None) -> None:
    """Refuse an address where Ray is connected to another one already."""
    if address is None or not ray().is_initialized():
        return
    place = _connected_place()
    # "auto" is the cluster of this machine; only Ray's client works on one from outside
    same = not place.startswith("ray://") if address == "auto" else _same(address, place)
    if not same:
        raise QIPFInputError(
            f"Ray is connected to {place} already, so address={address!r} cannot be used. Leave "
            "the address out to work there, or call ray.shutdown() first."
        )


def _connected_place() -> str:
    """Host and port of the cluster; those of Ray's client begin with ray://."""
    from ray.util.client import ray as client

    if client.is_connected():
        return f"ray://{client.get_context().client_worker._conn_str}"
    place: str = ray().get_runtime_context().gcs_address
    return place


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    places = [re.fullmatch(r"(ray://)?([^/]+):(\d+)", address) for address in (one, other)]
    first, second = places
    if first is None or second is None or first.group(1, 3) != second.group(1, 3):
        return False
    return _number(first[2]) == _number(second[2])


def _number(host: str) -> str:
    """A host's address; of this machine, the one that others know it by."""
    try:
        number = socket.gethostbyname(host)
    except OSError:
        return host
    return str(ray().util.get_node_ip_address()) if number.startswith("127.") else number


# ---------------------------------------------------------------------- what went wrong


def got(reference: Any, what: str, remedy: str) -> Any:
    """What a worker made, or the error that stopped it."""
    try:
        return ray().get(reference)
    except ray().exceptions.RayTaskError as error:
        raise cause(error) from error
    except ray().exceptions.RayError as error:
        raise lost(error, what, RETRIES + 1, remedy) from error


def cause(error: Any) -> Exception:
    """What went wrong in a worker, without Ray's wrapping."""
    inner: Any = error
    while getattr(inner, "cause", None) is not None:
        inner = inner.cause
    if isinstance(inner, QIPFError):
        return inner
    if isinstance(inner, ray().exceptions.RaySystemError) or UNKNOWN_THERE in str(inner):
        return _unstarted(inner)
    return RuntimeError(repr(inner))


def lost(error: Any, what: str, times: int, remedy: str) -> QIPFError:
    """The error for work that no worker finished: it never began, or cost them their lives."""
    if never_began(error):
        return _unstarted(error)
    return QIPFError(
        f"{what} cost a worker its life {times} times, perhaps for want of memory. {remedy}"
    )


def never_began(error: Any) -> bool:
    """Whether a worker did not get as far as its work, which another try does not mend."""
    told = ray().exceptions
    setups = told.RuntimeEnvSetupError, told.TaskUnschedulableError, told.ActorUnschedulableError
    return isinstance(error, setups) or getattr(error, "actor_init_failed", False)


def _unstarted(error: Any) -> QIPFError:
    # tracebacks of tracebacks, with the reason in the last line
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^~")]
    reason = (lines or [type(error).__name__])[-1].rstrip(".")
    return QIPFError(f"A worker could not start on the cluster ({reason}). {SAME}")
