"""Detection of files that are not text."""

import bz2
import gzip
import io
import lzma

import pytest

from qipf.io.logits.file_types import FileType, detect_binary
from qipf.io.logits.reading import read_table
from qipf.monitor.lines import LineSource


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
