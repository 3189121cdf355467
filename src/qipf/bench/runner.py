"""Runs a suite: every (network, corruption, level, method) once, whatever interrupts it.

A run's folder holds

====================  =====================================================================
``results.jsonl``     one line for each finished task
``networks/``         trained networks, with their checkpoints
``cache/``            logits and features by content; may be deleted
``scores/``           every method's uncertainties (see `qipf.bench.scores`)
====================  =====================================================================

Started again, a run reads what is finished and does the rest. On the CPU the numbers are the
same with any number of jobs, and with or without interruptions: each process computes with one
thread, because sums over several are rounded differently.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from qipf.bench import datasets
from qipf.bench.datasets import Dataset
from qipf.bench.methods import SAMPLERS
from qipf.bench.results import RESULTS, Record, ResultLog, Task, task_of
from qipf.bench.scores import pack_all
from qipf.bench.scoring import Contender, Setting, parameters
from qipf.bench.suites import Suite, base_name, find
from qipf.bench.workers import Crew, Pool
from qipf.errors import QIPFInputError, first_line
from qipf.io.atomic import locked_folder
from qipf.progress import progress_bar, silence


def run(
    suite: str | Path | Suite,
    out: str | Path,
    *,
    device: str = "auto",
    jobs: int | Literal["ray"] = 1,
    seed: int | None = None,
    only: Iterable[str] = (),
    data: str | Path | None = None,
    keep_scores: bool = True,
    address: str | None = None,
) -> Path:
    """Do what `out` lacks of a suite, and return the file of its results.

    Parameters
    ----------
    suite : ``"digits"``, ``"paper"``, ``"fashion"``, a YAML file, or a `Suite`.
    out : the run's folder; what it holds already is not done again.
    device : ``"auto"`` takes a GPU if there is one; or any torch device.
    jobs : processes that share the work; ``"ray"`` takes all workers of a Ray cluster, whose
        machines must see `out` and `data` under the same paths.
    seed : instead of the suite's own.
    only : filters such as ``"method=qipf,entropy"`` (see `Suite.narrowed`).
    data : the folder that datasets are read from (see `qipf.bench.datasets.load`).
    keep_scores : whether each method's uncertainties are kept too.
    address : of a Ray cluster that runs already; else one is started on this machine.

    >>> import tempfile
    >>> from qipf.bench.suites import BenchNetwork
    >>> quick = Suite("quick", (BenchNetwork("short", "digits", "mlp", {"epochs": 1}),))
    >>> out = tempfile.mkdtemp()
    >>> only = ["method=softmax,entropy", "corruption=zoom", "level=2"]
    >>> len(run(quick, out, only=only).read_text().splitlines())
    2
    """
    crew = _crew(jobs, address)
    chosen = find(suite)
    if seed is not None:
        chosen = replace(chosen, seed=seed)
    chosen = chosen.narrowed(only)
    setting = Setting(
        chosen,
        Path(out),
        _device(device),
        None if data is None else Path(data),
        keep_scores,
    )
    with locked_folder(setting.out):
        log = ResultLog(setting.out / RESULTS)
        try:
            _finish(setting, log, crew)
        finally:
            log.close()
    return log.path


def _finish(setting: Setting, log: ResultLog, crew: Hire) -> None:
    tasks = list(setting.suite.tasks())
    left = remaining(setting.suite, log)
    pack_all(setting.out)
    if not left:
        return
    for stray in setting.out.rglob("*.tmp"):  # what a killed run was writing
        stray.unlink(missing_ok=True)
    # all of them first: data that is missing is told before hours of training
    needed = {setting.suite.network(task.network).dataset for task in left}
    loaded = {name: datasets.load(name, setting.data) for name in sorted(needed)}
    with progress_bar(setting.suite.name, total=len(tasks), unit="task") as bar:
        bar.update(len(tasks) - len(left))
        with contextlib.closing(_results(setting, plan(left), crew, loaded)) as results:
            for record in results:
                log.append(record)
                bar.set_postfix_str(str(task_of(record)), refresh=False)
                bar.update()


def remaining(suite: Suite, log: ResultLog) -> list[Task]:
    """The suite's tasks that have no result yet; results made otherwise are refused."""
    known = {task_of(record): record for record in log.records}
    left = []
    for task in suite.tasks():
        if task not in known:
            left.append(task)
            continue
        was = known[task].get("parameters")
        now = json.loads(json.dumps(parameters(suite, task)))
        if was != now:
            raise QIPFInputError(
                f"{log.path} holds a result of {task} made with other parameters "
                f"({_difference(was, now)}). Choose another folder, or delete that one."
            )
        data, wanted = known[task]["dataset"], suite.network(task.network).dataset
        if data != wanted:
            raise QIPFInputError(
                f"{log.path} holds a result of {task} on {data}, not on {wanted}. Choose another "
                "folder, or delete that one."
            )
    return left


