"""Accuracy without labels: right on average and inside its bounds on data like the held-out set."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from qipf import AccuracyEstimator, QIPFInputError, estimate_accuracy
from qipf.calibration.accuracy import METHODS
from qipf.calibration.conformal import Calibration

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
        (lambda: AccuracyEstimator([1.0], [True], "isotonc"), "Did you mean 'isotonic'"),
        (lambda: AccuracyEstimator([1.0], [True]).estimate([]), "uncertainty is empty"),
        (lambda: AccuracyEstimator([1.0], [True]).estimate([1.0], 95), "confidence must lie"),
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
