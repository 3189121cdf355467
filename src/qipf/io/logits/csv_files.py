"""Logits in comma-separated text files, with or without a header."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.io.logits.columns import (
    is_header,
    logit_and_label_columns,
    require_commas,
    require_different,
)
from qipf.io.logits.table import (
    Block,
    Table,
    checked_block,
    detect_binary,
    is_number,
    parse_number,
    rows_per_block,
)

#: Most characters of a line; a row of 20,000 logits has half a million.
LONGEST_LINE = 2**24


def open_csv(path: Path, columns: str | None, labels: str | None, finite: bool = True) -> Table:
    """Open a text file; if its first line is no header (`is_header`), all columns are logits."""
    with _reader(path) as reader:
        first = next(reader, None)
    if not first:
        raise QIPFInputError(f"{path} is empty: a header and rows of numbers are expected.")
    headed = is_header(first)
    names = first if headed else [f"logit_{k}" for k in range(len(first))]
    require_commas(str(path), names)
    require_different(str(path), names)
    chosen, label = logit_and_label_columns(str(path), names, columns, labels)

    def blocks() -> Iterator[Block]:
        with _reader(path) as reader:
            if headed:
                next(reader)
            yield from _blocks(path, reader, names, chosen, label, finite)

    lines = _lines(path) - int(headed)
    return Table(str(path), lines, tuple(chosen), label is not None, blocks)


def _blocks(
    path: Path,
    reader: Any,
    names: Sequence[str],
    chosen: Sequence[str],
    label: str | None,
    finite: bool,
) -> Iterator[Block]:
    numbered = _numbered(path, reader, len(names))
    empty = True
    while part := list(islice(numbered, rows_per_block(len(names)))):
        empty = False
        lines, rows = zip(*part, strict=True)

        def where(row: int, lines: tuple[int, ...] = lines) -> str:
            return f"line {lines[row]}"

        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        numbers = {
            name: _numbers(path, where, name, columns.pop(name))
            for name in ([*chosen, label] if label else chosen)
        }
        logits = np.stack([numbers[name] for name in chosen], axis=1)
        truth = numbers[label] if label else None
        yield checked_block(str(path), where, chosen, logits, truth, columns, finite)
    if empty:
        raise QIPFInputError(f"{path} has a header, but no rows.")


def _numbered(path: Path, reader: Any, width: int) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line each ends on (quoted fields may hold line breaks); empty lines skipped."""
    for row in reader:
        if len(row) == width:
            yield reader.line_num, row
        elif row:
            raise QIPFInputError(
                f"{path}, line {reader.line_num} has {len(row)} instead of {width} fields."
            )


def _numbers(
    path: Path, where: Callable[[int], str], name: str, values: list[str]
) -> NDArray[np.float64]:  # (n,)
    try:
        return np.array([parse_number(value) for value in values])
    except ValueError:
        row = next(row for row, value in enumerate(values) if not is_number(value))
        found = f"holds {values[row]!r}, not a number."
        if not values[row].strip():
            found = (
                "is empty. Drop the row, or write nan (qipf score --nan-policy propagate gives it "
                "no scores; fit, calibrate and report always raise)."
            )
        raise QIPFInputError(f"{path}, {where(row)}: the column {name!r} {found}") from None


@contextmanager
def _reader(path: Path) -> Iterator[Any]:
    try:
        # utf-8-sig: spreadsheets write a byte order mark before the first name
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield csv.reader(_short_lines(path, file))
    except UnicodeDecodeError as error:
        with open(path, "rb") as file:
            found = detect_binary(file)
        reason = (
            f"{found.what}, not text. Unpack it, or change the suffix to that of its type"
            if found
            else "not a text file in UTF-8"
        )
        raise QIPFInputError(f"{path} is {reason}.") from error
    except csv.Error as error:
        raise QIPFInputError(f"{path} is not a readable text table: {error}.") from error


def _short_lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a text; raises for one that would take too much memory."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise QIPFInputError(f"{path} has a line of more than {LONGEST_LINE:,} characters.")
        yield line


def _lines(path: Path) -> int:
    """Number of lines, read in large pieces."""
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            count += piece.count(b"\n")
            last = piece[-1:]
    return count + (last != b"\n")
