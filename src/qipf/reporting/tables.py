"""Results of a benchmark run in the layout of the paper's tables, next to the paper's numbers.

A cell is the mean of a metric over the levels of a corruption, with the (population) standard
deviation over the levels. With several seeds, the value at a level is the mean over the seeds, and
the standard deviation between the means of single seeds is kept too. Levels at which the network
makes no errors, or only errors, leave nothing to detect: every metric leaves them out, and they
are counted. Cells with fewer seeds or levels than others of the same row are marked.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev, stdev

from qipf.bench.datasets import UNSEEN_SETS
from qipf.bench.methods import METHODS
from qipf.bench.results import NEAREST, Record, reported, reported_accuracy
from qipf.bench.suites import CLEAN, PAPER_CORRUPTIONS, PAPER_METHODS
from qipf.errors import QIPFInputError, unknown_name
from qipf.metrics.error_detection import HIGHER_IS_BETTER, TITLES
from qipf.plots.style import MISSING
from qipf.reporting.page import render_text

#: The metrics of the paper's two tables.
PAPER_METRICS = ("roc_auc", "pr_auc", "point_biserial")

#: Methods that ``"best"`` selects beside the best ones: those that readers look for.
WELL_KNOWN = ("qipf_plus", "entropy", "ensemble_entropy", "ensemble_log_odds", *PAPER_METHODS)

#: What the methods of this package are, in a note below a table.
OURS = {
    "qipf": "the paper's method",
    "qipf_plus": "LayeredQIPF",
    "qipf_plus_novelty": "LayeredQIPF's novelty",
}

#: How many of the best methods it selects.
BEST = 5

#: The metrics with their direction.
METRIC_TITLES = {
    name: f"{title} ({'higher' if HIGHER_IS_BETTER[name] else 'lower'} is better)"
    for name, title in TITLES.items()
}


@dataclass(frozen=True)
class Cell:
    """A mean over levels; `best` if no other method of the row is better."""

    mean: float
    std: float
    levels: int | None = None  # not known for the paper's cells
    best: bool = False
    measured: int = 0  # pairs of level and seed
    seed_std: float | None = None  # sample deviation between the means of single seeds


@dataclass(frozen=True)
class Row:
    """A network under a corruption: our cells and the paper's, by method."""

    corruption: str
    network: str
    ours: Mapping[str, Cell]
    paper: Mapping[str, Cell]
    levels: int  # measured by any method
    left_out: int  # of these, levels with nothing to detect
    measured: int = 0  # pairs of level and seed with something to detect

    @property
    def counts(self) -> bool:
        """Whether methods are compared in this row; not in those of the clean images."""
        return self.corruption != CLEAN

    def mark(self, method: str) -> str:
        """* if a cell lacks levels, † if it lacks seeds: its mean is not the same average."""
        cell = self.ours.get(method)
        if cell is None or cell.levels is None:
            return ""
        if cell.levels < self.levels - self.left_out:
            return "*"
        return "†" if cell.measured < self.measured else ""

    def text(self, method: str) -> str:
        """Our cell as text: mean, deviation if there are several levels, and mark."""
        if method not in self.ours:
            return MISSING
        cell = self.ours[method]
        deviation = f" ± {cell.std:.3f}" if self.levels > 1 else ""
        return f"{cell.mean:.3f}{deviation}{self.mark(method)}"

    def paper_text(self, method: str) -> str:
        """The paper's cell as text."""
        cell = self.paper.get(method)
        return MISSING if cell is None else f"{cell.mean:.2f} ± {cell.std:.2f}"


@dataclass(frozen=True)
class Contests:
    """Rows in which methods are compared: cells by method."""

    rows: Sequence[Mapping[str, Cell]]

    @property
    def wins(self) -> dict[str, int]:
        """In how many rows each method is best; ties count for all."""
        wins: dict[str, int] = {}
        for row in self.rows:
            for method, cell in row.items():
                wins[method] = wins.get(method, 0) + cell.best
        return wins

    @property
    def leaders(self) -> list[str]:
        """The methods that are best most often."""
        most = max(self.wins.values(), default=0)
        return [method for method, count in self.wins.items() if count == most > 0]


