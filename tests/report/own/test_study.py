"""Numbers behind the page of one's own predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import entr, log_softmax, logsumexp, softmax

from qipf import QIPF, QIPFInputError, accept_rule
from qipf.io.logits import Block
from qipf.report.own.study import METHODS, certified_evaluation, study
from qipf.report.run.decisions import random_halves
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
    assert set(found.scores) == set(METHODS) == set(expected)
    for name, scores in expected.items():
        np.testing.assert_allclose(found.scores[name], scores, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(found.wrong, np.arange(80) % 4 == 0)


def test_what_is_usual_is_measured_outside_the_field():
    found = study(Block(TRAIN), Block(TEST), seed=4)
    assert found.field.n_samples_seen_ == 160
    order = np.random.default_rng(4).permutation(200)
    np.testing.assert_array_equal(found.reference, found.field.uncertainty(TRAIN[order[:40]]))
    again = QIPF(random_state=4).fit(TRAIN[order[40:]])
    np.testing.assert_array_equal(found.scores["qipf"], again.uncertainty(TEST))


def test_without_labels_the_threshold_says_what_is_unusual():
    found = study(Block(TRAIN), Block(TEST))
    limit = found.threshold
    assert found.wrong is None
    assert not found.metrics
    assert limit["uncertainty"] == np.quantile(found.reference, 0.95)
    assert (limit["target"], limit["error_rate"], limit["holds"]) == (0.05, None, True)
    assert limit["kept"] == (found.scores["qipf"] <= limit["uncertainty"]).mean()


def test_without_errors_a_rule_is_certified_all_the_same():
    wrong = np.zeros(800, bool)
    found = certified_evaluation(np.arange(800.0), wrong)
    assert found.rule.max_risk == 0.01  # no error tells what would be reasonable
    assert found.rule.certified
    assert found.rule.accepted == 400
    assert not study(Block(TRAIN), Block(TEST, TEST.argmax(1))).metrics


def test_the_threshold_is_the_certified_rule_of_one_half():
    wrong = np.arange(4000) >= 3000
    found = certified_evaluation(np.arange(4000.0), wrong, target=0.05, seed=2)
    held_out, other = random_halves(4000, 2)
    assert found.rule == accept_rule(np.arange(4000.0)[held_out], wrong[held_out], 0.05)
    assert 3000 <= found.rule.threshold < 3160
    accepted = other <= found.rule.threshold
    assert (found.count, found.accepted) == (2000, accepted.sum())
    assert found.errors == wrong[other][accepted].sum()


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 200), st.integers(0, 2**32 - 1))
def test_the_limit_is_never_chosen_by_the_half_that_certifies_it(count, seed):
    random = np.random.default_rng(seed)
    scores, wrong = random.random(count), random.random(count) < 0.4
    held_out, other = random_halves(count, seed)
    limit = certified_evaluation(scores, wrong, seed=seed).rule.max_risk
    assert limit == (wrong[other].mean() / 2 or 0.01)
    flipped = wrong.copy()
    flipped[held_out] = ~flipped[held_out]
    assert certified_evaluation(scores, flipped, seed=seed).rule.max_risk == limit


def test_the_study_tells_the_rules_threshold_or_none():
    found = study(Block(TRAIN), Block(TEST, LABELS), 0.9)
    rule = found.evaluation.rule
    assert rule == certified_evaluation(found.scores["qipf"], found.wrong, 0.9).rule
    assert found.threshold == {
        "uncertainty": rule.threshold, "target": 0.9, "kept": found.evaluation.coverage,
        "error_rate": found.evaluation.risk, "holds": True,
    }  # fmt: skip
    assert study(Block(TRAIN), Block(TEST, LABELS), 0.001).threshold is None
    single = study(Block(TRAIN), Block(TEST[:1], LABELS[:1]))  # nothing to halve
    assert single.evaluation is None
    assert single.threshold["error_rate"] is None


@pytest.mark.parametrize(
    ("train", "test", "target", "phrase"),
    [
        (TRAIN, TEST[:, :4], None, "Training rows have 10 logits, test rows 4"),
        (TRAIN[:19], TEST, None, "at least 20 are needed"),
        (TRAIN, TEST, 1.0, "between 0 and 1"),
    ],
)
def test_unusable_inputs_raise(train, test, target, phrase):
    with pytest.raises(QIPFInputError, match=phrase):
        study(Block(train), Block(test), target)
