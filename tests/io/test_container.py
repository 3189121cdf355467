"""Headers that lie about their arrays, and the memory that reading takes."""

import json
import tracemalloc

import numpy as np
import pytest

from qipf import QIPFFileError
from qipf.io import container
from qipf.io.container import decode, encode, read_file

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.float32), "none": np.empty((0, 2))}


def forged(change):
    """A sound file whose safetensors header is changed."""
    data = encode({"kind": "x"}, ARRAYS)
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    change(entries)
    head = json.dumps(entries).encode()
    return len(head).to_bytes(8, "little") + head + data[8 + length :]


def test_arrays_come_back_writable_and_exact():
    header, arrays = decode(encode({"kind": "x"}, ARRAYS), "f")
    assert header == {"kind": "x"}
    assert set(arrays) == set(ARRAYS)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, ARRAYS[name], strict=True)
        assert array.flags.writeable
        assert array.flags.owndata


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: e["a"].update(shape=[1] * 5000 + [6]), "'a' is not described correctly"),
        (lambda e: e["a"].update(shape=[1, 2, 3]), "'a' is not described correctly"),
        (lambda e: e["a"].update(shape=[True, 6]), "'a' is not described correctly"),
        (lambda e: e["a"].update(shape=[-2, -3]), "'a' is not described correctly"),
        (lambda e: e["a"].update(shape="23"), "'a' is not described correctly"),
        (lambda e: e["a"].update(shape=[2**40, 2**20]), "'a' is not where its shape puts it"),
        (lambda e: e["a"].update(shape=[3, 3]), "'a' is not where its shape puts it"),
        (lambda e: e["a"].update(data_offsets=[0, 2**62]), "is not where its shape puts it"),
        (lambda e: e["a"].update(data_offsets=[0.0, 48.0]), "'a' is not described correctly"),
        (lambda e: e["b"].update(data_offsets=e["a"]["data_offsets"]), "is not where its shape"),
        (lambda e: e["a"].update(dtype="I64"), "'a' has dtype 'I64'; F32 or F64 is needed"),
        (lambda e: e["a"].update(dtype=["F64"]), "'a' is not described correctly"),
        (lambda e: e.pop("b"), "declare"),
        (lambda e: e.update({"x" * 100_000: 3}), "xxx is not described correctly"),
    ],
)
def test_false_descriptions_are_refused_in_one_short_line(change, reason):
    with pytest.raises(QIPFFileError) as refused:
        decode(forged(change), "f.qipf")
    assert reason.replace("xxx ", "") in str(refused.value)
    assert len(str(refused.value)) < 300


def test_reading_takes_the_memory_of_the_arrays_once(tmp_path):
    size = 2**24
    (tmp_path / "f").write_bytes(encode({}, {"a": np.zeros(size // 8)}))
    tracemalloc.start()
    arrays = read_file(tmp_path / "f")[1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert arrays["a"].nbytes == size
    assert peak < 1.3 * size


def test_files_above_the_limit_are_refused(tmp_path, monkeypatch):
    data = encode({}, ARRAYS)
    (tmp_path / "f").write_bytes(data)
    monkeypatch.setattr(container, "LARGEST_FILE", len(data) - 1)
    with pytest.raises(QIPFFileError, match=rf"it has {len(data)} bytes, more than"):
        read_file(tmp_path / "f")
