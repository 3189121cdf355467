"""Tables as text: for the terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from qipf.errors import unknown_name
from qipf.metrics.error_detection import HIGHER_IS_BETTER
from qipf.report.tables import Cell, MetricTable, Row, Summary, mark

#: How a metric is called where people read it.
TITLES = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "point_biserial": "Point-biserial correlation",
    "aurc": "AURC",
    "fpr95": "FPR at 95 % TPR",
}

#: What stands in a cell that was not measured.
MISSING = "–"


class Text(NamedTuple):
    """A cell as it is read."""

    text: str
    bold: bool = False


class Grid(NamedTuple):
    """A table as it is read: a title, a header, and rows of texts."""

    title: str
    header: list[str]
    rows: list[list[Text]]
    labels: int  # columns that name the row


def render(summary: Summary, style: str = "terminal", width: int | None = None) -> str:
    """A summary as text, in one of `FORMATS`; `width` is the terminal's, in characters."""
    if style not in FORMATS:
        raise unknown_name("format", style, FORMATS)
    if style == "terminal":
        return _terminal(summary, width)
    return FORMATS[style](summary)


def grids(summary: Summary) -> list[Grid]:
    """The tables that people read: networks first, then one for each metric."""
    return [_network_grid(summary), *(_metric_grid(table) for table in summary.tables)]


def _network_grid(summary: Summary) -> Grid:
    rows = [
        [
            Text(line.network),
            Text(line.dataset),
            Text(f"{line.test_images:,}"),
            Text(_percent(line.accuracy)),
            Text(_percent(line.paper_accuracy)),
        ]
        for line in summary.networks
    ]
    return Grid("Networks", ["network", "dataset", "test images", "accuracy", "paper"], rows, 2)


def _metric_grid(table: MetricTable) -> Grid:
    better = "higher" if HIGHER_IS_BETTER[table.metric] else "lower"
    rows = []
    for row in table.rows:
        ours = [_ours(row, row.ours.get(method)) for method in table.methods]
        rows.append([Text(row.corruption), Text(row.network), Text("ours"), *ours])
        if row.paper:
            theirs = [_theirs(row.paper.get(method)) for method in table.methods]
            rows.append([Text(""), Text(""), Text("paper"), *theirs])
    for source, wins, contests in (
        ("ours", table.wins, table.contests),
        ("paper", table.paper_wins, table.paper_contests),
    ):
        if contests:
            counts = [_count(wins, method) for method in table.methods]
            rows.append([Text(f"best of {contests}"), Text(""), Text(source), *counts])
    title = f"{TITLES[table.metric]} ({better} is better)"
    return Grid(title, ["corruption", "network", "source", *table.methods], rows, 3)


def _ours(row: Row, cell: Cell | None) -> Text:
    if cell is None:
        return Text(MISSING)
    spread = f" ± {cell.std:.3f}" if row.levels > 1 else ""
    return Text(f"{cell.mean:.3f}{spread}{mark(row, cell)}", cell.best)


def _theirs(cell: Cell | None) -> Text:
    return Text(MISSING) if cell is None else Text(f"{cell.mean:.2f} ± {cell.std:.2f}", cell.best)


def _count(wins: Mapping[str, int], method: str) -> Text:
    count = wins.get(method)
    return Text(MISSING) if count is None else Text(str(count), count == max(wins.values()) > 0)


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.1%}"


def _terminal(summary: Summary, width: int | None) -> str:
    from rich.console import Console

    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        for grid in grids(summary):
            for part in _blocks(grid, console.width):
                console.print(_rich(part))
        for note in summary.notes:
            console.print(note, style="dim", soft_wrap=True, markup=False)
    return captured.get()


def _blocks(grid: Grid, width: int) -> list[Grid]:
    """The grid in as many parts as the width makes necessary, each with the row's labels."""
    columns = list(zip(*([Text(name) for name in grid.header], *grid.rows), strict=True))
    sizes = [  # a column is two blanks and a rule wider than what stands in it
        max(max(map(len, _folded(column[0].text))), *(len(cell.text) for cell in column[1:])) + 3
        for column in columns
    ]
    left = width - 1 - sum(sizes[: grid.labels])
    parts: list[list[int]] = [[]]
    for index in range(grid.labels, len(columns)):
        if parts[-1] and sum(sizes[i] for i in (*parts[-1], index)) > left:
            parts.append([])
        parts[-1].append(index)
    labels = list(range(grid.labels))
    return [
        Grid(
            grid.title + (f", part {number} of {len(parts)}" if len(parts) > 1 else ""),
            [grid.header[i] for i in (*labels, *part)],
            [[row[i] for i in (*labels, *part)] for row in grid.rows],
            grid.labels,
        )
        for number, part in enumerate(parts, start=1)
    ]