@dataclass(frozen=True)
class MetricTable:
    """All rows of one metric."""

    metric: str
    methods: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def contests(self) -> Contests:
        """Our cells of the rows in which two or more methods are compared."""
        return Contests([row.ours for row in self.rows if row.counts and len(row.ours) > 1])

    @property
    def paper_contests(self) -> Contests:
        """The paper's cells of the rows that the paper has."""
        return Contests([row.paper for row in self.rows if row.counts and row.paper])

    def means(self, network: str | None = None) -> dict[str, float]:
        """Mean over all corruptions (of a network) of each method that has all of these cells."""
        rows = [r for r in self.rows if r.counts and r.ours and network in (None, r.network)]
        return {
            method: fmean(row.ours[method].mean for row in rows)
            for method in self.methods
            if rows and all(method in row.ours for row in rows)
        }

    def ranking(self, network: str | None = None) -> list[str]:
        """All methods, shown or not, the best mean first; those without a mean last."""
        every = list(dict.fromkeys(method for row in self.rows for method in row.ours))
        means = replace(self, methods=tuple(every)).means(network)
        ranked = sorted(means, key=means.__getitem__, reverse=HIGHER_IS_BETTER[self.metric])
        return [*ranked, *(method for method in every if method not in means)]

    def equal_methods(self) -> dict[str, list[str]]:
        """Methods with the same result in every row, by the first of them; single ones left out.

        Results are the same if they differ by less than shows in four decimals: scores that order
        predictions alike still differ by rounding.
        """
        groups: dict[str, list[str]] = {}
        for method in self.ranking():
            first = next((name for name in groups if self._equal(name, method)), method)
            groups.setdefault(first, []).append(method)
        return {first: names for first, names in groups.items() if len(names) > 1}

    def distinct_ranking(self) -> list[str]:
        """The ranking; of methods with equal results only the first."""
        repeated = {name for names in self.equal_methods().values() for name in names[1:]}
        return [name for name in self.ranking() if name not in repeated]

    def _equal(self, one: str, other: str) -> bool:
        rows = [row.ours for row in self.rows if one in row.ours or other in row.ours]
        return all(
            one in row and other in row and abs(row[one].mean - row[other].mean) < 5e-5
            for row in rows
        )


@dataclass(frozen=True)
class NetworkLine:
    """A network and its accuracy on clean test images, ours and the paper's."""

    network: str
    dataset: str
    test_images: int
    accuracy: float | None
    paper_accuracy: float | None


@dataclass(frozen=True)
class Summary:
    """All tables of a run."""

    networks: tuple[NetworkLine, ...]
    tables: tuple[MetricTable, ...]
    notes: tuple[str, ...]
    board_notes: tuple[str, ...]  # of tables with methods in rows, without the paper's numbers


def summarise(
    results: Iterable[Record],
    metrics: Sequence[str] = PAPER_METRICS,
    methods: str | Sequence[str] = "paper",
) -> Summary:
    """Tables of `metrics` for `methods`: ``"best"``, ``"paper"``, ``"all"``, or names.

    ``"best"`` selects the best by the mean of the first metric and well-known ones, in that order;
    a cell is then flagged as best only if it is the best of all methods.
    """
    records = list(results)
    if not records:
        raise QIPFInputError("There are no results yet. Make them first: qipf bench run")
    for metric in metrics:
        if metric not in HIGHER_IS_BETTER:
            raise unknown_name("metric", metric, HIGHER_IS_BETTER)
    measured = {record["method"] for record in records}
    shown = tuple(select_methods(measured, "all" if methods == "best" else methods))
    tables = tuple(_table(metric, shown, records) for metric in metrics)
    if methods == "best" and tables:
        shown = tuple(_best_methods(tables[0]))
        tables = tuple(replace(table, methods=shown) for table in tables)
    networks = tuple(_network(name, records) for name in _names("network", records))
    notes, board_notes = (tuple(_notes(records, tables, shown, board)) for board in (False, True))
    return Summary(networks, tables, notes, board_notes)


def _best_methods(table: MetricTable) -> list[str]:
    """The best methods and well-known ones, best first; of methods with equal results one."""
    single = table.distinct_ranking()
    return [name for name in single if name in single[:BEST] or name in WELL_KNOWN]


def select_methods(measured: Iterable[str], wanted: str | Sequence[str] = "all") -> list[str]:
    """Methods to show: all that were measured (the paper's first), the paper's, or those named.

    ``"paper"`` selects all methods if none of the paper's was measured.
    """
    known = set(measured)
    order = [name for name in dict.fromkeys([*PAPER_METHODS, *METHODS]) if name in known]
    order += sorted(known - set(order))
    if wanted == "all":
        return order
    if wanted == "paper":
        return [name for name in order if name in PAPER_METHODS] or order
    names = [wanted] if isinstance(wanted, str) else wanted
    for name in names:
        if name not in known:
            raise unknown_name("method of this run", name, order)
    return list(dict.fromkeys(names))


