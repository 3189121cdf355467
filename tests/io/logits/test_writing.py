"""Tables are written completely and in order, or not at all."""

import numpy as np
import pytest

from qipf.errors import QIPFError, QIPFInputError
from qipf.io.logits import read_table, table_writer

BLOCKS = [
    {"logit_0": np.array([0.1, 1e-300]), "logit_1": np.array([1 / 3, -2.0]), "id": ["a", 'b,"c']},
    {"logit_0": np.array([5.0]), "logit_1": np.array([6.0]), "id": ["a longer one"]},
]
ROWS = [[0.1, 1 / 3], [1e-300, -2.0], [5.0, 6.0]]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_columns_are_restored_exactly(tmp_path, name):
    with table_writer(tmp_path / name) as write:
        for block in BLOCKS:
            write(block)
    assert read_table(tmp_path / name).logits.tolist() == ROWS
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_arrays_by_name(tmp_path):
    with table_writer(tmp_path / "t.npz") as write:
        for block in BLOCKS:
            write({**block, "file": [1] * len(block["id"]), "missing": [None] * len(block["id"])})
    with np.load(tmp_path / "t.npz", allow_pickle=False) as found:
        assert found["id"].tolist() == ["a", 'b,"c', "a longer one"]
        assert np.stack([found["logit_0"], found["logit_1"]], 1).tolist() == ROWS
        assert found["file"].tolist() == [1, 1, 1]
        assert found["missing"].tolist() == ["", "", ""]


@pytest.mark.parametrize("columns", [["logit_0"], ["logit_0", "logit_1"]])
def test_one_array(tmp_path, columns):
    with table_writer(tmp_path / "t.npy") as write:
        for block in BLOCKS:
            write({name: block[name] for name in columns})
    expected = np.array(ROWS)[:, : len(columns)].squeeze()
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy", allow_pickle=False), expected)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npz", "t.npy"])
def test_an_error_keeps_the_old_file(tmp_path, name):
    (tmp_path / name).write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"), table_writer(tmp_path / name) as write:
        write({"uncertainty": np.array([1.0])})
        raise RuntimeError("stop")
    assert (tmp_path / name).read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_unsuitable_outputs_are_rejected_before_any_work(tmp_path):
    for path, message in [
        (tmp_path / "t.doc", "Cannot write 't.doc'"),
        (tmp_path / "no" / "t.csv", "There is no folder"),
    ]:
        with pytest.raises(QIPFInputError, match=message), table_writer(path):
            pytest.fail("not reached")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_pyarrow_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with (
        pytest.raises(QIPFError, match="Parquet files need pyarrow"),
        table_writer(tmp_path / "t.parquet"),
    ):
        pass