def _folded(name: str) -> list[str]:
    """A long name on several lines: mc_dropout_ll becomes mc_, dropout_, ll."""
    pieces = name.split("_")
    return [piece + "_" for piece in pieces[:-1]] + pieces[-1:]


def _rich(grid: Grid) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text as Styled

    table = Table(title=grid.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1))
    for index, name in enumerate(grid.header):
        label = index < grid.labels
        table.add_column(
            Styled(name if label else "\n".join(_folded(name))),
            justify="left" if label else "right",
            no_wrap=True,
        )
    for row in grid.rows:
        paper = any(cell.text == "paper" for cell in row[: grid.labels])
        style = "dim" if paper else ""
        table.add_row(*(Styled(c.text, f"bold {style}".strip() if c.bold else style) for c in row))
    return table


def _markdown(summary: Summary) -> str:
    lines: list[str] = []
    for grid in grids(summary):
        lines += [f"## {grid.title}", "", _piped(grid.header)]
        sides = ["---"] * grid.labels + ["---:"] * (len(grid.header) - grid.labels)
        lines.append(_piped(sides))
        lines += [_piped([f"**{c.text}**" if c.bold else c.text for c in row]) for row in grid.rows]
        lines.append("")
    lines += [f"- {note.replace('*', chr(92) + '*')}" for note in summary.notes]
    return "\n".join(lines) + "\n"


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _latex(summary: Summary) -> str:
    lines = ["% needs the package booktabs"]
    for grid in grids(summary):
        columns = "l" * grid.labels + "r" * (len(grid.header) - grid.labels)
        lines += [
            r"\begin{table}",
            rf"\caption{{{_tex(grid.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(_tex, grid.header)) + r" \\",
            r"\midrule",
        ]
        for row in grid.rows:
            cells = [rf"\textbf{{{_tex(c.text)}}}" if c.bold else _tex(c.text) for c in row]
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    lines += [f"% {note}" for note in summary.notes]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    for plain, written in (
        ("_", r"\_"),
        ("%", r"\%"),
        ("±", r"$\pm$"),
        ("†", r"$\dagger$"),
        (MISSING, "--"),
    ):
        text = text.replace(plain, written)
    return text


def _csv(summary: Summary) -> str:
    """One line for each cell, with all digits."""
    lines = _lines(summary)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(_COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


_COLUMNS = (
    "metric", "corruption", "network", "dataset", "method", "mean", "std", "levels", "left_out",
    "best", "paper_mean", "paper_std", "paper_best", "mark", "measured", "seed_std",
)  # fmt: skip


def _lines(summary: Summary) -> list[dict[str, Any]]:
    lines = []
    datasets = {line.network: line.dataset for line in summary.networks}
    for table in summary.tables:
        for row in table.rows:
            for method in table.methods:
                ours, paper = row.ours.get(method), row.paper.get(method)
                if ours is None and paper is None:
                    continue
                values = [*_values(ours, row), *_values(paper, row)[:2], paper and paper.best]
                values += [ours and mark(row, ours), ours and ours.measured, ours and ours.seed_std]
                named = (table.metric, row.corruption, row.network, datasets[row.network], method)
                lines.append(dict(zip(_COLUMNS, (*named, *values), strict=True)))
    return lines


def _values(cell: Cell | None, row: Row) -> list[Any]:
    if cell is None:
        return [None] * 5
    std = None if math.isnan(cell.std) else cell.std
    return [cell.mean, std, cell.levels, row.left_out, cell.best]


def _json(summary: Summary) -> str:
    content = {
        "networks": [asdict(line) for line in summary.networks],
        "cells": _lines(summary),
        "wins": {
            table.metric: {
                "of": table.contests,
                "ours": dict(table.wins),
                "paper_of": table.paper_contests,
                "paper": dict(table.paper_wins),
            }
            for table in summary.tables
        },
        "notes": list(summary.notes),
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


#: Ways to write a summary, by name.
FORMATS: dict[str, Callable[[Summary], str]] = {
    "terminal": lambda summary: _terminal(summary, None),
    "markdown": _markdown,
    "csv": _csv,
    "latex": _latex,
    "json": _json,
}
