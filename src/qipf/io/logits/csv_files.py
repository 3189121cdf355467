"""Logits in text files: comma-separated, with a header or (all numbers) without."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError
from qipf.io.logits.columns import chosen_columns, chosen_label
from qipf.io.logits.file_types import detect_binary
from qipf.io.logits.numbers import is_number, parse_number
from qipf.io.logits.table import Block, Table, checked_labels, require_finite, rows_per_block


def open_csv(path: Path, columns: str | None, labels: str | None) -> Table:
    """A text file whose first line names its columns; without names they are logits, in order."""
    with _reading(path) as reader:
        first = next(reader, None)
        if not first:
            raise QIPFInputError(f"{path} is empty: a header and rows of numbers are expected.")
    headed = not _all_numbers(first)
    names = first if headed else [f"logit_{k}" for k in range(len(first))]
    if headed and len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise QIPFInputError(
            f"{path} separates its columns by {'semicolons' if ';' in names[0] else 'tabs'}; "
            "commas are expected."
        )
    label = chosen_label(str(path), names, labels)
    chosen = chosen_columns(str(path), names, columns)
    if label in chosen:
        raise QIPFInputError(
            f"{path}: the column {label!r} is chosen as a logit and as the label. Narrow --columns."
        )

    def blocks() -> Iterator[Block]:
        with _reading(path) as reader:
            if headed:
                next(reader)
            yield from _blocks(path, reader, names, chosen, label)

    lines = _lines(path) - int(headed)
    return Table(str(path), lines, tuple(chosen), label is not None, blocks)


def _blocks(
    path: Path, reader: Any, names: Sequence[str], chosen: Sequence[str], label: str | None
) -> Iterator[Block]:
    at = [names.index(name) for name in chosen]
    label_at = None if label is None else names.index(label)
    rest = [k for k in range(len(names)) if k not in at and k != label_at]
    numbered = _numbered(path, reader, len(names))
    size = rows_per_block(len(names))
    empty = True
    while part := list(islice(numbered, size)):
        empty = False
        lines, rows = [line for line, _ in part], [row for _, row in part]

        def where(row: int, lines: list[int] = lines) -> str:
            return f"line {lines[row]}"

        logits = _numbers(path, rows, lines, names, at)
        require_finite(logits, str(path), where, chosen)
        truth = None
        if label_at is not None:
            classes = _numbers(path, rows, lines, names, [label_at])[:, 0]
            truth = checked_labels(classes, len(chosen), str(path), where)
        yield Block(logits, truth, {names[k]: [row[k] for row in rows] for k in rest})
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
    path: Path, rows: list[list[str]], lines: list[int], names: Sequence[str], at: Sequence[int]
) -> NDArray[np.float64]:  # (n, len(at))
    try:
        return np.array([[parse_number(row[k]) for k in at] for row in rows])
    except ValueError:
        for row, line in zip(rows, lines, strict=True):
            for k in at:
                if not is_number(row[k]):
                    found = repr(row[k]) if row[k].strip() else "nothing"
                    raise QIPFInputError(
                        f"{path}, line {line}: the column {names[k]!r} holds {found}, not a number."
                    ) from None
        raise


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    try:
        # utf-8-sig: spreadsheets put a mark at the start that is no part of the first name
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield csv.reader(file)
    except UnicodeDecodeError as error:
        raise QIPFInputError(f"{path} is {_instead_of_text(path)}.") from error
    except csv.Error as error:
        raise QIPFInputError(f"{path} is not a readable text table: {error}.") from error


def _instead_of_text(path: Path) -> str:
    with open(path, "rb") as file:
        found = detect_binary(file)
    return (
        f"{found.what}, not text. Unpack it, or name it for what it is"
        if found
        else "not a text file in UTF-8"
    )


def _lines(path: Path) -> int:
    """How many lines there are, read in large pieces."""
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            count += piece.count(b"\n")
            last = piece[-1:]
    return count + (last != b"\n")


def _all_numbers(fields: Sequence[str]) -> bool:
    return all(map(is_number, fields))
