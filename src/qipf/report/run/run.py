"""A finished (or unfinished) run as figures and pages read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from qipf.bench.corruptions import CORRUPTIONS
from qipf.bench.methods import METHODS
from qipf.bench.results import Record, Task, read_results, task_of
from qipf.bench.scores import WRONG, read_scores
from qipf.bench.suites import CLEAN, CLEAN_LEVEL, PAPER_METHODS
from qipf.errors import QIPFInputError, unknown_name

#: The level at which a corruption of this unit leaves the images as they are.
IDENTITY = {"degrees": 0.0, "factor": 1.0}

Scores = dict[str, NDArray]  # method -> (n,)


@dataclass(frozen=True)
class Curve:
    """A metric at the levels of a corruption; NaN where it is not defined."""

    levels: tuple[float, ...]
    values: tuple[float, ...]


class Run:
    """The results and scores of a run's folder, or of its results file.

    Several folders, such as one for each seed, are read as one run.
    """

    def __init__(self, *folders: Path | str) -> None:
        parts = {folder: read_results(folder) for folder in folders}
        _check_parts(parts)
        self.records: list[Record] = [record for part in parts.values() for record in part]
        self.folder = _folder(folders[0])
        self._folders = {
            (str(record["network"]), int(record["seed"])): _folder(folder)
            for folder, part in parts.items()
            for record in part
        }

    @cached_property
    def networks(self) -> list[str]:
        """Names of the networks, in the suite's order."""
        return list(dict.fromkeys(str(record["network"]) for record in self.records))

    @cached_property
    def methods(self) -> list[str]:
        """Names of the methods: the paper's first, then the others."""
        measured = {str(record["method"]) for record in self.records}
        order = [*PAPER_METHODS, *(m for m in METHODS if m not in PAPER_METHODS)]
        return [m for m in order if m in measured] + sorted(measured - set(order))

    @property
    def paper_methods(self) -> list[str]:
        """Those of the run's methods that the paper compares."""
        return [name for name in self.methods if name in PAPER_METHODS]

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return sorted({int(record["seed"]) for record in self.records})

    def seed(self, network: str, wanted: int | None = None) -> int:
        """The seed whose pictures are shown: the one wanted, or the lowest of the network."""
        if wanted is not None:
            return wanted
        return min(seed for name, seed in self._folders if name == network)

    def folder_of(self, network: str, seed: int) -> Path:
        """Where the trained network and the scores of a seed are."""
        return self._folders.get((network, seed), self.folder)

    def corruptions(self, network: str) -> list[str]:
        """What a network was tried under, the clean images aside."""
        own = [r["corruption"] for r in self.records if r["network"] == network]
        return [name for name in dict.fromkeys(own) if name != CLEAN]

    def levels(self, network: str, corruption: str) -> list[float]:
        """The levels of a corruption that were measured, rising."""
        chosen = self._of(network, corruption)
        return sorted({float(record["level"]) for record in chosen})

    def network(self, name: str | None) -> str:
        """A network of this run: the only one where none is named."""
        if name is None and len(self.networks) == 1:
            return self.networks[0]
        if name is None:
            raise QIPFInputError(
                f"The run has several networks ({', '.join(self.networks)}). Name one: --network"
            )
        if name not in self.networks:
            raise unknown_name("network of this run", name, self.networks)
        return name

    def corruption(self, network: str, name: str) -> str:
        """A corruption that the network was tried under."""
        known = self.corruptions(network)
        if name not in known and name != CLEAN:
            raise unknown_name(f"corruption of {network} in this run", name, known)
        if not self._of(network, name):
            raise QIPFInputError(f"{network} was not tried on clean images in this run.")
        return name

    def level(self, network: str, corruption: str, level: float) -> float:
        """A level that was measured."""
        known = self.levels(network, corruption)
        if level not in known:
            listed = ", ".join(f"{each:g}" for each in known)
            nearest = min(known, key=lambda each: abs(each - level))
            raise QIPFInputError(
                f"{corruption} {level:g} was not measured on {network}. "
                f"Did you mean {nearest:g}? Known: {listed}."
            )
        return level

    def chosen_methods(self, names: Sequence[str] | None) -> list[str]:
        """These methods of the run, or all."""
        for name in names or ():
            if name not in self.methods:
                raise unknown_name("method of this run", name, self.methods)
        return list(dict.fromkeys(names)) if names else self.methods

    def curve(self, network: str, corruption: str, method: str, metric: str) -> Curve | None:
        """A metric over severity; the clean images stand at no severity.

        A point is the mean over the seeds for which the metric is defined. None where the method
        was not measured.
        """
        values: dict[float, list[float]] = {}
        unmoved = IDENTITY.get(unit_of(corruption))
        for record in self._of(network, corruption, *([] if unmoved is None else [CLEAN])):
            if record["method"] == method:
                clean = record["corruption"] == CLEAN
                level = unmoved if clean and unmoved is not None else float(record["level"])
                known = values.setdefault(level, [])
                if record.get(metric) is not None:
                    known.append(float(record[metric]))
        if not values:
            return None
        levels = sorted(values)
        return Curve(
            tuple(levels),
            tuple(fmean(values[level]) if values[level] else np.nan for level in levels),
        )

    def error_rate(self, network: str, corruption: str) -> Curve:
        """The share of wrong predictions over severity; the same for every method."""
        curves = (self.curve(network, corruption, m, "accuracy") for m in self.methods)
        fullest = max((c for c in curves if c is not None), key=lambda c: len(c.levels))
        return Curve(fullest.levels, tuple(1 - value for value in fullest.values))

    def scores(
        self, network: str, corruption: str, seed: int | None = None
    ) -> dict[float, tuple[Scores, NDArray]]:
        """By level: every method's uncertainties, and which predictions were wrong, of one seed."""
        chosen = self.seed(network, seed)
        read = read_scores(self.folder_of(network, chosen), network, corruption, chosen)
        return {
            level: ({m: s for m, s in arrays.items() if m != WRONG}, arrays[WRONG].astype(bool))
            for level, arrays in read.items()
        }

    def clean_scores(self, network: str, seed: int | None = None) -> Scores | None:
        """Uncertainties on the clean test images, where they were kept."""
        try:
            return self.scores(network, CLEAN, seed)[CLEAN_LEVEL][0]
        except (QIPFInputError, KeyError):
            return None

    def _of(self, network: str, *corruptions: str) -> list[Record]:
        return [
            r for r in self.records if r["network"] == network and r["corruption"] in corruptions
        ]


