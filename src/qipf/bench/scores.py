"""Uncertainties of every method at every level, stored for figures and paired comparisons.

A run's folder holds ``scores/seed0/mnist_lenet/rotation.npz``: in it ``15.0/qipf`` are the
uncertainties (float32, one per test image) and ``15.0/wrong`` says which predictions were wrong.
While a corruption is being measured its arrays are single files in a folder beside it.
"""

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qipf.bench.results import Task
from qipf.errors import QIPFInputError
from qipf.io.atomic import atomic_write

#: Name of the array that says which predictions were wrong.
WRONG = "wrong"

Level = dict[str, NDArray]


class ScoreStore:
    """The uncertainties of one network under one corruption."""

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
