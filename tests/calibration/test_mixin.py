"""Calibration of a field: labels or errors, batches and copies; see also tests/test_contract.py."""

import pickle
import re

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.base import clone

from qipf import QIPF, QIPFInputError, accept_rule
from qipf.calibration.conformal import Calibration
from qipf.calibration.mixin import CalibrationMixin
from qipf.calibration.quantization import rounded
from tests.conftest import make_logits

TRAIN, HELD_OUT, TEST = (make_logits(count, seed=count).numpy() for count in (400, 900, 300))


@pytest.fixture
def field():
    return QIPF(bandwidth=3.0).fit(TRAIN)


def wrong_of(field, rows, seed=0):
    """Errors that grow more frequent with the uncertainty."""
    uncertainty = field.uncertainty(rows)
    ranks = uncertainty.argsort().argsort() / len(rows)
    return np.random.default_rng(seed).random(len(rows)) < 0.2 * ranks**3


def test_p_values_do_not_depend_on_the_batch(field):
    assert field.calibrate(HELD_OUT) is field
    ranks = (-field.uncertainty(HELD_OUT)).argsort().argsort() + 2
    alone = np.concatenate([field.p_values(row[None]) for row in HELD_OUT[:50]])
    assert (alone >= ranks[:50] / 901).all()
    np.testing.assert_allclose(alone, ranks[:50] / 901, atol=2.5 / 901)  # ties by rounding
    assert field.p_values(1e6 * TEST).max() == pytest.approx(1 / 901)
    np.testing.assert_array_equal(
        field.p_values(torch.from_numpy(TEST)).numpy(), field.p_values(TEST)
    )


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_p_values_of_like_predictions_are_super_uniform(tied):
    # one new prediction for each calibration set: predictions ranked in one set are dependent
    draws = make_logits(400 * 41, dimension=2, seed=3).numpy().reshape(400, 41, 2)
    draws = 10 * (draws / 10).round() if tied else draws
    field = QIPF(bandwidth=3.0).fit(make_logits(200, dimension=2).numpy())
    values = [field.calibrate(rows[1:]).p_values(rows[:1])[0] for rows in draws]
    for level in (0.025, 0.05, 0.1, 0.3, 0.5, 0.9):
        assert np.mean(np.array(values) <= level) <= binom.isf(0.01, 400, level) / 400


def test_a_prediction_has_class_score_and_decisions(field):
    found = field(TEST)
    np.testing.assert_array_equal(found.predicted, TEST.argmax(1))
    np.testing.assert_array_equal(found.logits, TEST)
    np.testing.assert_array_equal(found.uncertainty, field.uncertainty(TEST))
    assert found.p_value is None
    assert found.accepted is None
    field.calibrate(HELD_OUT, wrong=wrong_of(field, HELD_OUT)).accept_rule(max_risk=0.05)
    found = field(TEST)
    np.testing.assert_array_equal(found.p_value, field.p_values(TEST))
    np.testing.assert_array_equal(found.accepted, field.accepts(TEST))


def test_the_class_of_a_mixture_is_its_most_probable_one(field):
    rows = torch.from_numpy(TEST)
    mixture = torch.softmax(-rows, 1)
    found = field._prediction(rows, rows[:, 0], rows[:, 0], probabilities=mixture)
    assert torch.equal(found.mixture_class, rows.argmin(1))
    assert torch.equal(found.predicted, rows.argmax(1))
    assert field._prediction(rows, rows[:, 0], rows[:, 0]).mixture_class is None


def test_a_limit_of_novelty_needs_novelties(field):
    wrong = wrong_of(field, HELD_OUT)
    field.calibration_ = Calibration(field.uncertainty(HELD_OUT), wrong)
    assert field.accept_rule(max_risk=0.05).max_novelty is None
    with pytest.raises(QIPFInputError, match="This calibration set has no novelties"):
        field.accept_rule(max_risk=0.05, min_novelty_p=0.01)


