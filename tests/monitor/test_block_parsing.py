"""Lines read at once and one by one are the same lines, whatever stands in them."""

import json
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qipf import QIPFInputError
from qipf.monitor import parsing
from qipf.monitor.block_parsing import csv_rows, json_rows
from qipf.monitor.lines import TOO_LONG
from qipf.monitor.parsing import LineParser

LAYOUTS = [
    b"1,2", b"0,1", b"logit_0,logit_1", b"id,logit_0,logit_1", b"logit_1,x,logit_0",
    b"[1, 2]", b'{"logits": [1, 2]}',
]  # fmt: skip

# what Python, numpy and JSON read in different ways, or nearly so
ODD = [
    "", " ", "1_0", "nan", "-inf", "Infinity", "infin", "nan(1)", "1e400", "1e-400", ".5", "5.",
    "+1", "01", "--1", "0x1p3", "1d5", "1j", "1e", "1 2", "\t1", "1\r", "1\r2", "\x1c1", "1\x1f",
    "\x0b2", "1\x00", "\x851", "#", "'1'", '"1"', '"', '""', "é", "١", "null", "true", "[1]", "[",
    "]", "{", "}", "logit_0", "a",
]  # fmt: skip
FIELDS = st.one_of(st.floats().map(repr), st.integers().map(str), st.sampled_from(ODD))


def by_comma(least, most):
    fields = st.lists(FIELDS, min_size=least, max_size=most)
    return fields.map(lambda parts: ",".join(parts).encode())


NUMBERS = st.one_of(st.floats(), st.integers(), st.none())
VALUES = st.one_of(NUMBERS, st.booleans(), st.text(max_size=2), st.just(10**400), st.just([1, 2]))
ROWS = st.one_of(st.lists(NUMBERS, min_size=2, max_size=2), st.lists(VALUES, max_size=3))
OBJECTS = st.dictionaries(st.sampled_from(["logits", "id", "é"]), ROWS)
TEXTS = st.one_of(
    by_comma(2, 2),
    by_comma(3, 3),
    by_comma(0, 4),
    st.one_of(ROWS, OBJECTS, VALUES).map(lambda value: json.dumps(value).encode()),
    st.text('[]{},:"0123.5e-+ \r\tlogitsnrue\\', max_size=25).map(str.encode),
    st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
)
LINES = st.one_of(
    st.tuples(TEXTS, st.sampled_from([b"", b"\r", b"\r\r", b" "])).map(b"".join),
    st.sampled_from([TOO_LONG, b"", *LAYOUTS]),
)


def read(layout, texts, form):
    parser = LineParser(2, "x", form)
    try:
        if layout is not None:
            parser.settle([layout])
        found = parser.parse(texts)
    except QIPFInputError as error:
        return str(error)
    return found.rows.tobytes(), found.rows.shape, found.places, found.bad


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from([None, *LAYOUTS]),
    st.lists(LINES, min_size=1, max_size=4),
    st.sampled_from(["auto", "csv", "jsonl"]),
)
@example(b"id,logit_0,logit_1", [b'"a,1,2'], "auto")
@example(b"id,logit_0,logit_1", [b"a,\x1c1,2"], "auto")
@example(b"0,1", [b"0,1"], "auto")
@example(b"[1, 2]", [b"[1", b"2],[3,4]"], "auto")
def test_at_once_and_one_by_one_agree(layout, texts, form):
    with patch.multiple(parsing, csv_rows=lambda *_: None, json_rows=lambda *_: None):
        expected = read(layout, texts, form)
    assert read(layout, texts, form) == expected


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([b"1,2", b"[1, 2]"]),
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.integers(1, 9),
)
def test_a_bad_line_costs_no_other(layout, sound, size):
    """Whatever pieces the lines are read in, and wherever the bad ones stand."""
    texts = [layout if good else b"?" for good in sound]
    with patch.object(parsing, "PIECE", size):
        found = LineParser(2, "x", "jsonl" if layout[:1] == b"[" else "csv").parse([layout, *texts])
    assert found.places == [0, *(k for k, good in enumerate(sound, 1) if good)]
    assert [place for place, _ in found.bad] == [k for k, good in enumerate(sound, 1) if not good]
    np.testing.assert_array_equal(found.rows, [[1.0, 2.0]] * len(found.places))


def test_plain_lines_are_read_at_once():
    """The way that is measured, not only the one that is right."""
    rows = np.random.default_rng(0).normal(size=(600, 3))
    plain = [",".join(map(repr, row)) for row in rows.tolist()]
    for end in ("", "\r"):
        headed = [f"a b,{line}{end}".encode() for line in plain]
        header = b"id,logit_0,logit_1,logit_2"
        np.testing.assert_array_equal(csv_rows(headed, 4, [1, 2, 3], header), rows)
        lists = [f"{json.dumps(row)}{end}".encode() for row in rows.tolist()]
        np.testing.assert_array_equal(json_rows(lists, 3, "logits"), rows)
        objects = [f'{{"id": 7, "out": [{line}]}}{end}'.encode() for line in plain]
        np.testing.assert_array_equal(json_rows(objects, 3, "out"), rows)


@pytest.mark.parametrize("text", [b"1,2,3", b"1", b'"1",2', b"1,2\r\r", b"x,2", b"\xff,2", b"a,b"])
def test_other_lines_are_left_to_be_read_one_by_one(text):
    assert csv_rows([b"1,2", text], 2, [0, 1], b"a,b") is None


@pytest.mark.parametrize(
    "text", [b"[1]", b" [1, 2]", b"[1, true]", b"{}", b"[1, 2],[3, 4]", b"", b"[" * 10_000, b"7"]
)
def test_other_json_is_left_to_be_read_one_by_one(text):
    assert json_rows([b"[1, 2]", text], 2, "logits") is None