@dataclass(frozen=True)
class Job:
    """A piece of work for one process: train a network, fit a sampler, or judge a corruption."""

    kind: Literal["train", "fit", "judge"]
    network: str
    subject: str = ""  # a sampler, or a corruption
    todo: tuple[tuple[float, tuple[str, ...]], ...] = ()  # methods by level

    def needs(self, jobs: Sequence[Job]) -> list[Job]:
        """Those jobs whose files this one reads."""
        before = {"train": (), "fit": ("train",), "judge": ("train", "fit")}[self.kind]
        return [job for job in jobs if job.network == self.network and job.kind in before]


def plan(tasks: Sequence[Task]) -> list[Job]:
    """The jobs that do these tasks, each after those it needs."""
    jobs: list[Job] = []
    for network in dict.fromkeys(task.network for task in tasks):
        own = [task for task in tasks if task.network == network]
        samplers = dict.fromkeys(base_name(task.method) for task in own)
        jobs.append(Job("train", network))
        # the samplers' networks are on disk once trained; what others learn is learned quickly
        jobs += [Job("fit", network, name) for name in samplers if name in SAMPLERS]
        for corruption in dict.fromkeys(task.corruption for task in own):
            todo: dict[float, tuple[str, ...]] = {}
            for task in own:
                if task.corruption == corruption:
                    todo[task.level] = (*todo.get(task.level, ()), task.method)
            jobs.append(Job("judge", network, corruption, tuple(todo.items())))
    return jobs


class _Bench:
    """Does jobs in one process, keeping the network of the last one."""

    def __init__(self, setting: Setting, loaded: dict[str, Dataset] | None = None) -> None:
        self._setting = setting
        self._loaded = loaded or {}
        self._contender: Contender | None = None

    def __call__(self, job: Job) -> Iterator[Record]:
        contender = self._enter(job.network)
        if job.kind == "train":
            _ = contender.network
        elif job.kind == "fit":
            contender.method(job.subject)
        else:
            for level, methods in job.todo:
                yield from contender.judge(job.subject, level, methods)
            contender.store(job.subject).pack()

    def _enter(self, network: str) -> Contender:
        if self._contender is None or self._contender.spec.name != network:
            self._contender = None  # its memory first
            dataset = self._loaded.get(self._setting.suite.network(network).dataset)
            self._contender = Contender(self._setting, network, dataset)
        return self._contender


#: Makes the crew for so many jobs on a device; None does them in this process.
Hire = Callable[[int, Setting], AbstractContextManager[Crew[Job]] | None]


def _crew(jobs: int | Literal["ray"], address: str | None) -> Hire:
    if jobs == "ray":
        from qipf.bench.ray_workers import RayPool
        from qipf.ray.connection import ray

        ray()  # told now, if it is missing
        return lambda most, setting: RayPool[Job](most, _enlist, _absolute(setting), address)
    if address is not None:
        raise QIPFInputError("address is that of a Ray cluster: it goes with jobs='ray'.")
    if not isinstance(jobs, int) or jobs < 1:
        raise QIPFInputError(f"jobs must be at least 1; got {jobs}.")

    def hire(most: int, setting: Setting) -> Pool[Job] | None:
        count = min(jobs, most)
        return Pool[Job](count, _enlist, setting) if count > 1 else None

    return hire


def _results(
    setting: Setting, jobs: list[Job], hire: Hire, loaded: dict[str, Dataset]
) -> Generator[Record, None, None]:
    crew = hire(len(jobs), setting)
    if crew is None:
        with _one_thread(setting.device):
            do = _Bench(setting, loaded)
            for job in jobs:
                yield from do(job)
        return
    loaded.clear()  # the others load their own
    with crew as workers:
        yield from workers.results(
            jobs, lambda job: job.needs(jobs), lambda last, job: last.network == job.network
        )


def _absolute(setting: Setting) -> Setting:
    """The same for a process with another working folder."""
    data = None if setting.data is None else setting.data.resolve()
    return replace(setting, out=setting.out.resolve(), data=data)


def _enlist(setting: Setting) -> Callable[[Job], Iterator[Record]]:
    """What a worker process does first."""
    silence()  # one bar is enough, and it is the parent's
    if torch.device(setting.device).type == "cpu":
        torch.set_num_threads(1)
    return _Bench(setting)


@contextlib.contextmanager
def _one_thread(device: str) -> Iterator[None]:
    if torch.device(device).type != "cpu":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise QIPFInputError(
            f"device {name!r} cannot be used here ({first_line(error)}). "
            "Name 'cpu', or a device that torch finds."
        ) from error
    return name


def _difference(was: Any, now: Any, path: str = "") -> str:
    """The first place where two nested settings differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                return _difference(was.get(name), now.get(name), f"{path}.{name}".lstrip("."))
    return f"{path or 'parameters'} was {was!r}, is {now!r}"
