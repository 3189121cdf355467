"""Jobs done by the workers of a Ray cluster; one that is lost is replaced, its job begun again."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch

from qipf.bench.workers import Crew, Setup, Worker
from qipf.errors import QIPFError
from qipf.ray.connection import RETRIES, cause, cluster, lost, never_began, ray

J = TypeVar("J")

#: What to do about a job that no worker survives.
FEWER = "What was finished is kept: run again, with fewer jobs."


class RayPool(Crew[J]):
    """At most `count` workers of a cluster (see `qipf.ray.connection`), a GPU each for CUDA.

    Results stream to this process, and this process alone writes them down. The results of a job
    come in one order, so of a job that is begun again those that came already are passed over.
    """

    def __init__(
        self, count: int, setup: Setup[J], argument: Any, address: str | None = None
    ) -> None:
        self._count, self._setup, self._argument, self._address = count, setup, argument, address
        self._stack = ExitStack()
        self._actor: Any = None
        self._came: dict[Worker[J], int] = {}  # results of the job under way
        self._lost: dict[Worker[J], int] = {}  # how often it was begun again
        self.workers = []

    def __enter__(self) -> RayPool[J]:
        on_gpu = torch.device(getattr(self._argument, "device", "cpu")).type == "cuda"
        plan = self._stack.enter_context(cluster(self._address, accelerated=on_gpu))
        self._actor = ray().remote(**plan.needs)(_Server)
        for _ in range(min(self._count, plan.workers)):
            self.workers.append(Worker(self._hired(), None))
        return self

    def _hired(self) -> Any:
        return self._actor.remote(self._setup, self._argument)

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            ray().kill(worker.process)  # all it had finished is here already
        self._stack.close()

    def send(self, worker: Worker[J], job: J) -> None:
        """As a call whose results stream back."""
        self._came[worker], self._lost[worker] = 0, 0
        self._begin(worker, job)

    def _begin(self, worker: Worker[J], job: J) -> None:
        call = worker.process.do.options(num_returns="streaming")
        worker.line = call.remote(job, self._came[worker])

    def messages(self, busy: Sequence[Worker[J]]) -> Iterator[tuple[Worker[J], str, Any]]:
        """One from each worker that has any."""
        by_line = {worker.line: worker for worker in busy}
        for line in ray().wait(list(by_line))[0]:
            worker = by_line[line]
            try:
                value = ray().get(next(line))
            except StopIteration:
                yield worker, "done", None
            except ray().exceptions.RayTaskError as error:
                yield worker, "failed", (cause(error), "".join(traceback.format_exception(error)))
            except ray().exceptions.RayError as error:
                self._again(worker, error)
            else:
                self._came[worker] += 1
                yield worker, "result", value

    def _again(self, worker: Worker[J], error: Exception) -> None:
        self._lost[worker] += 1
        if never_began(error) or self._lost[worker] > RETRIES or worker.last is None:
            raise lost(error, "A job", RETRIES + 1, FEWER) from error
        worker.process = self._hired()  # sooner than Ray would notice and restart the old one
        self._begin(worker, worker.last)


class _Server:
    """The life of a worker: set up once, then job after job."""

    def __init__(self, setup: Setup[Any], argument: Any) -> None:
        self._setup, self._argument = setup, argument
        self._do: Callable[[Any], Iterator[Any]] | None = None

    def do(self, job: Any, passed_over: int) -> Iterator[Any]:
        """The job's results, less those that came already."""
        if self._do is None:  # here, not at birth: of what fails there, Ray keeps the text alone
            self._do = self._set_up()
        for number, result in enumerate(self._do(job)):
            if number >= passed_over:
                yield result

    def _set_up(self) -> Callable[[Any], Iterator[Any]]:
        try:
            return self._setup(self._argument)
        except QIPFError:
            raise
        except Exception as error:
            raise QIPFError(f"A worker could not start ({error!r}).") from error
