"""What is written comes back, in order, and only if all of it was written."""

import numpy as np
import pytest

from qipf.errors import QIPFError, QIPFInputError
from qipf.io.logits import read_table, written

BLOCKS = [
    {"logit_0": np.array([0.1, 1e-300]), "logit_1": np.array([1 / 3, -2.0]), "id": ["a", 'b,"c']},
    {"logit_0": np.array([5.0]), "logit_1": np.array([6.0]), "id": ["a longer one"]},
]
ROWS = [[0.1, 1 / 3], [1e-300, -2.0], [5.0, 6.0]]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_columns_come_back_to_the_last_bit(tmp_path, name):
    with written(tmp_path / name) as write:
        for block in BLOCKS:
            write(block)
    assert read_table(tmp_path / name).logits.tolist() == ROWS
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_arrays_by_name(tmp_path):
    with written(tmp_path / "t.npz") as write:
        for block in BLOCKS:
            write({**block, "file": [1] * len(block["id"]), "missing": [None] * len(block["id"])})
    with np.load(tmp_path / "t.npz", allow_pickle=False) as found:
        assert found["id"].tolist() == ["a", 'b,"c', "a longer one"]
        assert np.stack([found["logit_0"], found["logit_1"]], 1).tolist() == ROWS
        assert found["file"].tolist() == [1, 1, 1]
        assert found["missing"].tolist() == ["", "", ""]


@pytest.mark.parametrize("columns", [["logit_0"], ["logit_0", "logit_1"]])
def test_one_array(tmp_path, columns):
    with written(tmp_path / "t.npy") as write:
        for block in BLOCKS:
            write({name: block[name] for name in columns})
    expected = np.array(ROWS)[:, : len(columns)].squeeze()
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy", allow_pickle=False), expected)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npz", "t.npy"])
def test_an_error_in_the_middle_leaves_what_was_there(tmp_path, name):
    (tmp_path / name).write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"), written(tmp_path / name) as write:
        write({"uncertainty": np.array([1.0])})
        raise RuntimeError("stop")
    assert (tmp_path / name).read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_bad_places_are_refused_before_anything_is_done(tmp_path):
    for path, message in [
        (tmp_path / "t.doc", "Cannot write 't.doc': name a file that ends in .npz, .npy, .csv or "),
        (tmp_path / "no" / "t.csv", f"There is no folder {tmp_path}/no. Create it, or choose "),
    ]:
        with pytest.raises(QIPFInputError) as refused, written(path):
            pytest.fail("got in")
        assert message in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(QIPFError) as refused, written(tmp_path / "t.parquet"):
        pass
    assert str(refused.value) == "Parquet files need pyarrow: pip install 'qipf[parquet]'."
