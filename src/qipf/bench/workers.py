"""Jobs that depend on one another, done here or by several processes; results as they come."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from typing import Any, Generic, TypeVar

from qipf.errors import QIPFError

J = TypeVar("J")

#: Makes, once in each process, the function that does a job and yields its results.
Setup = Callable[[Any], Callable[[J], Iterator[Any]]]


@dataclass(eq=False)
class Worker(Generic[J]):
    """Somebody who does one job at a time, and how to reach them."""

    process: Any
    line: Any
    last: J | None = None


class Crew(ABC, Generic[J]):
    """Workers that share jobs out; every job waits for the jobs that `needs` names."""

    workers: list[Worker[J]]

    @abstractmethod
    def send(self, worker: Worker[J], job: J) -> None:
        """Let a worker begin a job."""

    @abstractmethod
    def messages(self, busy: Sequence[Worker[J]]) -> Iterator[tuple[Worker[J], str, Any]]:
        """What busy workers have to say, once there is something: a result, done, or failed."""

    def results(
        self,
        jobs: Sequence[J],
        needs: Callable[[J], Sequence[J]],
        affinity: Callable[[J, J], bool],
    ) -> Iterator[Any]:
        """All results; a worker that is free prefers a job akin to its last."""
        waiting, done = list(jobs), set()
        idle, busy = list(self.workers), list[Worker[J]]()
        while waiting or busy:
            ready = [job for job in waiting if all(other in done for other in needs(job))]
            while idle and ready:
                worker, job = _pair(idle, ready, affinity)
                idle.remove(worker)
                ready.remove(job)
                waiting.remove(job)
                self.send(worker, job)
                worker.last = job
                busy.append(worker)
            for worker, kind, value in self.messages(busy):
                if kind == "result":
                    yield value
                elif kind == "failed":
                    error, text = value
                    raise error from _Elsewhere(text)
                else:
                    done.add(worker.last)
                    busy.remove(worker)
                    idle.append(worker)


@dataclass
class Pool(Crew[J]):
    """`count` processes of this machine.

    Results reach this process over pipes, and this process alone writes them down. If it dies,
    even by SIGKILL, so do the others.
    """

    count: int
    setup: Setup[J]
    argument: Any
    workers: list[Worker[J]] = field(default_factory=list)

    def __enter__(self) -> Pool[J]:
        context = get_context("spawn")  # a forked process could not use CUDA
        for _ in range(self.count):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, self.setup, self.argument), daemon=True
            )
            process.start()
            there.close()
            self.workers.append(Worker(process, here))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.kill()  # all it had finished is here already
        for worker in self.workers:
            worker.process.join()
            worker.line.close()

    def send(self, worker: Worker[J], job: J) -> None:
        """Over the worker's pipe."""
        worker.line.send(job)

    def messages(self, busy: Sequence[Worker[J]]) -> Iterator[tuple[Worker[J], str, Any]]:
        """One from each pipe that holds any."""
        by_pipe = {worker.line: worker for worker in busy}
        for pipe in connection.wait(list(by_pipe)):
            worker = by_pipe[pipe]
            yield (worker, *_message(worker))


class _Elsewhere(Exception):  # noqa: N818 - shown as the cause: where the error came from
    """The traceback of another process, as text."""


def _pair(
    idle: Sequence[Worker[J]], ready: Sequence[J], affinity: Callable[[J, J], bool]
) -> tuple[Worker[J], J]:
    for job in ready:
        for worker in idle:
            if worker.last is not None and affinity(worker.last, job):
                return worker, job
    return idle[0], ready[0]


def _message(worker: Worker[Any]) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = worker.line.recv()
    except (EOFError, ConnectionResetError) as error:
        worker.process.join()
        raise QIPFError(
            f"A worker process ended unasked (exit code {worker.process.exitcode}), perhaps for "
            "want of memory. What was finished is kept: run again, with fewer jobs."
        ) from error
    return message


def _serve(pipe: connection.Connection, setup: Setup[Any], argument: Any) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends this process
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        do = setup(argument)
        while True:
            for result in do(pipe.recv()):
                pipe.send(("result", result))
            pipe.send(("done", None))
    except EOFError:
        pass
    except Exception as error:
        told = error if isinstance(error, QIPFError) else RuntimeError(repr(error))
        pipe.send(("failed", (told, traceback.format_exc())))


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
