"""Logits from lines: what is read, what is bad and why."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import QIPFInputError
from qipf.monitor.lines import TOO_LONG
from qipf.monitor.parsing import LineParser

FLOATS = st.lists(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3),
    min_size=1,
    max_size=5,
)


@given(FLOATS)
def test_what_python_writes_is_read_back_exactly(rows):
    for texts in (
        [",".join(map(repr, row)).encode() for row in rows],
        [json.dumps(row).encode() for row in rows],
        [json.dumps({"id": 1, "logits": row}).encode() for row in rows],
    ):
        found = LineParser(3, "x").parse(texts)
        np.testing.assert_array_equal(found.rows, rows)
        assert (found.places, found.bad) == (list(range(len(rows))), [])


def test_a_header_chooses_columns_and_is_left_out():
    first = b"\xef\xbb\xbfid,logit_1,label,logit_0\r"
    parsed = LineParser(2, "x").parse([first, b"a,1,9,2\r", b"", b'"b,c",3,,4', first])
    assert parsed.rows.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert parsed.places == [1, 3]
    named = LineParser(1, "x", columns="label").parse([first, b"a,1,9,2"])
    assert named.rows.tolist() == [[9.0]]


def test_bad_lines_have_reasons():
    parsed = LineParser(2, "x").parse(
        [b"1,2", b"1", b"1,2,3", b"1,", b"1,two", b'"1,2', b"\xff,1", TOO_LONG, b"  ", b"3,nan"]
    )
    assert parsed.places == [0]
    assert parsed.bad == [
        (1, "1 fields instead of 2"),
        (2, "3 fields instead of 2"),
        (3, "'' is not a number"),
        (4, "'two' is not a number"),
        (5, "not comma-separated (unexpected end of data)"),
        (6, "'�' is not a number"),
        (7, "longer than 1048576 bytes"),
        (9, "a logit is nan"),
    ]


@pytest.mark.parametrize("first", [b"id;logit_0;logit_1", b"1.5;2;3", b"1\t2"])
def test_other_separators_end_the_reading(first):
    marks = "tabs" if b"\t" in first else "semicolons"
    expected = f"^x separates its columns by {marks}; commas are expected.$"
    with pytest.raises(QIPFInputError, match=expected):
        LineParser(2, "x").parse([first, first])


@pytest.mark.parametrize(
    "first", [b"server started; waiting for requests", b"logits\tready", b"1; 2 requests", b";"]
)
def test_a_semicolon_in_a_line_of_text_separates_nothing(first):
    for dimension in (2, 3):
        row = b",".join([b"1"] * dimension)
        parsed = LineParser(dimension, "x").parse([first, row])
        assert (parsed.places, [place for place, _ in parsed.bad]) == ([1], [0])
    assert LineParser(1, "x").parse([b"logit_0", b"2"]).rows.tolist() == [[2.0]]


def test_bad_json_has_reasons():
    texts = [
        b"[1, 2]", b"[1, 2", b"[1]", b"[1, true]", b'[1, "2"]', b'{"other": 1}', b'{"logits": 3}',
        b"7", b"[[1, 2]]", b"[" * 100_000, b"[1, " + b"9" * 400 + b"]", b"\xff\xfe", b"[1, null]",
    ]  # fmt: skip
    parsed = LineParser(2, "x").parse(texts)
    assert parsed.places == [0]
    assert [reason for _, reason in parsed.bad] == [
        "not JSON", "1 numbers instead of 2", "not a list of numbers", "not a list of numbers",
        "no 'logits' in it", "not a list of numbers", "not a list of numbers",
        "not a list of numbers", "not JSON", "int too large to convert to float", "not JSON",
        "a logit is nan",
    ]  # fmt: skip


def test_lines_that_are_not_finite_are_bad_and_the_others_are_read():
    for texts in (
        [b"1,2", b"nan,1", b"1,inf", b"1e308,1e308"],
        [b"[1,2]", b"[null,1]", b"[1,-Infinity]", b"[1e308,1e308]"],
    ):
        parsed = LineParser(2, "x").parse(texts)
        assert parsed.rows.tolist() == [[1.0, 2.0], [1e308, 1e308]]
        assert [place for place, _ in parsed.bad] == [1, 2]


def test_json_objects_may_name_their_list_otherwise():
    parser = LineParser(1, "x", columns="scores")
    assert parser.parse([b'{"scores": [4]}']).rows.tolist() == [[4.0]]


def test_the_format_can_be_said():
    assert LineParser(1, "x", "jsonl").parse([b"[1]"]).rows.tolist() == [[1.0]]
    assert LineParser(1, "x", "jsonl").parse([b"7", b"[2]"]).rows.tolist() == [[2.0]]


def test_numbers_of_python_syntax_only_are_rejected():
    parsed = LineParser(2, "x").parse([b"1,2", b"1_0,2", b'"1_0",2', b"1e300,2", "١,2".encode()])
    assert parsed.bad[:2] == [(1, "'1_0' is not a number"), (2, "'1_0' is not a number")]
    assert parsed.bad[2][0] == 4
    assert parsed.rows.tolist() == [[1.0, 2.0], [1e300, 2.0]]
    assert LineParser(2, "x").parse([b"1_0,2"]).rows.tolist() == []


@pytest.mark.parametrize("end", [b"", b"\r"])
@pytest.mark.parametrize(
    ("header", "columns", "row", "logits"),
    [
        (b"id,0,1,2", "0,1,2", b"7,1.5,2.5,3.5", [1.5, 2.5, 3.5]),
        (b",0,1,2", "0,1,2", b"7,1.5,2.5,3.5", [1.5, 2.5, 3.5]),
        (b"\xef\xbb\xbfid,0,1,2", "2,1,0", b"7,1.5,2.5,3.5", [3.5, 2.5, 1.5]),
        (b"0,1,2", None, b"1.5,2.5,3.5", [1.5, 2.5, 3.5]),
        (b",0,1,2", None, b"7,1.5,2.5,3.5", [1.5, 2.5, 3.5]),
        (b"0,1,2,label", None, b"1.5,2.5,3.5,0", [1.5, 2.5, 3.5]),
        (b"0,1,2,3", "3,1,2", b"1.5,2.5,3.5,4.5", [4.5, 2.5, 3.5]),
    ],
)
def test_a_header_of_numbers_is_no_prediction(header, columns, row, logits, end):
    parser = LineParser(3, "x", columns=columns)
    parsed = parser.parse([header + end, row + end, row + end])
    assert (parsed.rows.tolist(), parsed.places, parsed.bad) == ([logits, logits], [1, 2], [])
    # nor when files are joined, nor where all other lines are plain
    assert parser.parse([row + end, header + end]).places == [0]


def test_other_columns_may_hold_anything():
    header = b"id,logit_0,logit_1"
    texts = [header, "é,1,2".encode(), b"a_b,3,4", b"\xff,5,6", b'"a,b",7,8']
    assert LineParser(2, "x").parse(texts).rows.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_a_row_of_whole_numbers_is_a_prediction():
    assert LineParser(3, "x").parse([b"1,2,3"]).rows.tolist() == [[1.0, 2.0, 3.0]]
    assert LineParser(1, "x").parse([b"0", b"1"]).rows.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"1,2", "2 logits per line, but the model was fitted with 3. Select them with --columns"),
        (b"\xff,1,2", "not UTF-8"),
        (b'"a,b', "not comma-separated (unexpected end of data)"),
        (TOO_LONG, "longer than 1048576 bytes"),
        (b"[1, 2", "not JSON"),
        (b"[1, 2]", "2 numbers instead of 3"),
        (b"1.5,oops,2.5", "no column 'logit*'. It has: 1.5, oops, 2.5"),
    ],
)
def test_the_first_usable_line_tells_the_layout(first, reason):
    for texts in ([b"1.5,2.5,3.5", b"4,5,6"], [b"a,logit_0,logit_1,logit_2", b"x,4,5,6"]):
        parser = LineParser(3, "x")
        parsed = parser.parse([b"", first, b"", first, *texts])
        assert [place for place, _ in parsed.bad] == [1, 3]
        assert all(text.startswith(reason) for _, text in parsed.bad)
        assert parsed.rows[-1].tolist() == [4.0, 5.0, 6.0]
        # and so it does when they come one by one
        singly = LineParser(3, "x")
        assert singly.parse([first]).bad == [(0, parsed.bad[0][1])]
        assert not singly.layout_known
        assert singly.parse(texts).rows.tolist() == parsed.rows.tolist()
        assert singly.layout_known


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([b"id,a,b", b"7,1.5,2.5"], r"x has no column 'logit\*'. It has: id, a, b."),
        ([b"id,0,1", b"7,1.5,2.5"], "x has 2 logits per line"),
        ([b"id,1,2", b"7,1.5,2.5"], r"x has no column 'logit\*'. It has: id, 1, 2."),
        ([b"id,logit_0,logit_1", b"7,1.5,2.5"], "x has 2 logits per line"),
    ],
)
def test_columns_are_not_selected_by_position_after_a_header(texts, message):
    with pytest.raises(QIPFInputError, match=message):
        LineParser(3, "x").parse(texts)


def test_an_unknown_format_is_rejected():
    with pytest.raises(QIPFInputError, match="Did you mean 'csv'"):
        LineParser(2, "x", "tsv")
