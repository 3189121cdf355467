"""Logits from lines: what is read, what is bad and why."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import QIPFInputError
from qipf.streaming.lines import TOO_LONG
from qipf.streaming.parsing import LineParser

FLOATS = st.lists(st.lists(st.floats(), min_size=3, max_size=3), min_size=1, max_size=5)


@given(FLOATS)
def test_what_python_writes_is_read_back_exactly(rows):
    for texts in (
        [",".join(map(repr, row)).encode() for row in rows],
        [json.dumps(row).encode() for row in rows],
        [json.dumps({"id": 1, "logits": row}).encode() for row in rows],
    ):
        parsed = LineParser(3, texts[0], "x", "csv" if texts[0][:1] not in b"[{" else "auto")
        found = parsed.parse(texts)
        np.testing.assert_array_equal(found.rows, rows)
        assert (found.places, found.bad) == (list(range(len(rows))), [])


def test_a_header_chooses_columns_and_is_left_out():
    first = b"\xef\xbb\xbfid,logit_1,label,logit_0\r"
    parsed = LineParser(2, first, "x").parse([first, b"a,1,9,2\r", b"", b'"b,c",3,,4', first])
    assert parsed.rows.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert parsed.places == [1, 3]
    named = LineParser(1, first, "x", columns="label").parse([b"a,1,9,2"])
    assert named.rows.tolist() == [[9.0]]


def test_bad_lines_have_reasons():
    parsed = LineParser(2, b"1,2", "x").parse(
        [b"1,2", b"1", b"1,2,3", b"1,", b"1,two", b'"1,2', b"\xff,1", TOO_LONG, b"  ", b"3,nan"]
    )
    assert parsed.places == [0, 9]
    assert parsed.bad == [
        (1, "1 fields instead of 2"),
        (2, "3 fields instead of 2"),
        (3, "'' is not a number"),
        (4, "'two' is not a number"),
        (5, "not comma-separated (unexpected end of data)"),
        (6, "'�' is not a number"),
        (7, "longer than 1048576 bytes"),
    ]
    assert math.isnan(parsed.rows[1, 1])


def test_bad_json_has_reasons():
    texts = [
        b"[1, 2]", b"[1, 2", b"[1]", b"[1, true]", b'[1, "2"]', b'{"other": 1}', b'{"logits": 3}',
        b"7", b"[[1, 2]]", b"[" * 100_000, b"[1, " + b"9" * 400 + b"]", b"\xff\xfe", b"[1, null]",
    ]  # fmt: skip
    parsed = LineParser(2, texts[0], "x").parse(texts)
    assert parsed.places == [0, 12]
    assert [reason for _, reason in parsed.bad] == [
        "not JSON", "1 numbers instead of 2", "not a list of numbers", "not a list of numbers",
        "no 'logits' in it", "not a list of numbers", "not a list of numbers",
        "not a list of numbers", "not JSON", "int too large to convert to float", "not JSON",
    ]  # fmt: skip
    assert math.isnan(parsed.rows[1, 1])


def test_json_objects_may_name_their_list_otherwise():
    parser = LineParser(1, b"{}", "x", columns="scores")
    assert parser.parse([b'{"scores": [4]}']).rows.tolist() == [[4.0]]


def test_the_format_can_be_said():
    assert LineParser(1, b"[1]", "x", "jsonl").parse([b"[1]"]).rows.tolist() == [[1.0]]
    assert LineParser(1, b"7", "x", "jsonl").parse([b"[2]"]).rows.tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (2, b"1,2", "x", "tsv"),
            "Unknown format 'tsv'. Did you mean 'csv'? Known: auto, csv, jsonl.",
        ),
        (
            (3, b"1,2", "x"),
            "x has 2 logits a line, but the field was fitted with 3. Choose them with --columns.",
        ),
        (
            (2, b"a,b", "x"),
            "x has no column 'logit*'. It has: a, b. Choose the logits with --columns, names or "
            "patterns by comma.",
        ),
        ((2, b"\xff,1", "x"), "x, line 1: not UTF-8."),
        ((2, b'"a,b', "x"), "x, line 1: not comma-separated (unexpected end of data)."),
    ],
)
def test_a_first_line_of_another_layout_is_refused(arguments, message):
    with pytest.raises(QIPFInputError) as caught:
        LineParser(*arguments)
    assert str(caught.value) == message
