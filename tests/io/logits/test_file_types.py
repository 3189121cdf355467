"""What a file is instead of text, and what is text although it does not begin like it."""

import bz2
import gzip
import io
import lzma

import pytest

from qipf.io.logits.file_types import FileType, detect_binary
from qipf.io.logits.reading import read_table
from qipf.monitor.lines import LineSource


class Pipe(io.BytesIO):
    def seekable(self):
        return False


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (gzip.compress(b"1,2"), FileType("compressed (gzip)", "zcat")),
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
def test_every_kind_is_told_with_its_way_out(data, content):
    assert detect_binary(io.BytesIO(data)) == content


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1,PAR2\n1,2\n", b"BZh_a,BZh_b\n", b"BZh91,2\n"]
)
def test_text_that_begins_like_another_kind_is_text(data):
    assert detect_binary(io.BytesIO(data)) is None


def test_what_cannot_be_looked_at_from_its_end_is_not_called_parquet():
    assert detect_binary(Pipe(b"PAR1\x15\x04\x00\x00PAR1")) is None


@pytest.mark.parametrize("names", ["PAR1,PAR2", "BZh_a,BZh_b"])
def test_columns_may_have_such_names(tmp_path, names):
    path = tmp_path / "t.csv"
    path.write_text(f"{names}\n1,2\n")
    assert read_table(path, columns=names).logits.tolist() == [[1.0, 2.0]]
    with LineSource(path) as source:
        assert [lines.texts for lines in source.lines()] == [[names.encode(), b"1,2"]]
