"""Runs a suite: every (network, corruption, level, method) once, whatever interrupts it.

A run's folder holds

====================  =====================================================================
``results.jsonl``     one line for each finished task
``networks/``         trained networks, with their checkpoints
``scores/``           every method's uncertainties (see `qipf.bench.results`)
====================  =====================================================================

A run that is started again reads the finished results and does the rest. On the CPU the numbers
do not depend on the number of jobs or on interruptions: each process computes with one thread,
because sums over several threads are rounded differently. On a GPU they differ from those of the
CPU by float32 rounding alone, unless TensorFloat-32 is wanted.
"""

import contextlib
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qipf.bench import datasets
from qipf.bench.datasets import Dataset
from qipf.bench.methods import SAMPLERS, base_name
from qipf.bench.processes import in_processes, stop_processes
from qipf.bench.results import RESULTS, Record, ResultLog, Task, pack_all, task_of
from qipf.bench.scoring import NetworkBench, Setting, parameters
from qipf.bench.suites import Suite, find
from qipf.errors import QIPFInputError, first_line
from qipf.io.atomic import locked_folder
from qipf.progress import progress_bar, silence


def run(
    suite: str | Suite,
    out: str | Path,
    *,
    device: str = "auto",
    jobs: int = 1,
    seed: int | None = None,
    only: Iterable[str] = (),
    data: str | Path | None = None,
    keep_scores: bool = True,
    tf32: bool = False,
) -> Path:
    """Do the tasks of a suite that have no result in `out`, and return the file of its results.

    Parameters
    ----------
    suite : ``"digits"``, ``"paper"``, ``"fashion"``, ``"modern"``, ``"ood"``, or a `Suite`.
    out : the run's folder; the results that it holds are not computed again.
    device : ``"auto"`` takes a GPU if there is one; or any torch device.
    jobs : processes that share the work.
    seed : instead of the suite's own.
    only : filters such as ``"method=qipf,entropy"`` (see `Suite.narrowed`).
    data : the folder that datasets are read from (see `qipf.bench.datasets.load`).
    keep_scores : whether each method's uncertainties are kept too.
    tf32 : on a GPU, convolutions in TensorFloat-32, several times as fast, in training too;
        predictions then differ from those of a CPU for a few images in a thousand. The ``device``
        of results says so; finished tasks are not done again.

    >>> import tempfile
    >>> from qipf.bench.suites import BenchNetwork
    >>> quick = Suite("quick", (BenchNetwork("short", "digits", "mlp", {"epochs": 1}),))
    >>> out = tempfile.mkdtemp()
    >>> only = ["method=softmax,entropy", "corruption=zoom", "level=2"]
    >>> len(run(quick, out, only=only).read_text().splitlines())
    2
    """
    if not isinstance(jobs, int) or jobs < 1:
        raise QIPFInputError(f"jobs must be at least 1; got {jobs}.")
    chosen = find(suite)
    if seed is not None:
        chosen = replace(chosen, seed=seed)
    chosen = chosen.narrowed(only)
    setting = Setting(
        chosen, Path(out), _device(device), None if data is None else Path(data), keep_scores, tf32
    )
    with locked_folder(setting.out):
        log = ResultLog(setting.out / RESULTS)
        try:
            _finish(setting, log, jobs)
        finally:
            log.close()
    return log.path


def _finish(setting: Setting, log: ResultLog, jobs: int) -> None:
    tasks = list(setting.suite.tasks())
    left = remaining(setting.suite, log)
    pack_all(setting.out)
    if not left:
        return
    for unfinished in setting.out.rglob("*.tmp"):  # of a run that was killed while writing
        unfinished.unlink(missing_ok=True)
    # all of them first: missing data is reported before hours of training
    needed = {setting.suite.network(task.network).dataset for task in left}
    loaded = {name: datasets.load(name, setting.data) for name in sorted(needed)}
    for network, name in {(t.network, t.corruption) for t in left}:
        if name in setting.suite.unseen:
            known = loaded[setting.suite.network(network).dataset]
            datasets.load_unseen(name, known, setting.data)
    with progress_bar(setting.suite.name, total=len(tasks), unit="task") as bar:
        bar.update(len(tasks) - len(left))
        with contextlib.closing(_results(setting, plan(left), jobs, loaded)) as results:
            for record in results:
                log.append(record)
                bar.set_postfix_str(str(task_of(record)), refresh=False)
                bar.update()
    pack_all(setting.out)


