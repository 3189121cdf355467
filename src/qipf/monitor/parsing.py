"""Parse lines of text into logits: comma-separated values, or JSON."""

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFInputError, unknown_name
from qipf.io.logits.columns import is_header, logit_columns, require_commas
from qipf.io.logits.table import is_number, parse_number
from qipf.monitor.lines import LONGEST_LINE, TOO_LONG

#: Formats of a line.
FORMATS = ("auto", "csv", "jsonl")

#: Default key of the logits in a JSON object.
LOGITS = "logits"

_JSON_NUMBERS = {float, int, type(None)}


@dataclass(frozen=True)
class Parsed:
    """Logits found in some lines."""

    rows: NDArray[np.float64]  # (n, d), finite
    places: list[int]  # (n,) index of the line of each row
    bad: list[tuple[int, str]]  # index of each line without logits, and the reason


class LineParser:
    """Parses lines of one layout, which is determined by the first usable line.

    A JSON line is a list of numbers, or an object with such a list under the key `columns`
    (default ``logits``). A CSV line is comma-separated numbers. If the first line is a header
    (`qipf.io.logits.columns.is_header`), `columns` selects columns by name. A line with NaN, inf or
    null among its logits is bad.

    >>> parser = LineParser(2, "in.csv")
    >>> parser.parse([b"id,logit_0,logit_1", b"a,1.5,2", b"b,1.5"]).bad
    [(2, '2 fields instead of 3')]

    Parameters
    ----------
    dimension : number of logits per line.
    name : name of the input, for error messages.
    form : one of `FORMATS`.
    columns : names or patterns of the columns (CSV), or the key of the list (JSON).
    """

    def __init__(
        self, dimension: int, name: str, form: str = "auto", columns: str | None = None
    ) -> None:
        if form not in FORMATS:
            raise unknown_name("format", form, FORMATS)
        self._dimension, self._name, self._form, self._columns = dimension, name, form, columns
        self._key = LOGITS if columns is None else columns
        self._parse_line: Callable[[bytes], list[float]] | None = None
        if form == "jsonl":
            self._parse_line = self._parse_json
        self._header: bytes | None = None
        self._width = 0
        self._selected: list[int] = []  # indices of the logits among the fields
        self._bad_headers: dict[int, str] = {}  # errors of headers, by number of fields

    def restarted(self) -> "LineParser":
        """A parser of the same options for another file, which may have another layout."""
        return LineParser(self._dimension, self._name, self._form, self._columns)

    @property
    def layout_known(self) -> bool:
        """Whether a usable line was found."""
        return self._parse_line is not None

    def find_layout(self, texts: list[bytes]) -> list[tuple[int, str]]:
        """Determine the layout, if it is not known yet; return the bad lines before it."""
        bad: list[tuple[int, str]] = []
        for place, text in enumerate(texts):
            if self.layout_known:
                break
            try:
                self._detect(_checked_length(text))
            except QIPFInputError:
                raise  # a layout without the requested columns, not a bad line
            except ValueError as error:
                bad.append((place, str(error)))
        return bad

    def _detect(self, text: bytes) -> None:
        """Determine the layout from a line, unless it is empty; ValueError if the line is bad."""
        if not text.strip():
            return
        if self._form == "auto" and text.lstrip()[:1] in (b"[", b"{"):
            self._parse_json(text)
            self._parse_line = self._parse_json
            return
        fields = _fields(text)
        headed = is_header(fields)
        require_commas(self._name, fields, self._is_layout)
        if not headed and len(fields) in self._bad_headers:
            # do not select columns by position after a header without the requested names
            raise QIPFInputError(self._bad_headers[len(fields)])
        names = fields if headed else [f"logit_{k}" for k in range(len(fields))]
        try:
            self._selected = [names.index(column) for column in self._select(names)]
        except QIPFInputError as error:
            if headed and _may_be_header(fields):
                self._bad_headers.setdefault(len(fields), str(error))
            raise ValueError(
                str(error).removeprefix(f"{self._name} has ").removesuffix(".")
            ) from None
        self._width, self._parse_line = len(fields), self._parse_csv
        self._header = text if headed else None

    def _is_layout(self, fields: Sequence[str]) -> bool:
        """Whether the fields are enough numbers, or names with those of the logits' columns."""
        if all(map(is_number, fields)):
            return len(fields) >= self._dimension
        try:
            self._select(fields)
        except QIPFInputError:
            return False
        return True

    def _select(self, names: Sequence[str]) -> list[str]:
        selected = logit_columns(self._name, names, self._columns)
        if len(selected) != self._dimension:
            raise QIPFInputError(
                f"{self._name} has {len(selected)} logits per line, but the model was fitted with "
                f"{self._dimension}. Select them with --columns."
            )
        return selected

    def parse(self, texts: list[bytes]) -> Parsed:
        """Parse lines; empty lines and repetitions of the header are skipped."""
        bad = self.find_layout(texts)
        rows, places = [], []
        for place in range(bad[-1][0] + 1 if bad else 0, len(texts)):
            try:
                text = _checked_length(texts[place])
                if self._parse_line is None or text == self._header or not text.strip():
                    continue
                rows.append(_finite(self._parse_line(text)))
                places.append(place)
            except ValueError as error:
                bad.append((place, str(error)))
        return Parsed(np.array(rows, np.float64).reshape(-1, self._dimension), places, bad)

    def _parse_csv(self, text: bytes) -> list[float]:
        fields = _fields(text) if b'"' in text else text.split(b",")
        if len(fields) != self._width:
            raise ValueError(f"{len(fields)} fields instead of {self._width}")
        # parse_number rejects what only Python reads as a number: 1_0, or digits of other scripts
        convert = float if text.isascii() and b"_" not in text else parse_number
        try:
            return [convert(fields[k]) for k in self._selected]
        except ValueError:
            wrong = next(fields[k] for k in self._selected if not is_number(fields[k]))
            shown = wrong.decode("utf-8", "replace") if isinstance(wrong, bytes) else wrong
            raise ValueError(f"{shown[:40]!r} is not a number") from None

    def _parse_json(self, text: bytes) -> list[float]:
        try:
            value = json.loads(text.decode())  # faster than bytes, whose encoding is detected
        except (ValueError, RecursionError):
            raise ValueError("not JSON") from None
        if isinstance(value, dict):
            if self._key not in value:
                raise ValueError(f"no {self._key!r} in it")
            value = value[self._key]
        if not isinstance(value, list) or not set(map(type, value)) <= _JSON_NUMBERS:
            raise ValueError("not a list of numbers")
        if len(value) != self._dimension:
            raise ValueError(f"{len(value)} numbers instead of {self._dimension}")
        try:
            return [math.nan if item is None else float(item) for item in value]
        except OverflowError as error:
            raise ValueError(str(error)) from None


def _checked_length(text: bytes) -> bytes:
    """The line without a byte order mark and carriage returns at its end."""
    if text is TOO_LONG:
        raise ValueError(f"longer than {LONGEST_LINE} bytes")
    return text.rstrip(b"\r").removeprefix(b"\xef\xbb\xbf")


def _finite(row: list[float]) -> list[float]:
    # the sum is faster; that of finite numbers may overflow
    if not math.isfinite(sum(row)) and not all(map(math.isfinite, row)):
        raise ValueError(f"a logit is {next(x for x in row if not math.isfinite(x))}")
    return row


def _fields(text: bytes) -> list[str]:
    try:
        return next(csv.reader([text.decode()], strict=True), [])
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"not comma-separated ({error})") from None


def _may_be_header(fields: list[str]) -> bool:
    """Whether the fields are different names or integers, not a corrupted row of numbers."""
    names = all(field.isdecimal() or not is_number(field) for field in fields)
    return names and len(set(fields)) == len(fields)
