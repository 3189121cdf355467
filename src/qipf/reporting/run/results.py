"""Results and scores of a benchmark run, finished or not, for figures and pages."""

import copy
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from qipf.bench.corruptions import CORRUPTIONS
from qipf.bench.datasets import UNSEEN_SETS
from qipf.bench.results import WRONG, Record, ScoreStore, Task, read_results, task_of
from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.errors import QIPFInputError, unknown_name
from qipf.metrics.error_detection import HIGHER_IS_BETTER
from qipf.reporting.charts import Axis
from qipf.reporting.tables import select_methods

#: By unit: the level at which the images stay unchanged, and the symbol in charts.
UNITS = {"degrees": (0.0, "°"), "factor": (1.0, "×"), "severity": (0.0, ""), "rate": (0.0, "")}


def unit_of(corruption: str) -> str:
    """The unit of a corruption's level; empty for a corruption that is not registered."""
    return CORRUPTIONS[corruption].unit if corruption in CORRUPTIONS else ""


def identity_of(corruption: str) -> float | None:
    """The level at which the corruption leaves the images unchanged, if it is known."""
    return UNITS.get(unit_of(corruption), (None, ""))[0]


def level_text(corruption: str, level: float) -> str:
    """A level with its unit.

    >>> level_text("rotation", 30.0), level_text("zoom", 0.5), level_text("none", 0.0)
    ('30 degrees', 'factor 0.5', 'clean')
    """
    if corruption == CLEAN:
        return "clean"
    unit = unit_of(corruption)
    return f"factor {level:g}" if unit == "factor" else f"{level:g} {unit}".strip()


def condition_text(corruption: str, level: float) -> str:
    """A corruption and its level."""
    text = level_text(corruption, level)
    return text if corruption == CLEAN else f"{corruption}, {text}"


def by_severity(corruption: str, levels: Iterable[float]) -> list[float]:
    """Levels from the mildest to the strongest; half and double are equally strong.

    >>> by_severity("zoom", [0.4, 0.5, 0.8, 1.25, 2.5])
    [0.8, 1.25, 0.5, 0.4, 2.5]
    """

    def severity(level: float) -> float:
        if unit_of(corruption) == "factor":
            return round(abs(math.log(level)), 9) if level > 0 else math.inf
        return abs(level - (identity_of(corruption) or 0.0))

    return sorted(levels, key=lambda level: (severity(level), level))


def severity_axis(corruption: str, levels: Iterable[float]) -> Axis:
    """An axis with a tick at each level; logarithmic for factors."""
    unit = unit_of(corruption)
    label = f"{corruption} ({unit})" if unit else corruption
    return Axis(label, ticks=tuple(levels), log=unit == "factor")


Scores = dict[str, NDArray]  # method -> (n,)
ScoresByLevel = dict[float, tuple[Scores, NDArray]]  # level -> scores, and which are wrong (n,)
Curve = dict[float, float]  # level -> a metric, NaN where it is not defined


