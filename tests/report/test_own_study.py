"""Numbers behind the page of one's own predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import entr, log_softmax, logsumexp, softmax

from qipf import QIPF, QIPFInputError
from qipf.report.own_study import METHODS, risk_threshold, study, usual_threshold, wilson
from qipf.tables import Block
from tests.conftest import make_logits

TRAIN = make_logits(200).double().numpy()
TEST = make_logits(80, seed=3).double().numpy()
LABELS = np.where(np.arange(80) % 4 == 0, (TEST.argmax(1) + 1) % 10, TEST.argmax(1))


def test_scores_are_those_of_the_formulas():
    found = study(Block(TRAIN), Block(TEST, LABELS))
    p = softmax(TEST, axis=1)
    expected = {
        "softmax": -np.expm1(log_softmax(TEST, axis=1).max(1)),
        "entropy": entr(p).sum(1),
        "energy": -logsumexp(TEST, axis=1),
        "qipf": found.field.uncertainty(TEST),
    }
    assert set(found.scores) == set(found.usual) == set(METHODS) == set(expected)
    for name, scores in expected.items():
        np.testing.assert_allclose(found.scores[name], scores, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(found.wrong, np.arange(80) % 4 == 0)


def test_what_is_usual_is_measured_outside_the_field():
    found = study(Block(TRAIN), Block(TEST), seed=4)
    assert found.field.n_samples_seen_ == 160
    order = np.random.default_rng(4).permutation(200)
    np.testing.assert_array_equal(found.usual["qipf"], found.field.uncertainty(TRAIN[order[:40]]))
    again = QIPF(random_state=4).fit(TRAIN[order[40:]])
    np.testing.assert_array_equal(found.scores["qipf"], again.uncertainty(TEST))


def test_without_labels_the_threshold_says_what_is_unusual():
    found = study(Block(TRAIN), Block(TEST))
    limit = found.threshold
    assert found.wrong is None
    assert not found.detectable
    assert limit.value == np.quantile(found.usual["qipf"], 0.95)
    assert (limit.chosen_on, limit.checked_on, limit.errors, limit.risk) == (40, 80, None, None)
    assert limit.kept == int((found.scores["qipf"] <= limit.value).sum())


def test_without_errors_too():
    found = study(Block(TRAIN), Block(TEST, TEST.argmax(1)))
    assert not found.detectable
    assert found.threshold == usual_threshold(found.usual["qipf"], found.scores["qipf"])


def test_a_perfect_score_keeps_all_that_is_right():
    wrong = np.arange(400) >= 300
    limit = risk_threshold(np.arange(400.0), wrong, target=0.001)
    assert 290 <= limit.value < 300
    assert limit.errors == 0
    assert limit.holds
    assert (limit.chosen_on, limit.checked_on) == (200, 200)


def test_a_useless_score_gives_no_threshold():
    wrong = np.arange(400) % 2 == 0
    assert risk_threshold(np.zeros(400), wrong, target=0.1) is None
    assert risk_threshold(-wrong.astype(float), wrong, target=0.1) is None


def test_a_threshold_that_fails_on_the_other_half_says_so():
    order = np.random.default_rng(0).permutation(400)
    wrong = np.zeros(400, bool)
    wrong[order[200:]] = True  # the half it is tried on is all wrong
    limit = risk_threshold(np.random.default_rng(1).random(400), wrong, target=0.1)
    assert limit.risk[0] == 1.0
    assert not limit.holds


@settings(max_examples=50, deadline=None)
@given(st.integers(40, 200), st.integers(0, 2**32 - 1), st.floats(0.05, 0.9))
def test_the_threshold_is_the_highest_that_keeps_to_the_target(count, seed, target):
    random = np.random.default_rng(seed)
    scores, wrong = random.integers(0, 30, count).astype(float), random.random(count) < 0.4
    limit = risk_threshold(scores, wrong, target, seed=seed)
    half = np.random.default_rng(seed).permutation(count)[: count // 2]

    def fine(value):
        kept = scores[half] <= value
        return kept.sum() >= 20 and wrong[half][kept].mean() <= target

    possible = [value for value in np.unique(scores[half]) if fine(value)]
    assert (None if limit is None else limit.value) == (max(possible) if possible else None)


def test_wilsons_interval():
    from scipy.stats import binomtest

    for errors, count in [(0, 10), (3, 40), (40, 40), (500, 1000)]:
        expected = binomtest(errors, count).proportion_ci(0.95, "wilson")
        share, low, high = wilson(errors, count)
        assert (share, low, high) == pytest.approx((errors / count, *expected), abs=1e-6)


@pytest.mark.parametrize(
    ("train", "test", "target", "message"),
    [
        (TRAIN, TEST[:, :4], None, "Training rows have 10 logits, test rows 4. Both must come"),
        (TRAIN[:19], TEST, None, "There are 19 training rows; at least 20 are needed."),
        (TRAIN, TEST, 1.0, "The error rate to keep to must lie between 0 and 1; got 1."),
    ],
)
def test_refusals(train, test, target, message):
    with pytest.raises(QIPFInputError) as refused:
        study(Block(train), Block(test), target)
    assert str(refused.value).startswith(message)
