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
from qipf.io.logits.columns import chosen_columns
from qipf.io.logits.numbers import is_number, parse_number
from qipf.monitor.block_parsing import csv_rows, json_rows
from qipf.monitor.lines import LONGEST_LINE, TOO_LONG

#: How logits may stand in a line.
FORMATS = ("auto", "csv", "jsonl")

#: Lines that are read at once; if one of them is not plain, all of these are read one by one.
PIECE = 512

_LONG = f"longer than {LONGEST_LINE} bytes"

#: Where a JSON object has its logits, when nothing is said.
LOGITS = "logits"


@dataclass(frozen=True)
class Parsed:
    """What some lines hold."""

    rows: NDArray[np.float64]  # (n, d), with NaN or inf where the line says so
    places: list[int]  # (n,) the line of each row, among those given
    bad: list[tuple[int, str]]  # lines that hold no logits, and why


class LineParser:
    """Reads lines of one layout, which the first usable line of the input tells.

    A line of JSON is a list of numbers, or an object that has one under `columns` (``logits`` if
    not given); null stands for NaN. A line of text has its numbers by comma; where the first is not
    all numbers, or counts 0,1,2,… as pandas names columns, it names the columns, and `columns`
    chooses among them.

    >>> parser = LineParser(2, "in.csv")
    >>> parser.parse([b"id,logit_0,logit_1", b"a,1.5,2", b"b,1.5"]).bad
    [(2, '2 fields instead of 3')]
    """

    def __init__(
        self, dimension: int, name: str, form: str = "auto", columns: str | None = None
    ) -> None:
        if form not in FORMATS:
            raise unknown_name("format", form, FORMATS)
        self._dimension, self._name, self._form, self._columns = dimension, name, form, columns
        self._key = LOGITS if columns is None else columns
        self._one: Callable[[bytes], list[float]] | None = self._json if form == "jsonl" else None
        self._header: bytes | None = None
        self._width = 0
        self._unfit: dict[int, str] = {}  # what is wrong with a header, by its number of fields

    @property
    def settled(self) -> bool:
        """Whether the layout is known."""
        return self._one is not None

    def settle(self, texts: list[bytes]) -> list[tuple[int, str]]:
        """Learn the layout from the first usable line; gives those before it that are bad."""
        bad: list[tuple[int, str]] = []
        for place, text in enumerate(texts):
            if self.settled:
                break
            try:
                self._look_at(text)
            except QIPFInputError:
                raise  # not a bad line, but a layout that nobody asked for
            except ValueError as error:
                bad.append((place, str(error)))
        return bad

    def _look_at(self, text: bytes) -> None:
        """The layout of a line, if it is not empty; ValueError if it is bad."""
        if text is TOO_LONG:
            raise ValueError(_LONG)
        text = _plain(text)
        if not text.strip():
            return
        if self._form == "auto" and text.lstrip()[:1] in (b"[", b"{"):
            self._json(text)
            self._one = self._json
            return
        fields = _fields(text)
        numbers, counted = all(map(is_number, fields)), _counted(fields)
        if numbers and not counted and len(fields) in self._unfit:
            # a header came before: its numbers must not be taken by their places
            raise QIPFInputError(self._unfit[len(fields)])
        named = not numbers or (counted and self._columns is not None)
        names = fields if named else [f"logit_{k}" for k in range(len(fields))]
        try:
            self._at = [names.index(column) for column in self._chosen(names)]
        except QIPFInputError as error:
            if named and _names(fields):
                self._unfit.setdefault(len(fields), str(error))
            raise ValueError(str(error).removeprefix(f"{self._name} ").removesuffix(".")) from None
        self._width, self._one = len(fields), self._text
        self._header = text if counted or not numbers else None

    def _chosen(self, names: list[str]) -> list[str]:
        chosen = chosen_columns(self._name, names, self._columns)
        if len(chosen) != self._dimension:
            raise QIPFInputError(
                f"{self._name} has {len(chosen)} logits a line, but the field was fitted with "
                f"{self._dimension}. Choose them with --columns."
            )
        return chosen

    def parse(self, texts: list[bytes]) -> Parsed:
        """The rows of some lines; empty lines and the header, if met again, are left out."""
        bad = self.settle(texts)
        first = bad[-1][0] + 1 if bad else 0
        rows, places = [np.empty((0, self._dimension))], []
        for start in range(first, len(texts) if self.settled else 0, PIECE):
            piece = texts[start : start + PIECE]
            found = self._at_once(piece) or self._one_by_one(piece)
            rows.append(found.rows)
            places += [start + place for place in found.places]
            bad += [(start + place, reason) for place, reason in found.bad]
        return Parsed(np.concatenate(rows), places, bad)

    def _at_once(self, texts: list[bytes]) -> Parsed | None:
        """Lines that are plain throughout, in half the time; None if any of them is not."""
        if self._one == self._json:
            rows = json_rows(texts, self._dimension, self._key)
        else:
            rows = csv_rows(texts, self._width, self._at, self._header)
        return None if rows is None else Parsed(rows, list(range(len(texts))), [])

    def _one_by_one(self, texts: list[bytes]) -> Parsed:
        rows, places, bad = [], [], []
        for place, text in enumerate(texts):
            if text is TOO_LONG:
                bad.append((place, _LONG))
                continue
            text = _plain(text)
            if not text.strip() or text == self._header:
                continue
            try:
                rows.append(self._one(text))  # type: ignore[misc]
                places.append(place)
            except ValueError as error:
                bad.append((place, str(error)))
        return Parsed(np.array(rows, np.float64).reshape(-1, self._dimension), places, bad)

    def _text(self, text: bytes) -> list[float]:
        fields: Any = _fields(text) if b'"' in text else text.split(b",")
        if len(fields) != self._width:
            raise ValueError(f"{len(fields)} fields instead of {self._width}")
        try:
            return [parse_number(fields[k]) for k in self._at]
        except ValueError:
            wrong = next(fields[k] for k in self._at if not is_number(fields[k]))
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
        try:
            return list(map(float, value))
        except OverflowError as error:
            raise ValueError(str(error)) from None


def _fields(text: bytes) -> list[str]:
    try:
        return next(csv.reader([text.decode().rstrip("\r")], strict=True), [])
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"not comma-separated ({error})") from None


def _plain(text: bytes) -> bytes:
    return text.rstrip(b"\r").removeprefix(b"\xef\xbb\xbf")


def _counted(fields: list[str]) -> bool:
    """Whether these are the names that pandas gives to columns without any."""
    return len(fields) > 1 and fields == [str(k) for k in range(len(fields))]


def _names(fields: list[str]) -> bool:
    """Whether this may be a header, not a spoilt row: only whole numbers if any, none twice."""
    free = all(field.isdecimal() or not is_number(field) for field in fields)
    return free and len(set(fields)) == len(fields)
