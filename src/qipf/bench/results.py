"""Results as JSON lines: one line for each finished task, synced to disk as it is appended.

Whatever stops the program, the file then holds the finished tasks, and at most the beginning of
one more line, which the next run drops.
"""

import csv
import errno
import gzip
import json
import math
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError, first_line
from qipf.io.atomic import atomic_write, write_error

#: The file of a run's folder that holds its results, and its name when compressed.
RESULTS, PACKED = "results.jsonl", "results.jsonl.gz"

#: Fields that say how long something took; all others follow from suite, seed and device.
TIMINGS = ("seconds", "milliseconds_per_prediction", "network_seconds")

Record = dict[str, Any]


class Task(NamedTuple):
    """One measurement: a method at one level of a corruption for a network."""

    network: str
    corruption: str
    level: float
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.method} on {self.network}, {self.corruption} {self.level:g}"


def task_of(record: Record) -> Task:
    """The task that a line is the result of.

    >>> task_of({"network": "n", "corruption": "zoom", "level": 2, "method": "qipf", "seed": 0})
    Task(network='n', corruption='zoom', level=2.0, method='qipf', seed=0)
    """
    level = float(record["level"])
    return Task(record["network"], record["corruption"], level, record["method"], record["seed"])


class ResultLog:
    """The results file of a run, open for appending by this process alone.

    If there is none, but a compressed one, that is unpacked first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = path.parent / PACKED
        if packed.exists() and not path.exists():
            with atomic_write(path) as file:
                file.write(_content(packed))
        content = path.read_bytes() if path.exists() else b""
        self.records, kept = _parsed(path, content)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if kept < len(content):
            os.truncate(self._file, kept)
            os.fsync(self._file)

    def append(self, record: Record) -> None:
        """Append one line; on return it is on the disk."""
        line = (json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
        end = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            os.fsync(self._file)
        except OSError as error:
            raise write_error(self.path, error) from error
        if written < len(line):
            os.truncate(self._file, end)
            raise write_error(self.path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        self.records.append(json.loads(line))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_results(path: Path | str) -> list[Record]:
    """The lines of a run's folder, or of a results file, compressed or not; nothing is changed.

    An incomplete last line, which a run is writing or was killed while writing, is left out.
    """
    path = Path(path)
    file = path / RESULTS if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        file = path / PACKED
    if not file.is_file():
        if path.suffix in (".jsonl", ".gz"):
            raise QIPFInputError(f"There is no file {path}. Name a run's folder, or its {RESULTS}.")
        found = f"There is no run {path}. Make one first:"
        if path.exists():
            found = f"There are no results in {path}. Make them first:"
        raise QIPFInputError(f"{found} qipf bench run --out {path}")
    return _parsed(file, _content(file))[0]


def _content(file: Path) -> bytes:
    """The bytes of a results file, compressed or not."""
    content = file.read_bytes()
    if file.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise QIPFInputError(
            f"{file} is not a gzip file, or is damaged ({first_line(error)}). Replace it."
        ) from error


def _parsed(path: Path, content: bytes) -> tuple[list[Record], int]:
    """The records, and how many bytes of the file are whole lines."""
    records: list[Record] = []
    kept = 0
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # the rest is a line torn, or nothing
        try:
            record = json.loads(line)
            task_of(record)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) - 1 and not lines[-1]:
                break  # the last line: a power cut can leave its place filled with zeros
            if number == 1 and not records and not line.lstrip().startswith(b"{"):
                raise QIPFInputError(
                    f"{path} is not a run's results. A model's page is made by qipf report --model."
                ) from error
            raise QIPFInputError(
                f"{path}, line {number}: not a result ({type(error).__name__}). "
                "Delete that line, and its task will be done again."
            ) from error
        records.append(record)
        kept += len(line) + 1
    return records, kept


def _plain(value: Any) -> Any:
    """The value with null for NaN and infinities."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


#: Name of the array that says which predictions were wrong.
WRONG = "wrong"

Level = dict[str, NDArray]