def test_labels_and_errors_make_the_same_rule(field):
    wrong = wrong_of(field, HELD_OUT)
    rule = field.calibrate(HELD_OUT, wrong=wrong).accept_rule(max_risk=0.05)
    assert rule == accept_rule(field.uncertainty(HELD_OUT), wrong, max_risk=0.05)
    assert 0 < rule.accepted < 900
    labels = np.where(wrong, (HELD_OUT.argmax(1) + 1) % 10, HELD_OUT.argmax(1))
    assert field.calibrate(HELD_OUT, labels).accept_rule(max_risk=0.05) == rule
    assert field.detection_.entropy is not None
    tensors = torch.from_numpy(HELD_OUT), torch.from_numpy(labels)
    assert field.calibrate(*tensors).accept_rule(max_risk=0.05) == rule
    assert field.accepts(TEST).dtype == bool


@pytest.mark.parametrize("seed", range(3))
def test_equal_predictions_are_accepted_together_whatever_their_batch(field, seed):
    kinds = make_logits(50, seed=60 + seed).numpy()
    scores = field.uncertainty(kinds)  # those in the middle of a step, not at a limit between two
    kinds = kinds[rounded(scores * (1 - 1e-5)) == rounded(scores * (1 + 1e-5))][:6]
    order = np.argsort(field.uncertainty(kinds))
    held_out = np.repeat(order, 150)
    wrong = np.zeros(900, bool)
    wrong[450::2] = True  # the upper half of the kinds is wrong half of the time
    rule = field.calibrate(kinds[held_out], wrong=wrong).accept_rule(max_risk=0.05)
    assert 450 <= rule.accepted < 900
    together = field.accepts(kinds[held_out])
    alone = np.array([field.accepts(kinds[[kind]])[0] for kind in held_out[::150]])
    np.testing.assert_array_equal(together, np.repeat(alone, 150))
    assert together.sum() == rule.accepted


def test_copies_keep_the_rule_and_more_rows_drop_it(field):
    field.calibrate(HELD_OUT, wrong=wrong_of(field, HELD_OUT)).accept_rule(max_risk=0.05)
    again = pickle.loads(pickle.dumps(field))
    np.testing.assert_array_equal(again.calibration_.scores, field.calibration_.scores)
    assert again.rule_ == field.rule_
    assert (clone(field).calibration_, clone(field).rule_) == (None, None)
    with pytest.raises(QIPFInputError):
        field.partial_fit(np.full((2, 10), np.nan))
    assert field.rule_ == again.rule_  # a failed fit changes nothing
    field.partial_fit(TEST)
    assert (field.calibration_, field.rule_) == (None, None)


def test_a_field_from_batches_is_built_when_it_is_calibrated():
    parts = QIPF(bandwidth=3.0).partial_fit(TRAIN[:200]).partial_fit(TRAIN[200:])
    whole = QIPF(bandwidth=3.0).fit(TRAIN)
    np.testing.assert_array_equal(
        parts.calibrate(HELD_OUT).p_values(TEST), whole.calibrate(HELD_OUT).p_values(TEST)
    )


@pytest.mark.parametrize(
    ("rows", "options", "phrase"),
    [
        (TEST[:0], {}, "at least one uncertainty"),
        (TEST * np.nan, {}, "X has 300 rows with NaN or inf"),
        (TEST[:, :3], {}, "X has 3 features"),
        (TEST, {"y": np.zeros(3)}, "y must have shape (300,)"),
        (TEST, {"y": np.full(300, 10)}, "Pass wrong= if X is not logits"),
        (TEST, {"wrong": np.arange(300)}, "wrong must hold booleans"),
        (TEST, {"y": np.zeros(300), "wrong": np.zeros(300)}, "not both"),
    ],
)
def test_a_failed_calibration_changes_nothing(field, rows, options, phrase):
    field.calibrate(HELD_OUT)
    before = field.calibration_
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        field.calibrate(rows, **options)
    assert field.calibration_ is before


def test_scores_have_no_constant_unless_a_class_says_so():
    assert CalibrationMixin.score_origin(QIPF()) == 0.0


def test_the_repr_tells_calibration_and_rule_as_they_come(field):
    assert field._about() == []
    field.calibrate(HELD_OUT, wrong=wrong_of(field, HELD_OUT))
    assert field._about()[0] == "calibrated on 900 predictions"
    assert not any("accepts" in text for text in field._about())
    rule = field.accept_rule(max_risk=0.3)
    assert field._about()[-1] == f"accepts {rule.coverage:.1%}"
