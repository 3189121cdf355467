import numpy as np
import pytest

from qipf.bench.results import Task
from qipf.bench.scores import ScoreStore, pack_all
from qipf.errors import QIPFInputError

WRONG = np.array([True, False, False])


def keep(out, level, method, value):
    task = Task("net", "zoom", level, method, 0)
    ScoreStore(out, "net", "zoom", 0).keep(task, np.full(3, value), WRONG)


def values(out):
    return {
        level: {name: array[0].item() for name, array in arrays.items()}
        for level, arrays in ScoreStore(out, "net", "zoom", 0).read().items()
    }


def test_scores_are_read_before_during_and_after_packing(tmp_path):
    keep(tmp_path, 2.0, "qipf", 1e-30)  # far below what half precision holds
    keep(tmp_path, 0.5, "qipf", 3.0)
    single = values(tmp_path)
    known = ScoreStore(tmp_path, "net", "zoom", 0).read()
    np.testing.assert_array_equal(known[2.0]["wrong"], WRONG)
    assert list(single) == [0.5, 2.0]
    assert single[2.0]["qipf"] == pytest.approx(1e-30)
    pack_all(tmp_path)
    assert [p.name for p in (tmp_path / "scores/seed0/net").iterdir()] == ["zoom.npz"]
    assert values(tmp_path) == single
    keep(tmp_path, 2.0, "entropy", 5.0)  # a method more, later
    assert values(tmp_path)[2.0]["entropy"] == 5.0
    ScoreStore(tmp_path, "net", "zoom", 0).pack()
    assert values(tmp_path)[2.0] == {**single[2.0], "entropy": 5.0}


def test_what_was_written_last_holds(tmp_path):
    keep(tmp_path, 2.0, "qipf", 1.0)
    pack_all(tmp_path)
    keep(tmp_path, 2.0, "qipf", 4.0)
    pack_all(tmp_path)
    assert values(tmp_path)[2.0]["qipf"] == 4.0


def test_missing_scores_are_empty_and_other_files_raise(tmp_path):
    assert ScoreStore(tmp_path, "net", "zoom", 3).read() == {}
    file = tmp_path / "scores/seed0/net/zoom.npz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(QIPFInputError, match="zoom.npz is not a file of scores .* or delete it"):
        ScoreStore(tmp_path, "net", "zoom", 0).read()