def remaining(suite: Suite, log: ResultLog) -> list[Task]:
    """The suite's tasks without a result; a result made with other parameters is an error."""
    known = {task_of(record): record for record in log.records}
    left = []
    for task in suite.tasks():
        if task not in known:
            left.append(task)
            continue
        record, wanted = known[task], suite.network(task.network).dataset
        was = {"dataset": record["dataset"], "parameters": record.get("parameters")}
        now = {"dataset": wanted, "parameters": parameters(suite, task)}
        now = json.loads(json.dumps(now))
        if was != now:
            raise QIPFInputError(
                f"{log.path} holds a result of {task} made with other settings "
                f"({_difference(was, now)}). Choose another folder, or delete that one."
            )
    return left


class Job(NamedTuple):
    """Work for one process: train a network, fit a sampler, or score methods at one level."""

    network: str
    sampler: str | None = None
    corruption: str | None = None
    level: float = 0.0
    methods: tuple[str, ...] = ()


def plan(tasks: Sequence[Task]) -> list[list[Job]]:
    """The jobs for these tasks in three phases, each of which reads the files of those before."""
    networks = dict.fromkeys(task.network for task in tasks)
    samplers = dict.fromkeys((task.network, base_name(task.method)) for task in tasks)
    levels: dict[tuple[str, str, float], tuple[str, ...]] = {}
    for task in tasks:
        key = (task.network, task.corruption, task.level)
        levels[key] = (*levels.get(key, ()), task.method)
    return [
        [Job(network) for network in networks],
        # a sampler's networks are saved once trained; the other methods are fitted quickly
        [Job(network, name) for network, name in samplers if name in SAMPLERS],
        [
            Job(network, None, corruption, level, methods)
            for (network, corruption, level), methods in levels.items()
        ],
    ]


class _JobRunner:
    """Does jobs in one process, keeping the network of the last one."""

    def __init__(self, setting: Setting, loaded: dict[str, Dataset] | None = None) -> None:
        self._setting = setting
        self._loaded = loaded or {}
        self._bench: NetworkBench | None = None

    def results(self, job: Job) -> Iterator[Record]:
        bench = self._bench_of(job.network)
        if job.corruption is not None:
            yield from bench.results(job.corruption, job.level, job.methods)
        elif job.sampler is not None:
            bench.method(job.sampler)
        else:
            _ = bench.network

    def _bench_of(self, network: str) -> NetworkBench:
        if self._bench is None or self._bench.spec.name != network:
            self._bench = None  # free its memory first
            dataset = self._loaded.get(self._setting.suite.network(network).dataset)
            self._bench = NetworkBench(self._setting, network, dataset)
        return self._bench


def _results(
    setting: Setting, phases: list[list[Job]], processes: int, loaded: dict[str, Dataset]
) -> Generator[Record, None, None]:
    if processes == 1:
        with _arithmetic(setting):
            runner = _JobRunner(setting, loaded)
            for network in dict.fromkeys(job.network for job in phases[0]):  # one in memory
                for job in (job for jobs in phases for job in jobs if job.network == network):
                    yield from runner.results(job)
        return
    loaded.clear()  # the processes load their own
    try:
        for jobs in phases:
            for records in in_processes(partial(_work, setting), jobs, processes):
                yield from records
    finally:
        stop_processes()


_runner: _JobRunner | None = None


def _work(setting: Setting, job: Job) -> list[Record]:
    """The results of a job in a worker process."""
    global _runner
    if _runner is None:
        silence()  # the parent shows the progress
        _set_arithmetic(setting)
        _runner = _JobRunner(setting)
    return list(_runner.results(job))


def _set_arithmetic(setting: Setting) -> None:
    """One thread on the CPU; on a GPU TensorFloat-32, which changes predictions, only if wanted."""
    if torch.device(setting.device).type == "cpu":
        torch.set_num_threads(1)
    else:
        torch.backends.cudnn.allow_tf32 = setting.tf32


@contextlib.contextmanager
def _arithmetic(setting: Setting) -> Iterator[None]:
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    _set_arithmetic(setting)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.allow_tf32 = tf32


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
    return f"{path} was {was!r}, is {now!r}"
