"""Conversions and checks of values."""

import bz2
import gzip
import io
import lzma
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import QIPFInputError
from qipf.io.logits.reading import read_table
from qipf.io.logits.table import FileType, as_floats, detect_binary, is_number, parse_number
from qipf.monitor.lines import LineSource
from qipf.monitor.parsing import LineParser


@given(st.floats())
def test_numbers_are_read_exactly(value):
    for text in (repr(value), repr(value).encode(), f" {value!r}\r"):
        found = parse_number(text)
        assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize("text", ["", "1_0", "one", "0x10", "1,5", "\u0661", "1.5 2", "_1"])
def test_other_text_is_not_a_number(text):
    assert not is_number(text)
    assert not is_number(text.encode())
    with pytest.raises(ValueError, match="number|float"):
        parse_number(text)


@pytest.mark.parametrize("text", ["1_0", "\u0661"])
def test_score_and_monitor_reject_the_same_text(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(f"logit_0,logit_1\n1,2\n{text},2\n")
    with pytest.raises(QIPFInputError, match="line 3: the column 'logit_0' holds .*not a number"):
        read_table(path)
    for spelled in (text, f'"{text}"'):
        parsed = LineParser(2, "x").parse([b"logit_0,logit_1", b"1,2", f"{spelled},2".encode()])
        assert parsed.bad == [(2, f"{text!r} is not a number")]


def test_small_floats_become_float32_and_other_numbers_float64():
    for kind in (np.float16, np.float32):
        assert as_floats(np.zeros((1, 2), kind)).dtype == np.float32
    for kind in (np.float64, np.int64, np.uint8):
        assert as_floats(np.zeros((1, 2), kind)).dtype == np.float64


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (gzip.compress(b"1,2", mtime=0), FileType("compressed (gzip)", "zcat")),
        (bz2.compress(b"1,2"), FileType("compressed (bzip2)", "bzcat")),
        (bz2.compress(b"1,2", 1), FileType("compressed (bzip2)", "bzcat")),
        (bz2.compress(b""), FileType("compressed (bzip2)", "bzcat")),
        (lzma.compress(b"1,2"), FileType("compressed (xz)", "xzcat")),
        (b"\x28\xb5\x2f\xfd\x20", FileType("compressed (zstd)", "zstdcat")),
        (b"PK\x03\x04\x14", FileType("a zip archive, as .npz files are")),
        (b"\x93NUMPY\x01", FileType("an .npy file")),
        (b"PAR1\x15\x04\x00\x00PAR1", FileType("a Parquet file")),
    ],
)
def test_every_type_is_detected(data, content):
    assert detect_binary(io.BytesIO(data)) == content


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1,PAR2\n1,2\n", b"BZh_a,BZh_b\n", b"BZh91,2\n"]
)
def test_text_is_not_detected_as_another_type(data):
    assert detect_binary(io.BytesIO(data)) is None


@pytest.mark.parametrize("names", ["PAR1,PAR2", "BZh_a,BZh_b"])
def test_columns_may_have_such_names(tmp_path, names):
    path = tmp_path / "t.csv"
    path.write_text(f"{names}\n1,2\n")
    assert read_table(path, columns=names).logits.tolist() == [[1.0, 2.0]]
    with LineSource(path) as source:
        assert [lines.texts for lines in source.lines()] == [[names.encode(), b"1,2"]]
