"""Damaged, hostile and replaced files end in an error of qipf, in little memory."""

import collections
import os
import tracemalloc
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from qipf import QIPFError, QIPFFileError, QIPFInputError
from qipf.io.logits import csv_files, open_table, read_table
from qipf.io.logits import table as limits
from qipf.io.logits.columns import logit_columns
from tests.io.logits.damaged_files import LABELS, LOGITS, damaged, npy, sound_files, zipped

#: Bytes that reading a file of some kilobytes may take.
ROOM = 2**24

FILES = sound_files()


@pytest.fixture
def memory():
    """Bytes that Python, NumPy and Arrow took at most since the start of the test."""
    pool = pyarrow.default_memory_pool()
    before = pool.max_memory()  # since the start of the process, so of other tests

    def most():
        arrow = pool.max_memory()
        return max(tracemalloc.get_traced_memory()[1], arrow if arrow > before else 0)

    tracemalloc.start()
    yield most
    tracemalloc.stop()


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("bzip2.npz", "lzma.npz")])
def test_sound_files_are_read(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    block = read_table(tmp_path / name)
    np.testing.assert_array_equal(block.logits, LOGITS)
    assert block.labels is None or block.labels.tolist() == LABELS.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_damaged_files_raise_errors_of_qipf_or_give_rows(tmp_path, memory, name):
    random, path = np.random.default_rng(0), tmp_path / name
    endings = collections.Counter()
    for _ in range(60):
        path.write_bytes(damaged(FILES[name], random))
        try:
            block = read_table(path)
        except QIPFError as error:
            endings["refused"] += 1
            endings["named"] += str(path) in str(error)
        else:
            assert block.logits.ndim == 2
            assert np.isfinite(block.logits).all()
            endings["read"] += 1
    assert endings["named"] == endings["refused"] > 10
    assert memory() < ROOM


def test_a_method_of_compression_without_a_limit_is_refused(tmp_path):
    for name in ("bzip2.npz", "lzma.npz"):
        (tmp_path / name).write_bytes(FILES[name])
        with pytest.raises(QIPFFileError, match="logits.npy is not stored or deflated"):
            read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(40, 3)", b"(-4, 3)"),
        (b"(40, 3)", b"(True,)"),
        (b"(40, 3), }         ", b"(9999999999, 3), } "),
        (b"False, 'shape': (40, 3), }         ", b"True, 'shape': (9999999999, 3), } "),
        (b"'<f8'", b"[[[[["),
        (b"'<f8'", b"'|O8'"),
        (b"NUMPY\x01", b"NUMPY\x09"),
    ],
)
def test_false_headers_of_arrays_are_refused(tmp_path, memory, old, new):
    data = npy(LOGITS)
    assert old in data
    data = data.replace(old, new)
    (tmp_path / "t.npy").write_bytes(data)
    (tmp_path / "stored.npz").write_bytes(zipped({"logits": data}))
    (tmp_path / "deflated.npz").write_bytes(zipped({"logits": data}, zipfile.ZIP_DEFLATED))
    for name in ("t.npy", "stored.npz", "deflated.npz"):
        with pytest.raises(QIPFError, match=f"{name}.*(cannot be read|must hold numbers|shape)"):
            read_table(tmp_path / name)
    assert memory() < ROOM


def test_an_archive_that_declares_more_than_it_can_hold_is_refused(tmp_path, memory):
    array = npy(np.zeros((2, 2))).replace(b"(2, 2), }           ", b"(10000000, 10), }    ")
    data = zipped({"logits": array}, zipfile.ZIP_DEFLATED)
    size, lie = len(array).to_bytes(4, "little"), (len(array) + 800_000_000).to_bytes(4, "little")
    (tmp_path / "t.npz").write_bytes(data.replace(size, lie))
    with pytest.raises(QIPFFileError, match="declares a false size"):
        read_table(tmp_path / "t.npz")
    assert memory() < ROOM


