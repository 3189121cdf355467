"""A run's results in the layout of the paper's tables, with the paper's numbers beside ours.

A cell is the mean of a metric over a corruption's levels, and its (population) standard deviation
over them. Where several seeds were run, a level's value is their mean, and how far the means of
single seeds lie apart is kept beside it; cells that rest on fewer seeds or levels than others of
their row are marked. Levels at which the
network makes no errors, or only errors, leave nothing to detect: they are left out of every
metric, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev, stdev

from qipf.bench.methods import METHODS
from qipf.bench.reported import NEAREST, reported, reported_accuracy
from qipf.bench.results import Record
from qipf.bench.suites import CLEAN, PAPER_CORRUPTIONS, PAPER_METHODS
from qipf.errors import QIPFInputError, unknown_name
from qipf.metrics.error_detection import HIGHER_IS_BETTER

#: The metrics of the paper's two tables.
PAPER_METRICS = ("roc_auc", "pr_auc", "point_biserial")

#: Signs on cells that are not to be compared with the others of their row, and what they mean.
MARKS = {
    "*": "* not all levels measured yet.",
    "†": "† fewer seeds than other methods of the same row: not the same average.",
}


@dataclass(frozen=True)
class Cell:
    """A mean over levels; `best` if no other method of its row is better."""

    mean: float
    std: float
    levels: int | None = None  # of the paper's cells this is not known
    best: bool = False
    measured: int = 0  # levels, each counted once for every seed
    seed_std: float | None = None  # between the means of single seeds (n - 1), from two on


@dataclass(frozen=True)
class Row:
    """A network under a corruption: our cells by method, and those of the paper."""

    corruption: str
    network: str
    ours: Mapping[str, Cell]
    paper: Mapping[str, Cell]
    levels: int  # measured by some method
    left_out: int  # of these, with nothing to detect
    measured: int = 0  # the others, each counted once for every seed

    @property
    def counts(self) -> bool:
        """Whether the row is one of those in which methods compete: not the clean images."""
        return self.corruption != CLEAN


@dataclass(frozen=True)
class MetricTable:
    """All rows of one metric; how often each method is best, ties counting for all tied."""

    metric: str
    methods: tuple[str, ...]
    rows: tuple[Row, ...]
    wins: Mapping[str, int]
    paper_wins: Mapping[str, int]

    @property
    def contests(self) -> int:
        """Rows in which two or more of our methods compete."""
        return sum(row.counts and len(row.ours) > 1 for row in self.rows)

    @property
    def paper_contests(self) -> int:
        """Rows that the paper has too."""
        return sum(row.counts and bool(row.paper) for row in self.rows)


@dataclass(frozen=True)
class NetworkLine:
    """A network and its accuracy on clean test images, ours and the paper's where known."""

    network: str
    dataset: str
    test_images: int
    accuracy: float | None
    paper_accuracy: float | None


@dataclass(frozen=True)
class Summary:
    """All that a run's tables show."""

    networks: tuple[NetworkLine, ...]
    tables: tuple[MetricTable, ...]
    notes: tuple[str, ...]


def summarise(
    results: Iterable[Record],
    metrics: Sequence[str] = PAPER_METRICS,
    methods: str | Sequence[str] = "paper",
) -> Summary:
    """Tables of `metrics` for `methods`: ``"paper"``, ``"all"``, or names."""
    records = list(results)
    if not records:
        raise QIPFInputError("There are no results yet. Make them first: qipf bench run")
    for metric in metrics:
        if metric not in HIGHER_IS_BETTER:
            raise unknown_name("metric", metric, HIGHER_IS_BETTER)
    shown = _methods(methods, {record["method"] for record in records})
    tables = tuple(_table(metric, shown, records) for metric in metrics)
    networks = tuple(_network(name, records) for name in _names("network", records))
    return Summary(networks, tables, tuple(_notes(records, tables, shown)))


def _methods(wanted: str | Sequence[str], measured: set[str]) -> tuple[str, ...]:
    in_order = (*PAPER_METHODS, *(name for name in METHODS if name not in PAPER_METHODS))
    known = [name for name in in_order if name in measured]
    if wanted == "all":
        return tuple(known)
    if wanted == "paper":
        return tuple(name for name in known if name in PAPER_METHODS) or tuple(known)
    names = [wanted] if isinstance(wanted, str) else wanted
    for name in names:
        if name not in known:
            raise unknown_name("method of these results", name, known)
    return tuple(dict.fromkeys(names))


def _names(key: str, records: Sequence[Record]) -> list[str]:
    """In the order of the results, which is the suite's; corruptions in the paper's."""
    names = list(dict.fromkeys(str(record[key]) for record in records))
    if key == "corruption":
        order = {name: rank for rank, name in enumerate(PAPER_CORRUPTIONS)}
        names.sort(key=lambda name: (name == CLEAN, order.get(name, len(order))))
    return names


