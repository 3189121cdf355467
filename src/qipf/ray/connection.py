"""Connecting to a Ray cluster, and running tasks on it."""

import logging
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from qipf.errors import QIPFError, QIPFInputError, first_line, missing_extra
from qipf.validation.parameters import require_positive_integer

#: Bytes of shared memory of a cluster on this machine, which holds fields and little else.
OBJECT_STORE = 2**28

#: Seconds to wait for a cluster to answer at its address.
LISTENING = 10.0

#: Retries of a task whose worker was lost.
RETRIES = 3

#: Seconds to wait for cancelled tasks to end.
ENDING = 10.0

#: Part of Ray's message when a machine lacks the code of a task.
MISSING_CODE = "failed to import on the worker"

Job = TypeVar("Job")


class WorkerPlan(NamedTuple):
    """The number of workers, and the resources of each."""

    workers: int
    needs: dict[str, float]  # for Ray's `options`


def ray() -> Any:
    """Import Ray, without usage statistics; raise an error that says how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # the default of future versions: leave the accelerators' variables alone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise missing_extra("Work on a cluster needs Ray", "ray") from error
    return ray


@contextmanager
def cluster(
    address: str | None = None, workers: int | None = None, accelerated: bool = True
) -> Iterator[WorkerPlan]:
    """Use the cluster at `address`, the connected one, or else start one on this machine.

    Parameters
    ----------
    address : of a running cluster, ``"auto"`` for the one this machine belongs to; the
        environment's RAY_ADDRESS if not given. If Ray is already connected, it must be there.
    workers : most workers; by default one for every GPU if there are any (and `accelerated`), else
        one for every CPU.
    accelerated : whether the work can use GPUs.
    """
    started = connect(address, workers)
    try:
        yield plan_workers(workers, accelerated)
    finally:
        if started:
            ray().shutdown()


def plan_workers(workers: int | None, accelerated: bool) -> WorkerPlan:
    """Plan the workers on the connected cluster."""
    resources = ray().cluster_resources()
    gpus = int(resources.get("GPU", 0)) if accelerated else 0
    most = gpus or max(1, int(resources.get("CPU", 1)))
    needs = {"num_cpus": 1.0, "num_gpus": 1.0} if gpus else {"num_cpus": 1.0}
    return WorkerPlan(min(most, workers or most), needs)


def check_connection(address: str | None, workers: int | None) -> bool:
    """Whether Ray is connected already; raise if to another address, or for bad arguments."""
    if workers is not None:
        require_positive_integer(workers, "workers")
    if not ray().is_initialized():
        return False
    connected = ray().get_runtime_context().gcs_address
    if address not in (None, "auto", connected):
        raise QIPFInputError(
            f"Ray is already connected to {connected}, so address={address!r} cannot be used. "
            "Omit the address to work there, or call ray.shutdown() first."
        )
    return True


def connect(address: str | None, workers: int | None) -> bool:
    """Connect to a cluster unless Ray is connected; return whether a connection was made."""
    if check_connection(address, workers):
        return False
    address = address or os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            # Ray itself would try for minutes to reach a port where nothing listens
            place = re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address)
            if place:
                socket.create_connection((place[1], int(place[2])), timeout=LISTENING).close()
            ray().init(address=address, **quiet)
        else:
            affinity = getattr(os, "sched_getaffinity", None)  # not on all systems
            cpus = workers or (len(affinity(0)) if affinity else os.cpu_count() or 1)
            local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
            ray().init(address="local", num_cpus=cpus, **local, **quiet)
    except (RuntimeError, ValueError, OverflowError, OSError) as error:
        where = f"the Ray cluster at {address!r}" if address else "a Ray cluster on this machine"
        raise QIPFError(f"Cannot connect to {where} ({first_line(error)}).") from error
    return True


def run_tasks(
    submit: Callable[[Job], Any],
    jobs: Iterable[Job],
    at_once: int,
    name: Callable[[Job], str],
    remedy: str,
    ordered: bool = False,
) -> Iterator[tuple[Job, Any]]:
    """Run one task per job, and yield each job with its result.

    Parameters
    ----------
    submit : starts the task of a job, and returns its reference.
    at_once : most tasks in progress; `jobs` is consumed as tasks end.
    name, remedy : of a job, for the error message when no worker survives its task.
    ordered : yield results in the order of the jobs instead of as they arrive.
    """
    busy: dict[Any, Job] = {}

    def next_result() -> tuple[Job, Any]:
        references = list(busy)[:1] if ordered else list(busy)
        reference = ray().wait(references)[0][0]
        job = busy.pop(reference)
        return job, _result(reference, name(job), remedy)

    try:
        for job in jobs:
            if len(busy) >= at_once:
                yield next_result()
            busy[submit(job)] = job
        while busy:
            yield next_result()
    finally:
        for reference in busy:
            ray().cancel(reference, force=True)
        if busy:  # until they have ended: the caller may remove what they were writing
            ray().wait(list(busy), num_returns=len(busy), timeout=ENDING)


def _result(reference: Any, name: str, remedy: str) -> Any:
    """The result of a task; raise the error of a failed one without Ray's wrapping."""
    failures = ray().exceptions
    try:
        return ray().get(reference)
    except failures.RayTaskError as error:
        inner: Any = error
        while getattr(inner, "cause", None) is not None:
            inner = inner.cause
        if isinstance(inner, QIPFError):
            raise inner from error
        if isinstance(inner, failures.RaySystemError) or MISSING_CODE in str(inner):
            raise _not_started(inner) from error
        raise RuntimeError(repr(inner)) from error
    except (failures.RuntimeEnvSetupError, failures.TaskUnschedulableError) as error:
        raise _not_started(error) from error
    except failures.RayError as error:
        raise QIPFError(
            f"{name} ended {RETRIES + 1} workers, perhaps for lack of memory. {remedy}"
        ) from error


def _not_started(error: Any) -> QIPFError:
    # nested tracebacks, with the reason in the last line
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^~")]
    reason = (lines or [type(error).__name__])[-1].rstrip(".")
    return missing_extra(
        f"A worker could not start on the cluster ({reason}). Every machine of the cluster needs "
        "this Python and this qipf",
        "ray",
    )