def test_an_encrypted_archive_is_refused(tmp_path):
    data = bytearray(zipped({"logits": npy(LOGITS)}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "t.npz").write_bytes(bytes(data))
    with pytest.raises(QIPFFileError, match=r"t\.npz cannot be read.*encrypted"):
        read_table(tmp_path / "t.npz")


def test_python_objects_are_never_loaded(tmp_path):
    labels = np.array([0, 1], dtype=object)
    np.savez(tmp_path / "t.npz", logits=LOGITS[:2], labels=labels, note=labels)
    with pytest.raises(QIPFFileError, match="Python objects"):
        read_table(tmp_path / "t.npz")
    (block,) = open_table(tmp_path / "t.npz", labels=None).blocks()
    assert block.others == {}
    np.save(tmp_path / "y.npy", labels)
    with pytest.raises(QIPFFileError, match=r"y\.npy.*Python objects"):
        read_table(tmp_path / "t.npz", labels=str(tmp_path / "y.npy"))


def test_columns_of_one_name_are_refused_everywhere(tmp_path):
    columns = [pyarrow.array([1.0, 2.0])] * 4
    names = ["logit_0", "logit_1", "x", "x"]
    pyarrow.parquet.write_table(pyarrow.table(columns, names=names), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text(",".join(names) + "\n1,2,3,4\n")
    for name in ("t.parquet", "t.csv"):
        with pytest.raises(QIPFInputError, match=f"{name} has more than one column 'x'"):
            read_table(tmp_path / name)


def test_a_footer_without_its_rows_is_refused(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    table = pyarrow.table({"logit_0": [1.0, 2.0], "logit_1": [1.0, 2.0]})
    parquet.write_table(table, path)
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little")
    head, tail = data[: -footer - 8], data[-footer - 8 :]
    # the first integer 2 (zigzag 4) is the number of rows of the whole file
    found = tail.index(b"\x16\x04")
    path.write_bytes(head + tail[:found] + b"\x16\x06" + tail[found + 2 :])
    assert parquet.ParquetFile(path).metadata.num_rows == 3
    with pytest.raises(QIPFFileError, match=r"t\.parquet is damaged: it declares 3 rows and has 2"):
        read_table(path)


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet"])
def test_pipes_and_devices_are_refused(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"device{suffix}").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(QIPFFileError, match="is a pipe or a device; name a file"):
            read_table(tmp_path / f"{name}{suffix}")


def test_a_pipe_of_labels_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", LOGITS)
    os.mkfifo(tmp_path / "y.npy")
    with pytest.raises(QIPFFileError, match=r"y\.npy is a pipe or a device; name a file"):
        read_table(tmp_path / "x.npy", labels=str(tmp_path / "y.npy"))


def test_selecting_columns_takes_linear_time():
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    names = [Name(f"logit_{k}") for k in range(3000)]
    assert logit_columns("t.csv", names, None) == names
    assert logit_columns("t.csv", names, ",".join(names)) == names
    assert compared < 20 * len(names)


def test_an_endless_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "LONGEST_LINE", 100)
    (tmp_path / "t.csv").write_text("logit_0,logit_1\n" + "1" * 200)
    with pytest.raises(QIPFInputError, match=r"t\.csv has a line of more than 100 characters"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("rows", [1, 100])
def test_a_file_replaced_between_header_and_rows_is_noticed(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", rows)
    path = tmp_path / "t.csv"
    path.write_text("logit_0,logit_1\n1,2\n3,4\n")
    table = open_table(path)
    (tmp_path / "new").write_text("logit_1,logit_0\n1,2\n3,4\n")
    os.replace(tmp_path / "new", path)
    with pytest.raises(QIPFInputError, match=r"t\.csv was changed while it was read"):
        next(table.blocks())
    table = open_table(path)
    blocks = table.blocks()
    next(blocks)
    path.write_text("logit_0\n")  # shorter: no longer what the header says either
    with pytest.raises(QIPFInputError, match=r"t\.csv was changed while it was read"):
        list(blocks)