def _table(metric: str, methods: tuple[str, ...], records: Sequence[Record]) -> MetricTable:
    rows = []
    for corruption in _names("corruption", records):
        for network in _names("network", records):
            own = [r for r in records if (r["corruption"], r["network"]) == (corruption, network)]
            if own:
                rows.append(_row(metric, corruption, network, methods, own))
    contests = [row for row in rows if row.counts]
    return MetricTable(
        metric,
        methods,
        tuple(rows),
        wins=_wins(methods, [row.ours for row in contests if len(row.ours) > 1]),
        paper_wins=_wins(methods, [row.paper for row in contests if row.paper]),
    )


def _row(
    metric: str, corruption: str, network: str, methods: Sequence[str], own: Sequence[Record]
) -> Row:
    levels = {float(record["level"]) for record in own}
    places = {_place(record) for record in own if 0 < record["accuracy"] < 1}
    ours, paper = {}, {}
    for method in methods:
        values = _values(metric, [r for r in own if r["method"] == method], places)
        if values:
            ours[method] = _cell(values)
        cell = reported(metric, corruption, network, method)
        if cell is not None:
            paper[method] = Cell(cell.mean, cell.std)
    return Row(
        corruption,
        network,
        _marked(metric, ours),
        _marked(metric, paper),
        len(levels),
        len(levels - {level for level, _ in places}),
        len(places),
    )


Place = tuple[float, int]  # a level and a seed


def _place(record: Record) -> Place:
    return float(record["level"]), int(record["seed"])


def _values(metric: str, records: Sequence[Record], places: set[Place]) -> dict[Place, float]:
    return {
        _place(record): float(record[metric])
        for record in records
        if _place(record) in places and record.get(metric) is not None
    }


def _cell(values: Mapping[Place, float]) -> Cell:
    levels = [fmean(seeds) for seeds in _grouped(values, 0).values()]
    seeds = [fmean(each) for each in _grouped(values, 1).values()]
    return Cell(
        fmean(levels),
        pstdev(levels),
        len(levels),
        measured=len(values),
        seed_std=stdev(seeds) if len(seeds) > 1 else None,
    )


def _grouped(values: Mapping[Place, float], part: int) -> dict[float, list[float]]:
    """Values by their level (part 0) or by their seed (part 1)."""
    groups: dict[float, list[float]] = {}
    for place, value in sorted(values.items()):
        groups.setdefault(place[part], []).append(value)
    return groups


def _marked(metric: str, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """The same cells, the best marked; equal means are equally good."""
    if not cells:
        return {}
    pick = max if HIGHER_IS_BETTER[metric] else min
    top = pick(cell.mean for cell in cells.values())
    return {
        method: replace(cell, best=math.isclose(cell.mean, top, abs_tol=1e-12))
        for method, cell in cells.items()
    }


def _wins(methods: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> dict[str, int]:
    return {
        method: sum(row[method].best for row in rows if method in row)
        for method in methods
        if any(method in row for row in rows)
    }


def _network(name: str, records: Sequence[Record]) -> NetworkLine:
    own = [record for record in records if record["network"] == name]
    # one of each seed: all methods judge the same predictions
    clean = {r["seed"]: float(r["accuracy"]) for r in own if r["corruption"] == CLEAN}
    return NetworkLine(
        name,
        own[0]["dataset"],
        own[0]["test_images"],
        fmean(clean.values()) if clean else None,
        reported_accuracy(name),
    )


def _notes(
    records: Sequence[Record], tables: Sequence[MetricTable], shown: Sequence[str]
) -> Iterable[str]:
    """What a reader of the tables must know."""
    seeds = sorted({record["seed"] for record in records})
    yield (
        "Mean ± standard deviation over a corruption's levels"
        + (
            f" (each the mean over the seeds {', '.join(map(str, seeds))})"
            if len(seeds) > 1
            else f", seed {seeds[0]}"
        )
        + "; the best of each row in bold."
    )
    for name, line in dict.fromkeys((r["dataset"], r.get("dataset_note", "")) for r in records):
        if line:
            yield f"{name} is {line}."
    for name in dict.fromkeys(str(r["network"]) for r in records):
        if name in NEAREST:
            yield (
                f"The paper's numbers beside {name} are those of {NEAREST[name]}, which had the "
                "full training set: not the same data."
            )
    for row in tables[0].rows if tables else ():
        if row.left_out:
            yield (
                f"{row.network} under {row.corruption}: {row.left_out} of {row.levels} levels "
                "left out, having no errors or only errors to detect."
            )
    marks = {mark(row, cell) for t in tables for row in t.rows for cell in row.ours.values()}
    yield from (text for sign, text in MARKS.items() if sign in marks)
    hidden = len({record["method"] for record in records} - set(shown))
    if hidden:
        yield f"{hidden} more methods were measured: --methods all"


def mark(row: Row, cell: Cell) -> str:
    """A sign from `MARKS` where other methods of the row were measured on more, else nothing."""
    if cell.levels is not None and cell.levels < row.levels - row.left_out:
        return "*"
    return "†" if cell.levels is not None and cell.measured < row.measured else ""