class Run:
    """The results and scores of a run's folder, or of its results file.

    Several folders, such as one for each seed, are read as one run.
    """

    def __init__(self, *folders: Path | str) -> None:
        self.records: list[Record] = []
        self.folder = _folder(folders[0])
        self._folders: dict[tuple[str, int], Path] = {}
        origin: dict[Task, Path | str] = {}
        for given in folders:
            part = read_results(given)
            if not part:
                raise QIPFInputError(
                    f"There are no results in {given} yet. "
                    f"Make them first: qipf bench run --out {given}"
                )
            for task in map(task_of, part):
                if origin.setdefault(task, given) != given:
                    raise QIPFInputError(
                        f"Both {origin[task]} and {given} hold {task} with seed {task.seed}. "
                        "Name one of them."
                    )
                self._folders[task.network, task.seed] = _folder(given)
            self.records += part

    def restricted(self, methods: Sequence[str]) -> "Run":
        """The same run with these methods alone, in this order."""
        part = copy.copy(self)
        for name in ("networks", "metrics", "seeds", "_grouped"):
            part.__dict__.pop(name, None)
        part.records = [record for record in self.records if record["method"] in methods]
        part.methods = list(methods)
        return part

    @cached_property
    def networks(self) -> list[str]:
        """Names of the networks, in the suite's order."""
        return list(dict.fromkeys(str(record["network"]) for record in self.records))

    @cached_property
    def methods(self) -> list[str]:
        """Names of the methods, the paper's first."""
        return self.select_methods("all")

    @cached_property
    def metrics(self) -> list[str]:
        """Names of the metrics; runs of earlier versions lack some."""
        return [m for m in HIGHER_IS_BETTER if any(m in record for record in self.records)]

    def select_methods(self, wanted: str | Sequence[str] = "paper") -> list[str]:
        """The paper's methods, all of them, or those named (see `tables.select_methods`)."""
        return select_methods((str(record["method"]) for record in self.records), wanted)

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that were run."""
        return sorted({int(record["seed"]) for record in self.records})

    def seed(self, network: str, wanted: int | None = None) -> int:
        """The seed of single predictions: the one wanted, or the network's lowest."""
        if wanted is not None:
            return wanted
        return min(seed for name, seed in self._folders if name == network)

    def folder_of(self, network: str, seed: int) -> Path:
        """The folder with the trained network and the scores of a seed."""
        return self._folders.get((network, seed), self.folder)

    def corruptions(self, network: str) -> list[str]:
        """Corruptions of a network, without the clean images and out-of-distribution sets."""
        own = [r["corruption"] for r in self.records if r["network"] == network]
        return [name for name in dict.fromkeys(own) if name not in (CLEAN, *UNSEEN_SETS)]

    def levels(self, network: str, corruption: str) -> list[float]:
        """Measured levels of a corruption, ascending."""
        return sorted({float(r["level"]) for r in self._records(network, corruption)})

    def network(self, name: str | None) -> str:
        """The network of this name, or the only one if the name is None."""
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
        """The corruption of this name, if the network was evaluated under it."""
        known = self.corruptions(network)
        if name not in known and name != CLEAN:
            raise unknown_name(f"corruption of {network} in this run", name, known)
        if not self._records(network, name):
            raise QIPFInputError(f"{network} was not evaluated on clean images in this run.")
        return name

    def level(self, network: str, corruption: str, level: float) -> float:
        """The level, if it was measured."""
        known = self.levels(network, corruption)
        if level not in known:
            raise QIPFInputError(
                f"Unknown level of {corruption} on {network} '{level:g}'. Known: "
                f"{', '.join(f'{each:g}' for each in known)}."
            )
        return level

    def curve(self, network: str, corruption: str, method: str, metric: str) -> Curve:
        """A metric over severity, with the clean images where the corruption changes nothing.

        A point is the mean over the seeds for which the metric is defined. Empty if the method was
        not measured.
        """
        values: dict[float, list[float]] = {}
        identity = identity_of(corruption)
        shown = (corruption,) if identity is None else (corruption, CLEAN)
        for record in self._records(network, *shown, method=method):
            clean = record["corruption"] == CLEAN
            level = float(record["level"]) if identity is None or not clean else identity
            known = values.setdefault(level, [])
            if record.get(metric) is not None:
                known.append(float(record[metric]))
        return {k: fmean(values[k]) if values[k] else np.nan for k in sorted(values)}

    def error_rate(self, network: str, corruption: str) -> Curve:
        """Error rate of the network over severity; it is the same for every method."""
        curves = (self.curve(network, corruption, m, "accuracy") for m in self.methods)
        return {level: 1 - value for level, value in max(curves, key=len).items()}

    def scores(self, network: str, corruption: str, seed: int | None = None) -> ScoresByLevel:
        """Uncertainties of every method, and which predictions are wrong, of one seed, if kept."""
        chosen = self.seed(network, seed)
        store = ScoreStore(self.folder_of(network, chosen), network, corruption, chosen)
        return {
            level: ({m: s for m, s in arrays.items() if m != WRONG}, arrays[WRONG].astype(bool))
            for level, arrays in store.read().items()
        }

    def clean_scores(self, network: str) -> tuple[Scores, NDArray] | None:
        """Scores of the clean test images, if they were kept."""
        return self.scores(network, CLEAN).get(CLEAN_LEVEL)

    @property
    def seed_note(self) -> str:
        """A sentence for sections that show one of several seeds."""
        if len(self.seeds) == 1:
            return ""
        return f"Of the {len(self.seeds)} seeds, the lowest of each network is shown."

    @cached_property
    def _grouped(self) -> dict[tuple[str, str], dict[str, list[Record]]]:
        """Records by network and corruption, then by method."""
        groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
        for record in self.records:
            by_method = groups.setdefault((record["network"], record["corruption"]), {})
            by_method.setdefault(record["method"], []).append(record)
        return groups

    def _records(self, network: str, *corruptions: str, method: str | None = None) -> list[Record]:
        """Records of a network under these corruptions, of one method or of all."""
        found: list[Record] = []
        for corruption in corruptions:
            by_method = self._grouped.get((network, corruption), {})
            for name in by_method if method is None else (method,):
                found += by_method.get(name, [])
        return found


def _folder(given: Path | str) -> Path:
    return Path(given) if Path(given).is_dir() else Path(given).parent