class ScoreStore:
    """The uncertainties of one network under one corruption, for figures and comparisons.

    In ``scores/seed0/mnist_lenet/rotation.npz``, ``15.0/qipf`` are uncertainties (float32, one per
    test image) and ``15.0/wrong`` the errors; before `pack`, single files in a folder beside it.
    """

    def __init__(self, out: Path, network: str, corruption: str, seed: int) -> None:
        folder = Path(out) / "scores" / f"seed{seed}" / network
        self._packed = folder / f"{corruption}.npz"
        self._parts = folder / corruption

    def keep(self, task: Task, uncertainty: NDArray, wrong: NDArray) -> None:
        """Write a task's uncertainties; called before its result is appended."""
        level = self._parts / repr(task.level)
        if not (level / f"{WRONG}.npy").exists():
            _save(level / f"{WRONG}.npy", wrong.astype(bool))
        _save(level / f"{task.method}.npy", uncertainty.astype(np.float32))

    def pack(self) -> None:
        """Merge the single files into one; an interruption loses nothing."""
        if not self._parts.exists():
            return
        arrays = dict(self._arrays())
        with atomic_write(self._packed) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        shutil.rmtree(self._parts)

    def read(self) -> dict[float, Level]:
        """Arrays by level and method; each level has one more, ``wrong``."""
        levels: dict[float, Level] = {}
        for name, array in self._arrays():
            level, method = name.split("/")
            levels.setdefault(float(level), {})[method] = array
        return dict(sorted(levels.items()))

    def _arrays(self) -> Iterator[tuple[str, NDArray]]:
        """Names such as ``15.0/qipf``; what was written last comes last."""
        if self._packed.exists():
            try:
                with open(self._packed, "rb") as file, np.load(file, allow_pickle=False) as packed:
                    yield from packed.items()
            except (ValueError, EOFError, zipfile.BadZipFile) as error:
                raise QIPFInputError(
                    f"{self._packed} is not a file of scores ({error}). Replace it, or delete it."
                ) from error
        for part in sorted(self._parts.glob("*/*.npy")):
            yield f"{part.parent.name}/{part.stem}", np.load(part, allow_pickle=False)


def pack_all(out: Path) -> None:
    """Merge all single files, such as those of a run that was killed."""
    for parts in sorted(Path(out).glob("scores/seed*/*/*")):
        if not parts.is_dir():
            continue
        seed = int(parts.parent.parent.name.removeprefix("seed"))
        ScoreStore(out, parts.parent.name, parts.name, seed).pack()


def _save(path: Path, array: NDArray) -> None:
    with atomic_write(path) as file:
        np.save(file, array, allow_pickle=False)


#: Networks of ours by the network of the paper's that comes nearest, where the names differ.
NEAREST = {"kmnist10k_lenet": "kmnist_lenet"}


class Reported(NamedTuple):
    """Mean and standard deviation over a corruption's range, with two decimals."""

    mean: float
    std: float


@cache
def _table() -> dict[tuple[str, str, str, str], Reported]:
    text = resources.files("qipf.bench").joinpath("reported_results.csv").read_text("utf-8")
    return {
        (row["metric"], row["corruption"], row["network"], row["method"]): Reported(
            float(row["mean"]), float(row["std"] or "nan")
        )
        for row in csv.DictReader(text.splitlines())
    }


def reported(metric: str, corruption: str, network: str, method: str) -> Reported | None:
    """A cell of the paper's tables; None if it is not there.

    >>> reported("roc_auc", "rotation", "mnist_lenet", "qipf")
    Reported(mean=0.74, std=0.07)
    """
    metric = "pr_auc" if metric == "pr_auc_trapezoid" else metric  # the paper's are trapezoids
    return _table().get((metric, corruption, NEAREST.get(network, network), method))


def reported_accuracy(network: str) -> float | None:
    """The accuracy of a network of the paper's on clean test images.

    >>> reported_accuracy("cifar10_vgg3")
    0.885
    """
    cell = reported("accuracy", "none", network, "")
    return None if cell is None else cell.mean
