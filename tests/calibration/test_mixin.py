"""A field that knows held-out predictions: p-values, rules, and when they are forgotten."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.base import clone
from torch import nn

import qipf
from qipf import QIPF, QIPFInputError, QIPFNotFittedError, accept_rule
from qipf.calibration.conformal import Calibration
from qipf.calibration.quantization import highest, rounded
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


def test_p_values_are_shares_of_the_held_out_predictions(field):
    assert field.calibrate(HELD_OUT) is field
    held_out, scores = field.uncertainty(HELD_OUT), field.uncertainty(TEST)
    expected = [(1 + (held_out >= score).sum()) / 901 for score in scores]
    found = field.p_values(TEST)
    assert (found >= expected).all()
    np.testing.assert_allclose(found, expected, atol=2.5 / 901)  # neighbours within rounding
    # a held-out prediction is as unusual as itself, whatever the batch it comes in
    ranks = (-held_out).argsort().argsort() + 2
    alone = np.concatenate([field.p_values(row[None]) for row in HELD_OUT[:50]])
    assert (alone >= ranks[:50] / 901).all()
    np.testing.assert_allclose(alone, ranks[:50] / 901, atol=2.5 / 901)
    tensor = field.p_values(torch.from_numpy(TEST))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), field.p_values(TEST))
    assert field.p_values(1e6 * TEST).max() == pytest.approx(1 / 901)


@pytest.mark.parametrize("tied", [False, True])
def test_p_values_of_like_predictions_are_super_uniform_ties_or_not(tied):
    # one new prediction for each held-out set: many would share the luck of one
    draws = make_logits(400 * 41, dimension=2, seed=3).numpy().reshape(400, 41, 2)
    draws = 10 * (draws / 10).round() if tied else draws
    field = QIPF(bandwidth=3.0).fit(make_logits(200, dimension=2).numpy())
    values = [field.calibrate(rows[1:]).p_values(rows[:1])[0] for rows in draws]
    for level in (0.025, 0.05, 0.1, 0.3, 0.5, 0.9):
        assert np.mean(np.array(values) <= level) <= binom.isf(0.01, 400, level) / 400


def test_labels_or_errors_make_a_rule(field):
    wrong = wrong_of(field, HELD_OUT)
    rule = field.calibrate(HELD_OUT, wrong=wrong).accept_rule(max_risk=0.05)
    steps = rounded(field.uncertainty(HELD_OUT))
    expected = accept_rule(steps, wrong, max_risk=0.05)
    assert rule == replace(expected, threshold=highest(expected.threshold))
    # up to the threshold is up to the step it was certified for
    np.testing.assert_array_equal(
        rule(field.uncertainty(TEST)), rounded(field.uncertainty(TEST)) <= expected.threshold
    )
    assert rule is field.rule_
    assert 0 < rule.accepted < 900
    np.testing.assert_array_equal(field.accepts(TEST), field.uncertainty(TEST) <= rule.threshold)
    assert field.accepts(torch.from_numpy(TEST)).dtype == torch.bool
    covering = field.accept_rule(confidence=0.9, min_coverage=0.5)
    assert (field.rule_, covering.min_coverage) == (covering, 0.5)
    labels = np.where(wrong, (HELD_OUT.argmax(1) + 1) % 10, HELD_OUT.argmax(1))
    assert field.calibrate(HELD_OUT, labels).accept_rule(max_risk=0.05) == rule
    tensors = torch.from_numpy(HELD_OUT), torch.from_numpy(labels)
    assert field.calibrate(*tensors).accept_rule(max_risk=0.05) == rule


def test_a_rule_that_accepts_all_or_nothing_stays_so(field):
    nothing = field.calibrate(HELD_OUT, wrong=np.ones(900)).accept_rule()
    assert nothing.threshold == -np.inf
    everything = field.calibrate(HELD_OUT[:9], wrong=np.zeros(9)).accept_rule(min_coverage=0.99)
    assert everything.threshold == np.finfo(float).max


@pytest.mark.parametrize("seed", range(5))
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


def test_fitting_again_forgets_what_was_held_out(field):
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
    again.fit(TRAIN)
    assert (again.calibration_, again.rule_) == (None, None)


def test_other_held_out_predictions_drop_the_rule(field):
    field.calibrate(HELD_OUT, wrong=wrong_of(field, HELD_OUT)).accept_rule(max_risk=0.05)
    field.calibrate(TEST)
    assert field.rule_ is None
    assert len(field.calibration_) == 300


def test_a_field_still_being_built_is_calibrated_as_it_stands():
    parts = QIPF(bandwidth=3.0).partial_fit(TRAIN[:200]).partial_fit(TRAIN[200:])
    whole = QIPF(bandwidth=3.0).fit(TRAIN)
    np.testing.assert_array_equal(
        parts.calibrate(HELD_OUT).p_values(TEST), whole.calibrate(HELD_OUT).p_values(TEST)
    )


def test_what_is_missing_is_named(field):
    with pytest.raises(QIPFNotFittedError, match="not fitted yet. Call fit"):
        QIPF().calibrate(HELD_OUT)
    for use in (lambda: field.p_values(TEST), field.accept_rule):
        with pytest.raises(QIPFNotFittedError) as refused:
            use()
        assert str(refused.value) == (
            "This field knows no held-out predictions yet. Call calibrate(held_out_logits) first."
        )
    with pytest.raises(QIPFNotFittedError, match=re.escape("has no accept rule yet. Call accept_")):
        field.accepts(TEST)
    with pytest.raises(QIPFInputError) as refused:
        field.calibrate(HELD_OUT).accept_rule()
    assert str(refused.value) == (
        "The field was calibrated without labels, so no errors are known. Call "
        "calibrate(held_out_logits, labels), or pass wrong=."
    )


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (TEST[:0], {}, "scores is empty: at least one held-out uncertainty is needed."),
        (TEST * np.nan, {}, "X has 300 rows with NaN or inf"),
        (TEST[:, :3], {}, "X has 3 features, but QIPF is expecting 10 features"),
        (TEST, {"y": np.zeros(3)}, "y must have shape (300,), one entry per row of X, got (3,)."),
        (
            TEST,
            {"y": np.full(300, 10)},
            "y does not hold classes 0..9, so the model's errors cannot be told. Pass wrong= if X "
            "is not logits.",
        ),
        (TEST, {"wrong": np.arange(300)}, "wrong must hold booleans: True where the model erred."),
        (TEST, {"y": np.zeros(300), "wrong": np.zeros(300)}, "Pass y (true classes) or wrong"),
    ],
)
def test_bad_held_out_predictions_are_refused_and_change_nothing(field, rows, options, message):
    field.calibrate(HELD_OUT)
    before = field.calibration_
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        field.calibrate(rows, **options)
    assert field.calibration_ is before


# ---------------------------------------------------------------------- wrapped networks


def data(count, seed):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return qipf.wrap(nn.Linear(4, 3), field=QIPF(bandwidth=1.0)).fit(data(300, 0).split(50))


def test_a_wrapped_model_is_calibrated_batch_by_batch(model):
    held_out = data(700, 1)
    logits = model(held_out).logits
    labels = logits.argmax(1)
    labels[::50] = (labels[::50] + 1) % 3
    assert model(held_out).accepted is None
    batches = zip(held_out.split(64), labels.split(64), strict=True)
    assert model.calibrate(batches) is model
    known = model.field.calibration_
    expected = Calibration(model(held_out).uncertainty, logits.argmax(1) != labels)
    np.testing.assert_allclose(known.scores, expected.scores, rtol=1e-5)
    assert known.wrong.sum() == 14
    rule = model.field.accept_rule(max_risk=0.1)
    prediction = model(held_out)
    assert torch.equal(prediction.accepted, prediction.uncertainty <= rule.threshold)
    assert prediction.accepted.any()
    assert model.fit(data(300, 0).split(50))(held_out).accepted is None


def test_a_wrapped_model_without_labels_has_p_values(model):
    model.calibrate([data(100, 1)])
    assert model.field.calibration_.wrong is None
    p_values = model.field.p_values(model(data(20, 2)).logits)
    assert ((p_values > 0) & (p_values <= 1)).all()


def test_bad_held_out_loaders_are_refused_and_leave_the_network_as_it_was(model):
    model.net.train()
    labels = torch.zeros(8, dtype=torch.long)
    for loader, message in [
        (None, "calibrate needs an iterable of batches, such as a DataLoader, got NoneType."),
        ([], "The loader is empty: calibrate needs at least one prediction."),
        ([data(8, 1) * torch.nan], "the network's output for batch 0 has 8 rows with NaN or inf"),
        ([(data(8, 1), labels), data(8, 2)], "Batch 1 lacks labels, unlike those before it."),
    ]:
        with pytest.raises(QIPFInputError, match=re.escape(message)):
            model.calibrate(loader)
        assert model.net.training
        assert model.field.calibration_ is None
    with pytest.raises(QIPFNotFittedError, match="This wrapped model is not fitted yet"):
        qipf.wrap(nn.Linear(4, 3)).calibrate([data(8, 1)])
