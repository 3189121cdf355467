"""A file gets the scores of its rows, in order."""

import copy

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from qipf import QIPF, QIPFInputError
from qipf.io.logits import table as limits
from qipf.scoring import Scored, score_table
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
    assert found[0][:5] == ["id", "label", "predicted", "uncertainty", "outlier"]
    assert found[0][5:] == ["novelty", "mode_1", "mode_2", "mode_3", "mode_4"]
    assert [line[:2] for line in found[1:]] == [[f"r{k}", "x"] for k in range(23)]
    assert [int(line[2]) for line in found[1:]] == TEST.argmax(1).tolist()
    outlier = ["True" if sign == -1 else "False" for sign in field.predict(TEST)]
    assert [line[4] for line in found[1:]] == outlier
    numbers = np.array([[line[3], *line[6:]] for line in found[1:]], float)
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


def test_all_that_the_field_knows_is_written(tmp_path, field):
    held_out = make_logits(400, seed=8).double().numpy()
    known = copy.copy(field).calibrate(held_out, held_out.argmax(1))
    known.accept_rule(max_risk=0.05)
    np.savez(tmp_path / "t.npz", logits=TEST)
    score_table(known, tmp_path / "t.npz", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as found:
        assert list(found) == [
            "predicted", "uncertainty", "p_value", "outlier", "accepted", "novelty",
            "novelty_p_value",
        ]  # fmt: skip
        prediction = known(TEST)
        np.testing.assert_array_equal(found["predicted"], prediction.predicted)
        np.testing.assert_array_equal(found["p_value"], prediction.p_value)
        np.testing.assert_array_equal(found["accepted"], prediction.accepted)
        np.testing.assert_array_equal(found["novelty"], prediction.novelty)
        np.testing.assert_array_equal(found["novelty_p_value"], prediction.novelty_p_value)
        np.testing.assert_array_equal(found["outlier"], known.predict(TEST) == -1)
        assert [found[name].dtype.kind for name in found] == list("iffbbff")
    wanted = ["accepted", "predicted"]  # in any order
    score_table(known, tmp_path / "t.npz", tmp_path / "s.npz", results=wanted)
    with np.load(tmp_path / "s.npz") as found:
        assert list(found) == ["predicted", "uncertainty", "accepted"]
    score_table(known, tmp_path / "t.npz", tmp_path / "s.npy", results=["p_value"])
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy")[:, 1], known.p_values(TEST))


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("novelty_p_value", "There is no novelty_p_value: the model has no novelties of a calib"),
        ("p_value", "There is no p_value: the model is not calibrated. Make one with qipf cal"),
        ("accepted", "There is no accepted: the model has no accept rule. .* --max-risk 0.01"),
        ("acepted", "Did you mean 'accepted'"),
    ],
)
def test_results_that_the_field_cannot_give_raise(tmp_path, field, name, phrase):
    np.save(tmp_path / "t.npy", TEST)
    with pytest.raises(QIPFInputError, match=phrase):
        score_table(field, tmp_path / "t.npy", tmp_path / "s.csv", results=[name])
    assert not (tmp_path / "s.csv").exists()


def test_a_column_of_the_file_may_have_a_results_name_if_that_is_not_written(tmp_path, field):
    np.savez(tmp_path / "t.npz", logits=TEST, predicted=np.arange(23))
    with pytest.raises(QIPFInputError, match="has a column 'predicted'. .* with --results"):
        score_table(field, tmp_path / "t.npz", tmp_path / "s.npz")
    score_table(field, tmp_path / "t.npz", tmp_path / "s.npz", results=["outlier"])
    with np.load(tmp_path / "s.npz") as found:
        assert found["predicted"].tolist() == list(range(23))


def test_one_logit_stands_for_two_classes(tmp_path):
    rows = np.linspace(-2, 2.05, 40)[:, None]
    np.save(tmp_path / "t.npy", rows)
    field = QIPF(bandwidth=1.0).fit(rows)
    score_table(field, tmp_path / "t.npy", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as found:
        assert found["predicted"].tolist() == field(rows).predicted.tolist() == [0] * 20 + [1] * 20
    rows, labels = rows * 0.99, 1 * (np.arange(40) % 39 > 15)
    detection = field.calibrate(rows, labels).detection_
    assert detection.errors == 5
    assert detection.entropy == roc_auc_score(labels != field(rows).predicted, -abs(rows[:, 0]))


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


def test_rows_without_scores_count_as_rows_alone():
    """The mean of two summaries is that of their rows with scores."""
    whole, logits = Scored(), np.ones((10, 2))
    logits[[0, 3, 4, 9], 1] = np.nan
    scores = np.where(np.isfinite(logits[:, 1]), np.arange(10.0), np.nan)
    for part in (slice(0, 1), slice(1, 4), slice(4, 5), slice(5, 6), slice(6, 10)):
        other = Scored()
        other.add(scores[part], 6.5, logits[part])
        whole.join(other)
    good = np.array([1.0, 2, 5, 6, 7, 8])
    assert (whole.rows, whole.missing, whole.with_scores, whole.outliers) == (10, 4, 6, 2)
    assert whole.mean == pytest.approx(good.mean(), rel=1e-12)
    assert (whole.lowest, whole.highest) == (1, 8)
