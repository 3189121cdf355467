"""Tables as text: for the terminal, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from qipf.errors import unknown_name
from qipf.plots.style import MISSING
from qipf.reporting.page import render_text
from qipf.reporting.tables import METRIC_TITLES, MetricTable, Summary


class Text(NamedTuple):
    """Text of a cell."""

    text: str
    bold: bool = False


class Grid(NamedTuple):
    """A table of texts."""

    title: str
    header: list[str]
    rows: list[list[Text]]
    labels: int  # columns that name the row


def render(summary: Summary, style: str = "terminal", width: int | None = None) -> str:
    """A summary as text, in one of `FORMATS`; `width` is the terminal's, in characters."""
    if style not in FORMATS:
        raise unknown_name("format", style, FORMATS)
    return _terminal(summary, width) if style == "terminal" else FORMATS[style](summary)


def grids(summary: Summary) -> list[Grid]:
    """The networks, then one table for each metric."""
    return [_network_grid(summary), *(_metric_grid(table) for table in summary.tables)]


def _network_grid(summary: Summary) -> Grid:
    rows = []
    for line in summary.networks:
        accuracies = [
            MISSING if share is None else f"{share:.1%}"
            for share in (line.accuracy, line.paper_accuracy)
        ]
        texts = line.network, line.dataset, f"{line.test_images:,}", *accuracies
        rows.append([Text(text) for text in texts])
    return Grid("Networks", ["network", "dataset", "test images", "accuracy", "paper"], rows, 2)


def _metric_grid(table: MetricTable) -> Grid:
    rows = []
    for row in table.rows:
        ours = [Text(row.text(m), m in row.ours and row.ours[m].best) for m in table.methods]
        rows.append([Text(row.corruption), Text(row.network), Text("ours"), *ours])
        if row.paper:
            paper = [
                Text(row.paper_text(m), m in row.paper and row.paper[m].best) for m in table.methods
            ]
            rows.append([Text(""), Text(""), Text("paper"), *paper])
    for source, contests in (("ours", table.contests), ("paper", table.paper_contests)):
        if contests.rows:
            wins, leaders = contests.wins, contests.leaders
            counts = [Text(str(wins.get(m, MISSING)), m in leaders) for m in table.methods]
            rows.append([Text(f"best of {len(contests.rows)}"), Text(""), Text(source), *counts])
    return Grid(
        METRIC_TITLES[table.metric], ["corruption", "network", "source", *table.methods], rows, 3
    )


def _terminal(summary: Summary, width: int | None = None) -> str:
    return terminal(grids(summary), summary.notes, width)


def terminal(grids: Sequence[Grid], notes: Sequence[str], width: int | None = None) -> str:
    """Tables and notes for a terminal of so many characters; wide tables are split."""
    from rich.console import Console

    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        for grid in grids:
            for part in _blocks(grid, console.width):
                console.print(_rich(part))
        for note in notes:
            console.print(note, style="dim", soft_wrap=True, markup=False)
    return captured.get()


def _blocks(grid: Grid, width: int) -> list[Grid]:
    """The grid split into parts that fit the width, each with the label columns."""
    columns = list(zip(*([Text(name) for name in grid.header], *grid.rows), strict=True))
    sizes = [  # padding and separator add three characters
        max(map(len, (*_folded(column[0].text), *(cell.text for cell in column[1:])))) + 3
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


def _from_template(name: str) -> Callable[[Summary], str]:
    return lambda summary: render_text(name, grids=grids(summary), notes=summary.notes)


def _csv(summary: Summary) -> str:
    """One line for each cell, with all digits."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_lines(summary))
    return stream.getvalue()


_COLUMNS = (
    "metric", "corruption", "network", "dataset", "method", "mean", "std", "levels", "left_out",
    "best", "paper_mean", "paper_std", "paper_best", "mark", "measured", "seed_std",
)  # fmt: skip


def _lines(summary: Summary) -> list[dict[str, Any]]:
    """Cells by the names in `_COLUMNS`; None where there is no value."""
    datasets = {line.network: line.dataset for line in summary.networks}
    lines = []
    for table in summary.tables:
        for row in table.rows:
            for method in table.methods:
                line = dict.fromkeys(_COLUMNS) | {
                    "metric": table.metric, "corruption": row.corruption, "network": row.network,
                    "dataset": datasets[row.network], "method": method,
                }  # fmt: skip
                if method in row.ours:
                    extra = {"left_out": row.left_out, "mark": row.mark(method)}
                    line |= asdict(row.ours[method]) | extra
                if method in row.paper:
                    cell = row.paper[method]
                    std = None if math.isnan(cell.std) else cell.std
                    line |= {"paper_mean": cell.mean, "paper_std": std, "paper_best": cell.best}
                if method in row.ours or method in row.paper:
                    lines.append(line)
    return lines


def _json(summary: Summary) -> str:
    content = {
        "networks": [asdict(line) for line in summary.networks],
        "cells": _lines(summary),
        "wins": {
            table.metric: {
                "of": len(table.contests.rows),
                "ours": table.contests.wins,
                "paper_of": len(table.paper_contests.rows),
                "paper": table.paper_contests.wins,
            }
            for table in summary.tables
        },
        "notes": list(summary.notes),
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


#: Output formats by name.
FORMATS: dict[str, Callable[[Summary], str]] = {
    "terminal": _terminal,
    "markdown": _from_template("tables.md"),
    "csv": _csv,
    "latex": _from_template("tables.tex"),
    "json": _json,
}
