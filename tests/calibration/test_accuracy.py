"""Accuracy without labels: right on average and inside its bounds on data like the held-out set."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom, norm

from qipf import QIPF, AccuracyEstimator, QIPFInputError, estimate_accuracy, wrap
from qipf.calibration.accuracy import METHODS as ALL_METHODS
from qipf.calibration.conformal import Calibration
from qipf.calibration.prediction import Prediction

METHODS = ALL_METHODS[:2]  # those of uncertainties of any kind

RATES = {
    "good": lambda u: 0.3 * u**8,
    "fair": lambda u: u**3,
    "rare": lambda u: 0.02 * u**4,
    "blind": lambda u: np.full(len(u), 0.3),
}


def draw(rng, count, kind, ties=False):
    u = rng.uniform(size=count)
    u = np.round(u, 1) if ties else u
    return u, rng.uniform(size=count) < RATES[kind](u)


@pytest.mark.slow
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", list(RATES))
@pytest.mark.parametrize("method", METHODS)
def test_the_true_accuracy_lies_within_the_bounds(rng, method, kind, ties):
    repeats, inside, errors = 300, 0, []
    for _ in range(repeats):
        estimator = AccuracyEstimator(*draw(rng, 1000, kind, ties), method)
        doubt, wrong = draw(rng, 500, kind, ties)
        told, truth = estimator.estimate(doubt), 1 - wrong.mean()
        inside += told.low - 1e-12 <= truth <= told.high + 1e-12
        errors.append(told.accuracy - truth)
    assert inside / repeats > 0.95 - 3 * np.sqrt(0.95 * 0.05 / repeats)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(repeats)


@pytest.mark.parametrize("method", METHODS)
def test_on_the_held_out_predictions_it_is_their_accuracy(rng, method):
    for ties in (False, True):
        doubt, wrong = draw(rng, 777, "fair", ties)
        told = AccuracyEstimator(doubt, wrong, method).estimate(doubt)
        assert told.accuracy == pytest.approx(1 - wrong.mean(), abs=1e-12)
        assert (told.count, told.held_out, told.confidence) == (777, 777, 0.95)


@pytest.mark.parametrize("method", METHODS)
def test_more_doubt_never_means_more_accuracy(rng, method):
    estimator = AccuracyEstimator(*draw(rng, 500, "fair"), method)
    accuracies = [estimator.estimate([u]).accuracy for u in np.linspace(-1, 2, 61)]
    assert (np.diff(accuracies) <= 1e-12).all()
    # beyond the range it stays where it was
    beyond = estimator.estimate([1e9]).accuracy
    assert estimator.estimate([np.nan]).accuracy == estimator.estimate([np.inf]).accuracy == beyond


def test_steps_by_hand():
    doubt, wrong = [1.0, 2.0, 3.0, 4.0], [False, False, True, False]
    threshold = AccuracyEstimator(doubt, wrong)  # one is wrong: what reaches 4 is called wrong
    assert threshold.estimate([3.9]).accuracy == 1.0
    assert threshold.estimate([4.0, 3.0]).accuracy == 0.5
    isotonic = AccuracyEstimator(doubt, wrong, "isotonic")  # groups of two: 0 of 2, 1 of 2
    assert isotonic.estimate([2.9]).accuracy == 1.0
    assert isotonic.estimate([3.0]).accuracy == 0.5
    equal = AccuracyEstimator([1.0, 1.0, 1.0, 1.0], wrong)
    assert equal.estimate([1.0]).accuracy == 0.75


def margin(variance, n, m, confidence):
    """z√V + z²/2n + 1/2m"""
    z = norm.ppf((1 + confidence) / 2)
    return z * math.sqrt(variance) + z * z / (2 * n) + 1 / (2 * m)


def test_the_interval_of_the_threshold_by_hand():
    # three are wrong, so what exceeds 2 is counted as wrong, and two of the three that equal it
    doubt, wrong = [1, 1, 2, 2, 2, 3], [False, True, False, True, False, True]
    below = 1.5 / 3  # (wrong + ½) / (2 + 1)
    at = (1.5 * (1 / 3) ** 2 + 2.5 * (2 / 3) ** 2) / 4
    above = 0.5 / 2  # (right + ½) / (1 + 1)
    told = AccuracyEstimator(doubt, wrong).estimate([1, 2, 3, 3], 0.2)
    variance = (below / 4 + at / 4 + above / 2) * (1 / 4 + 1 / 6)
    assert told.accuracy == pytest.approx(1 - (2 / 3 / 4 + 1 / 2))
    assert told.high - told.accuracy == pytest.approx(margin(variance, 6, 4, 0.2))
    assert told.accuracy - told.low == pytest.approx(margin(variance, 6, 4, 0.2))


def test_the_interval_of_isotonic_steps_by_hand():
    # groups of √25 = 5 with 0, 1, 1, 3 and 4 errors: the second and the third are one step
    doubt = np.arange(25.0)
    wrong = np.zeros(25, bool)
    wrong[[6, 13, 16, 17, 18, 20, 21, 22, 23]] = True
    steps = [(0, 5), (2, 10), (3, 5), (4, 5)]  # errors, held-out predictions
    smooth = [(errors + 0.5) / (count + 1) for errors, count in steps]
    told = AccuracyEstimator(doubt, wrong, "isotonic").estimate([3, 7, 13, 17, 18, 22, 23, 24], 0.4)
    shares = [1 / 8, 2 / 8, 2 / 8, 3 / 8]
    spread = [rate * (1 - rate) for rate in smooth]
    variance = sum(v * s / 8 for v, s in zip(shares, spread, strict=True))
    variance += sum(
        v**2 * s / count for v, s, (_, count) in zip(shares, spread, steps, strict=True)
    )
    rates = [errors / count for errors, count in steps]
    assert told.accuracy == pytest.approx(1 - np.dot(shares, rates))
    assert told.high - told.accuracy == pytest.approx(margin(variance, 25, 8, 0.4))
    assert told.accuracy - told.low == pytest.approx(margin(variance, 25, 8, 0.4))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [False, True])
def test_one_held_out_prediction_says_little(method, error):
    told = AccuracyEstimator([1.0], [error], method).estimate(np.ones(1000))
    assert told.accuracy == 1 - error
    assert told.high - told.low > 0.7


def test_bounds_narrow_with_data_and_widen_with_confidence(rng):
    few = AccuracyEstimator(*draw(rng, 100, "fair")).estimate(rng.uniform(size=100))
    many = AccuracyEstimator(*draw(rng, 10_000, "fair")).estimate(rng.uniform(size=10_000))
    sure = AccuracyEstimator(*draw(rng, 100, "fair")).estimate(rng.uniform(size=100), 0.999)
    assert many.high - many.low < few.high - few.low < sure.high - sure.low


def test_the_function_takes_a_calibration_and_tensors(rng):
    doubt, wrong = draw(rng, 400, "fair")
    window = torch.from_numpy(rng.uniform(size=50))
    told = estimate_accuracy(window, Calibration(doubt, wrong), confidence=0.9, method="isotonic")
    assert told == AccuracyEstimator(doubt, wrong, "isotonic").estimate(window, 0.9)


@pytest.mark.parametrize(
    ("call", "phrase"),
    [
        (lambda: estimate_accuracy([1.0], Calibration([1.0])), "no known errors"),
        (lambda: estimate_accuracy([1.0], [1.0]), "a Calibration is needed, got list"),
        (
            lambda: estimate_accuracy(np.ones((9, 4)), Calibration([1.0], [True])),
            r"got shape \(9, 4\)\. Pass model\(inputs\)",
        ),
        (lambda: AccuracyEstimator([1.0], [True], "isotonc"), "Did you mean 'isotonic'"),
        (lambda: AccuracyEstimator([1.0], [True]).estimate([]), "uncertainty is empty"),
        (lambda: AccuracyEstimator([1.0], [True]).estimate([1.0], 95), "Try 0.95."),
    ],
)
def test_invalid_arguments_are_rejected(call, phrase):
    with pytest.raises(QIPFInputError, match=phrase):
        call()


#: Error rates at uniform uncertainties for which a normal interval is too short.
HARD = {
    "known errors": lambda u: (u > 0.93).astype(float),
    "accurate": lambda u: 1 / (1 + np.exp(-12 * (u - 1.05))),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", HARD)
def test_few_errors_of_few_held_out_predictions_are_covered_too(rate, method):
    """A part of benchmarks/accuracy_intervals.py; a normal interval covers 84 to 91 %."""
    rng, hits, draws = np.random.default_rng(0), 0, 400
    for _ in range(draws):
        held_out, window = rng.uniform(size=100), rng.uniform(size=1000)
        wrong = rng.uniform(size=100) < HARD[rate](held_out)
        found = AccuracyEstimator(held_out, wrong, method).estimate(window)
        truth = 1 - np.mean(rng.uniform(size=1000) < HARD[rate](window))
        hits += found.low <= truth <= found.high
    assert binom.cdf(hits, draws, 0.95) > 0.01


def log_odds_case(rng, count, shift=0.0):
    """Log-odds that are too low by a constant, errors, and novelties."""
    odds = 2 * rng.normal(size=count) - 3 + shift
    wrong = rng.uniform(size=count) < 1 / (1 + np.exp(-odds))
    return odds - 0.7, wrong, rng.normal(size=count)


def test_log_odds_are_right_on_the_held_out_predictions(rng):
    odds, wrong, novelty = log_odds_case(rng, 2000)
    told = AccuracyEstimator(odds, wrong, "log_odds", novelty).estimate(odds, novelty=novelty)
    assert told.accuracy == pytest.approx(1 - (wrong.sum() + 0.5) / 2001, abs=1e-9)
    assert told.novel == pytest.approx(0.05, abs=1e-3)
    assert told.reliable


@pytest.mark.slow
def test_log_odds_follow_a_shift_and_their_interval_holds(rng):
    repeats, inside, errors = 400, 0, []
    for shift in (0.0, 1.5):
        for _ in range(repeats // 2):
            estimator = AccuracyEstimator(*log_odds_case(rng, 1000)[:2], "log_odds")
            odds, wrong, _ = log_odds_case(rng, 500, shift)
            told, truth = estimator.estimate(odds), 1 - wrong.mean()
            inside += told.low <= truth <= told.high
            errors.append(told.accuracy - truth)
    assert inside / repeats > 0.95 - 3 * np.sqrt(0.95 * 0.05 / repeats)
    assert abs(np.mean(errors)) < 0.005


def test_a_novel_window_keeps_its_own_log_odds(rng):
    odds, wrong, novelty = log_odds_case(rng, 1000)
    estimator = AccuracyEstimator(odds, wrong, "log_odds", novelty)
    window = np.full(50, -1.0)
    told = estimator.estimate(window, novelty=np.full(50, 9.0))
    assert told.accuracy == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert (told.novel, told.reliable) == (1.0, False)
    usual = estimator.estimate(window, novelty=np.full(50, -9.0))
    assert usual.accuracy < told.accuracy  # the log-odds were too low
    assert (usual.novel, usual.reliable) == (0.0, True)
    assert estimator.estimate(window).reliable is None
    assert estimator.estimate(window).accuracy == usual.accuracy
    assert estimator.estimate([np.nan]).accuracy == 0.0


def test_log_odds_of_an_accurate_model_whose_novel_inputs_are_overrated(rng):
    """The errors that novel inputs promise are more than all errors that there are."""

    def draw_accurate(count):
        novel = rng.uniform(size=count) < 0.05
        odds = np.where(novel, rng.normal(-1.5, 1, count), rng.normal(-6, 1, count))
        rate = np.where(novel, 0.03, 1 / (1 + np.exp(-odds)))
        return odds, rng.uniform(size=count) < rate, novel + rng.uniform(size=count)

    inside = 0
    for _ in range(40):
        odds, wrong, novelty = draw_accurate(5000)
        estimator = AccuracyEstimator(odds, wrong, "log_odds", novelty)
        odds, wrong, novelty = draw_accurate(5000)
        told = estimator.estimate(odds, novelty=novelty)
        inside += told.low <= 1 - wrong.mean() <= told.high
    assert inside >= 35  # of 40 at 95 %: fewer have a probability of 0.003


@pytest.mark.parametrize("wrong", [np.zeros(30, bool), np.ones(30, bool)])
def test_log_odds_of_predictions_that_are_all_right_or_all_wrong(wrong):
    told = AccuracyEstimator(np.linspace(-60, 60, 30), wrong, "log_odds").estimate(np.zeros(4))
    assert 0 <= told.low <= told.accuracy <= told.high <= 1


def test_a_prediction_says_which_estimator_it_needs(rng):
    odds, wrong, novelty = log_odds_case(rng, 500)
    held_out = Calibration(odds, wrong, novelty=novelty)
    given = Prediction(None, None, odds, p_error=1 / (1 + np.exp(-odds)), novelty=novelty)
    expected = AccuracyEstimator(odds, wrong, "log_odds", novelty).estimate(odds, novelty=novelty)
    assert estimate_accuracy(given, held_out) == expected
    assert estimate_accuracy(given, held_out, method="threshold").accuracy == pytest.approx(
        1 - wrong.mean()
    )
    assert estimate_accuracy(odds, held_out) == estimate_accuracy(odds, held_out, 0.95, "threshold")


def test_inputs_are_novel_above_the_next_of_the_held_out_novelties(rng):
    """At most 5 % of the held-out inputs are novel: of 50, those above the second highest."""
    doubt, wrong = draw(rng, 50, "fair")
    estimator = AccuracyEstimator(doubt, wrong, novelty=rng.permutation(50.0 + np.arange(50)))
    told = estimator.estimate([0.1] * 4, novelty=[96.5, 97.0, 97.5, np.nan])
    assert told.novel == 0.5


def test_novelties_of_other_predictions_are_refused(rng):
    odds, wrong, novelty = log_odds_case(rng, 100)
    estimator = AccuracyEstimator(odds, wrong, "log_odds", novelty)
    with pytest.raises(QIPFInputError, match="one per prediction"):
        estimator.estimate(odds, novelty=novelty[:50])


def test_predictions_in_surplus_are_counted_as_wrong(rng):
    """A window whose predictions collapsed into one class, at uncertainties as usual."""
    counts = np.array([400, 300, 300])
    doubt, wrong = draw(rng, 1000, "fair")
    usual = AccuracyEstimator(doubt, wrong)
    estimator = AccuracyEstimator(doubt, wrong, class_counts=counts)
    without = usual.estimate(doubt, predicted=np.zeros(1000))  # it knows no held-out shares
    collapsed = estimator.estimate(doubt, predicted=np.zeros(1000))
    p = (counts + np.array([1000, 0, 0]) + 0.5) / 2001.5
    rho = -np.sqrt(np.outer(p, p) / np.outer(1 - p, 1 - p))
    np.fill_diagonal(rho, 1)
    sigma = np.sqrt(p * (1 - p) * (1 / 1000 + 1 / 1000))
    variance = (1 - 2 / np.pi) * (np.outer(sigma, sigma) * rho**2).sum()
    chance = np.sqrt(2 / np.pi) * sigma.sum() + 2 * np.sqrt(variance)
    assert without.surplus is None
    assert collapsed.surplus == pytest.approx(0.6 - chance / 2, abs=1e-12)
    assert collapsed.accuracy == pytest.approx(without.accuracy * (1 - collapsed.surplus))
    assert "more of some classes than expected" in str(collapsed)
    same = estimator.estimate(doubt, predicted=np.repeat([0, 1, 2], counts))
    assert (same.accuracy, same.surplus) == (without.accuracy, 0.0)
    assert "than expected" not in str(same)


def test_a_surplus_by_chance_is_rare(rng):
    for classes, window in ((2, 50), (10, 200), (150, 1000), (2000, 1000), (2000, 5000)):
        shares = rng.dirichlet(np.full(classes, 3.0))
        found = []
        for _ in range(400):
            held_out = rng.multinomial(2000, shares)
            estimator = AccuracyEstimator([0.1, 0.9], [False, True], class_counts=held_out)
            told = estimator.estimate(
                np.zeros(window), predicted=rng.choice(classes, window, p=shares)
            )
            found.append(told.surplus > 0)
        assert np.mean(found) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 400)


def test_predictions_of_no_class_and_of_unknown_classes():
    estimator = AccuracyEstimator([0.1, 0.9], [False, True], class_counts=[1, 1])
    assert estimator.estimate([0.1, 0.2], predicted=[-1, -1]).surplus == 0.0
    for predicted in ([0, 2], [0], [0.5, 1]):
        with pytest.raises(QIPFInputError, match="predicted must hold a class from 0 to 1"):
            estimator.estimate([0.1, 0.2], predicted=predicted)
    for counts in ([], [0, 0], [-1, 2], [0.5, 1.0], [[1, 2]]):
        with pytest.raises(QIPFInputError, match="class_counts must hold whole numbers"):
            AccuracyEstimator([0.1, 0.9], [False, True], class_counts=counts)


def test_the_classes_of_predictions_are_heard_unless_they_may_shift(rng):
    doubt, wrong = draw(rng, 1000, "fair")
    held_out = Calibration(doubt, wrong, class_counts=[500, 500])
    window = Prediction(np.zeros((400, 2)), np.zeros(400, int), doubt[:400])
    told = estimate_accuracy(window, held_out)
    unheard = estimate_accuracy(window, held_out, label_shift=True)
    assert 0.4 < told.surplus < 0.5
    assert unheard.surplus is None
    assert told.accuracy == pytest.approx(unheard.accuracy * (1 - told.surplus))
    pixels = Prediction(np.zeros((20, 2, 20)), np.zeros((20, 20), int), doubt[:400])
    assert estimate_accuracy(pixels, held_out).surplus is None


def test_predictions_of_another_model_are_refused(rng):
    rows = rng.normal(size=(3, 200, 4))
    one, other = (
        QIPF(bandwidth=1.0).fit(rows[0]).calibrate(rows[k], wrong=rows[k, :, 0] > 1.5)
        for k in (1, 2)
    )
    window = wrap(torch.nn.Identity(), field=one)(torch.from_numpy(rows[2]))
    estimate_accuracy(window, one)
    estimate_accuracy(window, other.calibration_)  # a set of one's own says nothing of a model
    expected = "another calibration set, than held_out's. Pass a Prediction of held_out's model."
    with pytest.raises(QIPFInputError, match=expected):
        estimate_accuracy(window, other)


@pytest.mark.parametrize("informed", [True, False])
def test_the_interval_of_log_odds_by_hand(rng, informed):
    odds, wrong, _ = log_odds_case(rng, 400)
    wrong = wrong if informed else rng.permutation(wrong)
    window = log_odds_case(rng, 60)[0]
    found = AccuracyEstimator(odds, wrong, "log_odds").estimate(window, 0.9)
    rate = (wrong.sum() + 0.5) / 401
    constant = brentq(lambda c: expit(odds + c).mean() - rate, -20, 20, xtol=1e-14)
    p = expit(window + constant)
    assert found.accuracy == pytest.approx(1 - p.mean(), abs=1e-9)
    z = norm.ppf(0.95)
    missed = ((expit(odds + constant) - wrong) ** 2).mean()
    assert (missed > rate * (1 - rate)) == (not informed)
    on_window, held_out = (max(v, missed) for v in ((p * (1 - p)).mean(), rate * (1 - rate)))
    variance = on_window / 60 + held_out / 400
    margin = z * np.sqrt(variance) + z**2 / 800 + 1 / 120
    assert found.high == pytest.approx(min(1, found.accuracy + margin), abs=1e-9)
    assert found.low == pytest.approx(found.accuracy - margin, abs=1e-9)


def test_other_classes_than_expected_are_not_reliable(rng):
    """As many as a shift of the classes, or errors, would leave."""
    odds, wrong, novelty = log_odds_case(rng, 1000)
    estimator = AccuracyEstimator(odds, wrong, "log_odds", novelty, [500, 500])
    window, usual = odds[:400], np.full(400, -9.0)
    equal = estimator.estimate(window, novelty=usual, predicted=np.arange(400) % 2)
    assert (equal.surplus, equal.reliable) == (0.0, True)
    assert "far off" not in str(equal)
    one = estimator.estimate(window, novelty=usual, predicted=np.zeros(400))
    assert one.surplus > 0.4
    assert (one.novel, one.reliable) == (0.0, False)
    unknown = estimator.estimate(window, predicted=np.zeros(400))
    assert (unknown.novel, unknown.reliable) == (None, False)
    assert str(one).endswith(
        "so the estimate may be far off; if classes may occur in other shares than there, pass "
        "label_shift=True"
    )
    novel = estimator.estimate(window, novelty=-usual, predicted=np.arange(400) % 2)
    assert str(novel).endswith("so the estimate may be far off")


def test_one_prediction_is_no_plural():
    estimator = AccuracyEstimator([0.5], [False])
    assert str(estimator.estimate([0.1])).endswith("of 1 prediction, from 1 held-out one")
    assert str(estimator.estimate([0.1, 0.2])).endswith("of 2 predictions, from 1 held-out one")
