"""A file gets the scores of its rows, in order."""

import numpy as np
import pytest

from qipf import QIPF, QIPFInputError
from qipf.io.logits import table as limits
from qipf.scoring import score_table
from tests.conftest import make_logits

TEST = make_logits(23, seed=3).double().numpy()


@pytest.fixture(scope="module")
def field():
    return QIPF(bandwidth=3.0).fit(make_logits(200).double().numpy())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 5)


def test_rows_stay_in_order_with_their_other_columns(tmp_path, field):
    header = "id," + ",".join(f"logit_{k}" for k in range(10)) + ",label"
    lines = [f"r{k}," + ",".join(map(repr, row)) + ",x" for k, row in enumerate(TEST.tolist())]
    (tmp_path / "t.csv").write_text("\n".join([header, *lines]))
    scored = score_table(field, tmp_path / "t.csv", tmp_path / "s.csv", modes=True)
    found = [line.split(",") for line in (tmp_path / "s.csv").read_text().splitlines()]
    assert found[0] == ["id", "label", "uncertainty", "mode_1", "mode_2", "mode_3", "mode_4"]
    assert [line[:2] for line in found[1:]] == [[f"r{k}", "x"] for k in range(23)]
    numbers = np.array([line[2:] for line in found[1:]], float)
    np.testing.assert_allclose(numbers[:, 0], field.uncertainty(TEST), rtol=1e-12)
    np.testing.assert_allclose(numbers[:, 1:], field.modes(TEST), rtol=1e-12)
    np.testing.assert_allclose(numbers[:, 0], numbers[:, 1:].mean(1), rtol=1e-12)
    uncertainty = field.uncertainty(TEST)
    assert scored.rows == 23
    assert scored.mean == pytest.approx(uncertainty.mean(), rel=1e-12)
    assert scored.lowest == pytest.approx(uncertainty.min(), rel=1e-12)
    assert scored.highest == pytest.approx(uncertainty.max(), rel=1e-12)
    assert scored.outliers == int((field.predict(TEST) == -1).sum())


def test_array_in_array_out(tmp_path, field):
    np.savez(tmp_path / "t.npz", logits=TEST, labels=np.arange(23))
    score_table(field, tmp_path / "t.npz", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as found:
        assert found["labels"].tolist() == list(range(23))
        np.testing.assert_allclose(found["uncertainty"], field.uncertainty(TEST), rtol=1e-12)
    score_table(field, tmp_path / "t.npz", tmp_path / "s.npy", modes=True)
    np.testing.assert_allclose(
        np.load(tmp_path / "s.npy"),
        np.column_stack([field.uncertainty(TEST), field.modes(TEST)]),
        rtol=1e-12,
    )


def test_errors_leave_no_output(tmp_path, field):
    np.save(tmp_path / "t.npy", TEST[:, :9])
    with pytest.raises(
        QIPFInputError, match="has 9 logits a row, but the field was fitted with 10"
    ):
        score_table(field, tmp_path / "t.npy", tmp_path / "s.csv")
    np.savez(tmp_path / "t.npz", logits=TEST, uncertainty=TEST[:, 0])
    with pytest.raises(QIPFInputError, match="already has a column 'uncertainty'"):
        score_table(field, tmp_path / "t.npz", tmp_path / "s.csv")
    late = TEST.copy()
    late[20, 3] = np.nan
    np.save(tmp_path / "t.npy", late)
    with pytest.raises(QIPFInputError, match=r"t\.npy, row 20: logit_3 is nan\."):
        score_table(field, tmp_path / "t.npy", tmp_path / "s.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.npy", "t.npz"]