def _names(key: str, records: Sequence[Record]) -> list[str]:
    """Names in the order of the results, which is the suite's; corruptions in the paper's."""
    names = list(dict.fromkeys(str(record[key]) for record in records))
    if key == "corruption":
        order = {name: rank for rank, name in enumerate(PAPER_CORRUPTIONS)}
        names.sort(key=lambda name: (name == CLEAN, order.get(name, len(order))))
    return names


def _table(metric: str, methods: tuple[str, ...], records: Sequence[Record]) -> MetricTable:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["corruption"], record["network"]), []).append(record)
    rows = [
        _row(metric, corruption, network, methods, groups[corruption, network])
        for corruption in _names("corruption", records)
        for network in _names("network", records)
        if (corruption, network) in groups
    ]
    return MetricTable(metric, methods, tuple(rows))


def _row(
    metric: str, corruption: str, network: str, methods: Sequence[str], own: Sequence[Record]
) -> Row:
    usable = [record for record in own if 0 < record["accuracy"] < 1]
    found: dict[str, dict[tuple[float, int], float]] = {}
    for record in usable:
        if record.get(metric) is not None:
            place = float(record["level"]), int(record["seed"])
            found.setdefault(record["method"], {})[place] = float(record[metric])
    ours, paper = {}, {}
    for method in methods:
        if method in found:
            ours[method] = _cell(found[method])
        if cell := reported(metric, corruption, network, method):
            paper[method] = Cell(cell.mean, cell.std)
    levels = {float(record["level"]) for record in own}
    return Row(
        corruption,
        network,
        _with_best(metric, ours),
        _with_best(metric, paper),
        levels=len(levels),
        left_out=len(levels - {float(record["level"]) for record in usable}),
        measured=len({(record["level"], record["seed"]) for record in usable}),
    )


def _cell(values: Mapping[tuple[float, int], float]) -> Cell:
    """The mean of values by level and seed: first over seeds, then over levels."""
    by_level: dict[float, list[float]] = {}
    by_seed: dict[int, list[float]] = {}
    for (level, seed), value in sorted(values.items()):
        by_level.setdefault(level, []).append(value)
        by_seed.setdefault(seed, []).append(value)
    levels, seeds = ([fmean(group) for group in g.values()] for g in (by_level, by_seed))
    seed_std = stdev(seeds) if len(seeds) > 1 else None
    return Cell(fmean(levels), pstdev(levels), len(levels), False, len(values), seed_std)


def _with_best(metric: str, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """The same cells, with the best ones flagged; equal means are equally good."""
    pick = max if HIGHER_IS_BETTER[metric] else min
    top = pick((cell.mean for cell in cells.values()), default=math.nan)
    return {
        method: replace(cell, best=math.isclose(cell.mean, top, abs_tol=1e-12))
        for method, cell in cells.items()
    }


def _network(name: str, records: Sequence[Record]) -> NetworkLine:
    own = [record for record in records if record["network"] == name]
    # one of each seed: all methods have the same predictions
    clean = {r["seed"]: float(r["accuracy"]) for r in own if r["corruption"] == CLEAN}
    return NetworkLine(
        name,
        own[0]["dataset"],
        own[0]["test_images"],
        fmean(clean.values()) if clean else None,
        reported_accuracy(name),
    )


def _notes(
    records: Sequence[Record], tables: Sequence[MetricTable], shown: Sequence[str], board: bool
) -> list[str]:
    """What a reader of the tables must know."""
    text = render_text(
        "notes.txt",
        seeds=sorted({record["seed"] for record in records}),
        datasets={record["dataset"]: record.get("dataset_note") for record in records},
        nearest={name: NEAREST[name] for name in _names("network", records) if name in NEAREST},
        rows=tables[0].rows if tables else (),
        unseen=[name for name in _names("corruption", records) if name in UNSEEN_SETS],
        marks={row.mark(method) for table in tables for row in table.rows for method in row.ours},
        hidden=len({record["method"] for record in records} - set(shown)),
        equal=[
            group
            for group in (tables[0].equal_methods().values() if board and tables else ())
            if group[0] in shown
        ],
        ours={name: text for name, text in OURS.items() if name in shown},
        roc_auc="roc_auc" in {table.metric for table in tables},
        board=board,
    )
    return text.splitlines()
