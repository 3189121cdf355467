"""Numbers behind the page of one's own predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import entr, log_softmax, logsumexp, softmax

from qipf import QIPF, QIPFInputError, QIPFWarning, accept_rule
from qipf.io.logits import Block
from qipf.reporting.own.page import own_page
from qipf.reporting.own.study import CONFIDENCE, METHODS, OWN, certified_evaluation, study
from qipf.reporting.rule_evaluation import random_halves
from tests.conftest import make_logits

TRAIN = make_logits(200).double().numpy()
TEST = make_logits(80, seed=3).double().numpy()
FIELD = QIPF(bandwidth=3.0).fit(TRAIN)
HELD_OUT = make_logits(150, seed=4).double().numpy()
KNOWN = QIPF(bandwidth=3.0).fit(TRAIN).calibrate(HELD_OUT)
LABELS = np.where(np.arange(80) % 4 == 0, (TEST.argmax(1) + 1) % 10, TEST.argmax(1))


def test_scores_are_those_of_the_formulas():
    found = study(FIELD, Block(TEST, LABELS))
    p = softmax(TEST, axis=1)
    expected = {
        "softmax": -np.expm1(log_softmax(TEST, axis=1).max(1)),
        "entropy": entr(p).sum(1),
        "energy": -logsumexp(TEST, axis=1),
        OWN: found.model.uncertainty(TEST),
    }
    assert set(found.scores) == set(METHODS) == set(expected)
    for name, scores in expected.items():
        np.testing.assert_allclose(found.scores[name], scores, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(found.wrong, np.arange(80) % 4 == 0)


def test_probabilities_are_their_own_softmax():
    p = softmax(TEST, axis=1)
    p[0] = np.eye(10)[3]
    found = study(FIELD, Block(p))
    np.testing.assert_allclose(found.scores["softmax"], 1 - p.max(1), atol=1e-14)
    np.testing.assert_allclose(found.scores["entropy"], entr(p).sum(1), atol=1e-13)
    np.testing.assert_array_equal(found.uncertainty, FIELD.uncertainty(p))


def test_one_logit_is_judged_as_two():
    rows = np.linspace(-3, 3, 60)[:, None]
    field = QIPF(bandwidth=1.0).fit(np.linspace(-2, 2, 50)[:, None])
    found = study(field, Block(rows, 1 * (np.arange(60) > 35)))
    assert found.predicted.tolist() == [0] * 30 + [1] * 30
    p = 1 / (1 + np.exp(-abs(rows[:, 0])))
    np.testing.assert_allclose(found.scores["softmax"], 1 - p, rtol=1e-12)


def test_what_is_usual_comes_from_the_calibration_or_not_at_all():
    found = study(KNOWN, Block(TEST))
    np.testing.assert_array_equal(found.reference, np.sort(KNOWN.uncertainty(HELD_OUT)))
    mark, above = found.above(0.9)
    assert (mark, above) == (
        np.quantile(found.reference, 0.9), (KNOWN.uncertainty(TEST) > mark).mean(),
    )  # fmt: skip
    alone = study(FIELD, Block(TEST))
    assert alone.reference is None
    assert alone.threshold is None


def test_the_calibration_set_is_no_test_data():
    expected = (
        "About {} of these predictions are of the calibration set, with which the page compares "
        "them: it cannot show a shift or test the model's rule. Pass other data."
    )
    with pytest.warns(QIPFWarning) as told:
        found = study(KNOWN, Block(HELD_OUT))
    assert [str(one.message) for one in told] == [expected.format("100%")]
    assert found.calibrated == pytest.approx(1.0, abs=1e-3)  # less what is chance
    with pytest.warns(QIPFWarning, match="About 50% of these predictions are of the calibration"):
        study(KNOWN, Block(np.concatenate([HELD_OUT[:80], TEST])))
    assert study(KNOWN, Block(TEST)).calibrated is None
    page = own_page(found)
    assert "About 100% of these predictions are of the calibration set" in page


def test_collapsed_predictions_are_not_those_of_the_calibration_set():
    constant = np.repeat(HELD_OUT[:1], 500, axis=0)
    assert study(KNOWN, Block(constant)).calibrated is None
    few = np.concatenate([constant, HELD_OUT[:100]])  # 100 of 600
    assert study(KNOWN, Block(few)).calibrated is None
    with pytest.warns(QIPFWarning, match="About 50% of these predictions are of the calibration"):
        study(KNOWN, Block(np.concatenate([HELD_OUT, np.repeat(HELD_OUT[:1], 150, axis=0)])))


def test_the_threshold_is_that_of_the_score_that_finds_the_errors_best():
    rng = np.random.default_rng(0)
    wrong = rng.random(1000) < 0.2
    logits = rng.normal(size=(1000, 10))
    logits[np.arange(1000), 0] = np.where(wrong, 4.0, 8.0)  # the softmax knows what is wrong
    labels = np.where(wrong, 1, 0)
    field = QIPF(bandwidth=3.0).fit(logits + 5 * rng.normal(size=logits.shape))
    found = study(field, Block(logits, labels), 0.05)
    assert found.best == max(METHODS, key=lambda name: found.metrics[name]["roc_auc"]) != OWN
    rule = found.evaluation.rule
    assert found.threshold["score"] == found.best
    assert rule == certified_evaluation(found.scores[found.best], found.wrong, 0.05).rule
    # the best of four scores is chosen on the rows that certify it
    assert rule.confidence == CONFIDENCE == 1 - 0.05 / 4


def test_without_labels_the_threshold_says_what_is_unusual():
    found = study(KNOWN, Block(TEST))
    limit = found.threshold
    assert found.wrong is None
    assert not found.metrics
    assert (limit["score"], limit["threshold"]) == (OWN, np.quantile(found.reference, 0.95))
    assert (limit["target"], limit["error_rate"], limit["holds"]) == (0.05, None, True)
    assert limit["kept"] == (found.uncertainty <= limit["threshold"]).mean()


def test_without_errors_a_rule_is_certified_all_the_same():
    wrong = np.zeros(1000, bool)
    found = certified_evaluation(np.arange(1000.0), wrong)
    assert found.rule.max_risk == 0.01  # no error tells what would be reasonable
    assert found.rule.certified
    assert found.rule.accepted == 500
    assert not study(FIELD, Block(TEST, TEST.argmax(1))).metrics


def test_the_threshold_is_the_certified_rule_of_one_half():
    wrong = np.arange(4000) >= 3000
    found = certified_evaluation(np.arange(4000.0), wrong, target=0.05, seed=2)
    held_out, other = random_halves(4000, 2)
    assert found.rule == accept_rule(np.arange(4000.0)[held_out], wrong[held_out], 0.05, CONFIDENCE)
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
    found = study(KNOWN, Block(TEST, LABELS), 0.9)
    rule = found.evaluation.rule
    assert rule == certified_evaluation(found.scores[found.best], found.wrong, 0.9).rule
    assert found.threshold == {
        "score": found.best, "threshold": rule.threshold, "target": 0.9,
        "kept": found.evaluation.coverage, "error_rate": found.evaluation.risk, "holds": True,
    }  # fmt: skip
    assert study(KNOWN, Block(TEST, LABELS), 0.001).threshold is None
    single = study(KNOWN, Block(TEST[:1], LABELS[:1]))  # nothing to halve
    assert single.evaluation is None
    assert single.threshold["error_rate"] is None


@pytest.mark.parametrize(
    ("test", "target", "phrase"),
    [
        (TEST[:, :4], None, "Training rows have 10 logits, test rows 4"),
        (TEST, 1.0, "between 0 and 1"),
    ],
)
def test_unusable_inputs_raise(test, target, phrase):
    with pytest.raises(QIPFInputError, match=phrase):
        study(FIELD, Block(test), target)
