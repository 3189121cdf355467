import numpy as np
import pytest

from qipf.bench.results import Task
from qipf.bench.scores import ScoreStore, pack_all, read_scores
from qipf.errors import QIPFInputError

WRONG = np.array([True, False, False])


def keep(out, level, method, value):
    task = Task("net", "zoom", level, method, 0)
    ScoreStore(out, "net", "zoom", 0).keep(task, np.full(3, value), WRONG)


def values(out):
    return {
        level: {name: array[0].item() for name, array in arrays.items()}
        for level, arrays in read_scores(out, "net", "zoom").items()
    }


def test_scores_are_read_before_during_and_after_packing(tmp_path):
    keep(tmp_path, 2.0, "qipf", 1e-30)  # far below what half precision holds
    keep(tmp_path, 0.5, "qipf", 3.0)
    single = values(tmp_path)
    np.testing.assert_array_equal(read_scores(tmp_path, "net", "zoom")[2.0]["wrong"], WRONG)
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


def test_scores_that_are_not_there_or_not_scores_are_refused(tmp_path):
    with pytest.raises(QIPFInputError) as refused:
        read_scores(tmp_path, "net", "zoom", seed=3)
    assert str(refused.value) == f"{tmp_path} holds no scores of net under zoom with seed 3."
    file = tmp_path / "scores/seed0/net/zoom.npz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(QIPFInputError, match="zoom.npz is not a file of scores .* or delete it"):
        read_scores(tmp_path, "net", "zoom")