def unequal_seeds(records: Iterable[Record]) -> list[str]:
    """Methods that lack seeds which others of the same network and corruption have."""
    seeds: dict[tuple[str, str], dict[str, set[int]]] = {}
    for record in records:
        place = seeds.setdefault((record["network"], record["corruption"]), {})
        place.setdefault(record["method"], set()).add(int(record["seed"]))
    lacking = {
        method: None
        for methods in seeds.values()
        for method, own in methods.items()
        if own != set().union(*methods.values())
    }
    return list(lacking)


def of_one_seed(run: Run) -> str:
    """What is added where single predictions are shown although several seeds were run."""
    if len(run.seeds) == 1:
        return ""
    return f" Of the {len(run.seeds)} seeds, each network's lowest is shown."


def unit_of(corruption: str) -> str:
    """What a corruption's level is counted in; nothing for one that is not registered here."""
    return CORRUPTIONS[corruption].unit if corruption in CORRUPTIONS else ""


def level_text(corruption: str, level: float) -> str:
    """A level as it is read.

    >>> level_text("rotation", 30.0), level_text("zoom", 0.5), level_text("none", 0.0)
    ('30 degrees', 'factor 0.5', 'clean')
    """
    if corruption == CLEAN:
        return "clean"
    unit = unit_of(corruption)
    return f"factor {level:g}" if unit == "factor" else f"{level:g} {unit}".strip()


def chance(metric: str, error_rate: Iterable[float]) -> list[float]:
    """What an uncertainty that knows nothing would get, at these error rates.

    >>> chance("roc_auc", [0.1, 0.3]), chance("pr_auc", [0.1, 0.3])
    ([0.5, 0.5], [0.1, 0.3])
    """
    constant = {"roc_auc": 0.5, "point_biserial": 0.0, "fpr95": 0.95}.get(metric)
    return [rate if constant is None else constant for rate in error_rate]


def _folder(given: Path | str) -> Path:
    return Path(given) if Path(given).is_dir() else Path(given).parent


def _check_parts(parts: Mapping[Path | str, Sequence[Record]]) -> None:
    """Every folder has results, and no task two of them."""
    origin: dict[Task, Path | str] = {}
    for folder, part in parts.items():
        if not part:
            raise QIPFInputError(
                f"There are no results in {folder} yet. "
                f"Make them first: qipf bench run --out {folder}"
            )
        for task in map(task_of, part):
            if origin.setdefault(task, folder) != folder:
                raise QIPFInputError(
                    f"Both {origin[task]} and {folder} hold {task} with seed {task.seed}. "
                    "Name one of them."
                )
