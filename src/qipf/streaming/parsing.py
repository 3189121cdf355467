"""Logits from lines of text: comma-separated numbers, or JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError, unknown_name
from qipf.streaming.lines import LONGEST_LINE, TOO_LONG
from qipf.tables.columns import chosen_columns

#: How logits may stand in a line.
FORMATS = ("auto", "csv", "jsonl")

#: Where a JSON object has its logits, when nothing is said.
LOGITS = "logits"


@dataclass(frozen=True)
class Parsed:
    """What some lines hold."""

    rows: NDArray[np.float64]  # (n, d), with NaN or inf where the line says so
    places: list[int]  # (n,) the line of each row, among those given
    bad: list[tuple[int, str]]  # lines that hold no logits, and why


class LineParser:
    """Reads lines of one layout, which the first line of the input tells.

    A line of JSON is a list of numbers, or an object that has one under `columns` (``logits`` if
    not given); null stands for NaN. A line of text has its numbers by comma; where the first line
    is not all numbers it names the columns, and `columns` chooses among them.

    >>> parser = LineParser(2, b"id,logit_0,logit_1", "in.csv")
    >>> parser.parse([b"id,logit_0,logit_1", b"a,1.5,2", b"b,1.5"]).bad
    [(2, '2 fields instead of 3')]
    """

    def __init__(
        self,
        dimension: int,
        first: bytes,
        name: str,
        form: str = "auto",
        columns: str | None = None,
    ) -> None:
        if form not in FORMATS:
            raise unknown_name("format", form, FORMATS)
        self._dimension, self._first = dimension, first.rstrip(b"\r")
        self._headed, self._width = False, 0
        as_json = form == "jsonl" or (form == "auto" and first.lstrip()[:1] in (b"[", b"{"))
        if as_json:
            self._key = LOGITS if columns is None else columns
            self._one: Callable[[bytes], list[float]] = self._json
        else:
            self._one = self._text
            self._read_header(name, columns)

    def _read_header(self, name: str, columns: str | None) -> None:
        try:
            fields = _fields(self._first.removeprefix(b"\xef\xbb\xbf"))
        except ValueError as error:
            raise QIPFInputError(f"{name}, line 1: {error}.") from None
        self._headed = not all(map(_is_number, fields))
        self._width = len(fields)
        if not self._headed:
            fields = [f"logit_{k}" for k in range(len(fields))]
        chosen = chosen_columns(name, fields, columns)
        if len(chosen) != self._dimension:
            raise QIPFInputError(
                f"{name} has {len(chosen)} logits a line, but the field was fitted with "
                f"{self._dimension}. Choose them with --columns."
            )
        self._at = [fields.index(column) for column in chosen]

    def parse(self, texts: list[bytes]) -> Parsed:
        """The rows of some lines; empty lines and the header, if met again, are left out."""
        plain = self._all_at_once(texts)
        if plain is not None:
            return Parsed(plain, list(range(len(texts))), [])
        places, rows, bad = [], [], []
        for place, text in enumerate(texts):
            if text is TOO_LONG:
                bad.append((place, f"longer than {LONGEST_LINE} bytes"))
                continue
            text = text.rstrip(b"\r")
            if not text.strip() or (self._headed and text == self._first):
                continue
            try:
                rows.append(self._one(text))
                places.append(place)
            except (ValueError, OverflowError) as error:
                bad.append((place, str(error)))
        return Parsed(np.array(rows, np.float64).reshape(-1, self._dimension), places, bad)

    def _all_at_once(self, texts: list[bytes]) -> NDArray[np.float64] | None:  # (n, d)
        """Lines that are plain throughout, twice as fast; None if any of them is not."""
        commas = self._width - 1
        if commas < 1 or not all(text.count(b",") == commas and text.isascii() for text in texts):
            return None
        try:
            # without commas in quotes and empty lines, each line is a row
            return np.loadtxt(texts, delimiter=",", comments=None, usecols=self._at, ndmin=2)
        except ValueError:
            return None

    def _text(self, text: bytes) -> list[float]:
        fields: Any = _fields(text) if b'"' in text else text.split(b",")
        if len(fields) != self._width:
            raise ValueError(f"{len(fields)} fields instead of {self._width}")
        try:
            return [float(fields[k]) for k in self._at]
        except ValueError:
            wrong = next(fields[k] for k in self._at if not _is_number(fields[k]))
            shown = wrong.decode("utf-8", "replace") if isinstance(wrong, bytes) else wrong
            raise ValueError(f"{shown[:40]!r} is not a number") from None

    def _json(self, text: bytes) -> list[float]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("not JSON") from None
        if isinstance(value, dict):
            if self._key not in value:
                raise ValueError(f"no {self._key!r} in it")
            value = value[self._key]
        if not isinstance(value, list):
            raise ValueError("not a list of numbers")
        if not set(map(type, value)) <= {float, int}:
            value = [math.nan if number is None else number for number in value]
            if not set(map(type, value)) <= {float, int}:
                raise ValueError("not a list of numbers")
        if len(value) != self._dimension:
            raise ValueError(f"{len(value)} numbers instead of {self._dimension}")
        return list(map(float, value))


def _fields(text: bytes) -> list[str]:
    try:
        return next(csv.reader([text.decode().rstrip("\r")], strict=True), [])
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"not comma-separated ({error})") from None


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
