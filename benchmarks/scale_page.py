"""The tables of docs/scale.md, from the measurements in results/scale.csv.

python benchmarks/scale_page.py     # brings the page up to date; a test asks for it
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

HOME = Path(__file__).parents[1]
RESULTS, PAGE = HOME / "results" / "scale.csv", HOME / "docs" / "scale.md"

#: What an hour costs, in US dollars: assumptions, round numbers in the range that clouds ask for.
CORE_HOUR, GPU_HOUR = 0.05, 4.00

#: Cores of the CPU machine that the second table counts in.
CORES = 16

WAYS = {"memory": "arrays in memory", "shards": "Parquet shards", "ray": "Parquet shards on Ray"}

Row = dict[str, str]


def read(path: Path = RESULTS) -> list[Row]:
    """The measurements, one a row."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def price_per_hour(row: Row) -> float:
    """Of the cores or the GPU that a measurement kept busy."""
    return GPU_HOUR if row["device"] == "cuda" else CORE_HOUR * int(row["cores"])


def measured(rows: list[Row]) -> str:
    """Cost per million predictions."""
    lines = [
        "| computed on | way | logits | centres | predictions/s | seconds per million "
        "| US$ per million |",
        "| --- | --- | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        rate = float(row["predictions_per_second"])
        cost = 1e6 / rate / 3600 * price_per_hour(row)
        lines.append(
            f"| {_place(row)} | {WAYS[row['way']]} | {row['dimension']} "
            f"| {int(row['centers']):,} | {_short(rate)} | {_short(1e6 / rate)} | {cost:.2g} |"
        )
    return "\n".join(lines) + "\n"


def a_day(rows: list[Row], predictions: float = 1e9) -> str:
    """Machines and money for so many predictions a day."""
    lines = [
        "| machine | logits | busy hours a day | machines | US$ a day |",
        "| --- | --: | --: | --: | --: |",
    ]
    for row in rows:
        gpu = row["device"] == "cuda"
        if not gpu and (row["way"], row["cores"]) not in (("memory", "1"), ("shards", "1")):
            continue  # one core is the unit; machines are made of them
        scale = 1 if gpu else CORES
        hours = predictions / (scale * float(row["predictions_per_second"])) / 3600
        price = GPU_HOUR if gpu else CORES * CORE_HOUR
        name = row["machine"] if gpu else f"{CORES} cores"
        lines.append(
            f"| {name}, {WAYS[row['way']]} | {row['dimension']} | {_short(hours)} "
            f"| {math.ceil(hours / 24)} | {hours * price:.2f} |"
        )
    return "\n".join(lines) + "\n"


def speedup(rows: list[Row]) -> str:
    """What a second worker gives."""
    rates = {
        row["cores"]: float(row["predictions_per_second"]) for row in rows if row["way"] == "ray"
    }
    if not {"1", "2"} <= set(rates):
        return "Not measured on this machine.\n"
    return (
        f"One worker scored {_short(rates['1'])} predictions a second, two {_short(rates['2'])}: "
        f"{rates['2'] / rates['1']:.2f} times as many.\n"
    )


def updated(page: str, rows: list[Row]) -> str:
    """The page with the tables of these measurements."""
    parts = {"measured": measured(rows), "a day": a_day(rows), "speedup": speedup(rows)}
    for name, text in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = page.split(begin)
        page = before + begin + text + end + rest.split(end, 1)[1]
    return page


def _place(row: Row) -> str:
    if row["device"] == "cuda":
        return row["machine"]
    return f"{row['machine']}, {row['cores']} core{'s' if row['cores'] != '1' else ''}"


def _short(value: float) -> str:
    """Three digits, whatever the size."""
    if value >= 100:
        return f"{round(value, 2 - math.floor(math.log10(value))):,.0f}"
    return f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
