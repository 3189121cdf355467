"""Conformal p-values: counted by hand, uniform by simulation, refused when they could not hold."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from qipf import QIPF, QIPFInputError, QIPFNotFittedError
from qipf.calibration import conformal
from qipf.calibration.conformal import Calibration

FEW = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@given(FEW, FEW)
def test_it_counts_what_the_definition_counts(held_out, scores):
    calibration = Calibration(held_out)
    expected = [(1 + sum(h >= s for h in held_out)) / (len(held_out) + 1) for s in scores]
    np.testing.assert_array_equal(calibration.p_values(scores), expected)


@given(FEW, FEW, st.floats(0.01, 0.99))
def test_smoothed_it_counts_what_the_definition_counts(held_out, scores, u):
    smoothed = Calibration(held_out).p_values(scores, np.full(len(scores), u))
    n = len(held_out)
    expected = [
        (sum(h > s for h in held_out) + u * (1 + sum(h == s for h in held_out))) / (n + 1)
        for s in scores
    ]
    np.testing.assert_allclose(smoothed, expected, rtol=1e-15)
    assert (smoothed <= Calibration(held_out).p_values(scores)).all()


@pytest.mark.slow
@pytest.mark.parametrize("levels", [2, 5, None])
@pytest.mark.parametrize("size", [1, 19, 200])
def test_exchangeable_scores_get_valid_p_values_ties_or_not(rng, size, levels):
    plain, smoothed = [], []
    for _ in range(4000):
        scores = rng.normal(size=size + 1)
        if levels:
            scores = np.floor(levels * rng.uniform(size=size + 1) ** 2)
        calibration = Calibration(scores[:-1])
        plain.append(calibration.p_values(scores[-1:])[0])
        smoothed.append(calibration.p_values(scores[-1:], rng.uniform(size=1))[0])
    assert kstest(smoothed, "uniform").pvalue > 1e-3
    for t in (0.01, 0.05, 0.1, 0.25, 0.5, 0.9):
        assert np.mean(np.array(plain) <= t) <= t + 3 * np.sqrt(t * (1 - t) / 4000)


def test_nan_and_inf_are_the_most_unusual():
    calibration = Calibration([1.0, 2.0, 3.0])
    assert calibration.p_values([np.nan, np.inf, -np.inf]).tolist() == [0.25, 0.25, 1.0]
    assert calibration.p_values([np.nan], [0.5]).tolist() == [0.125]


def test_a_tensor_comes_back_as_a_tensor():
    calibration = Calibration(torch.tensor([1.0, 2.0], dtype=torch.float32))
    p = calibration.p_values(torch.tensor([1.5]))
    assert isinstance(p, torch.Tensor)
    assert p.tolist() == [2 / 3]
    assert isinstance(calibration.p_values([1.5]), np.ndarray)


def test_errors_stay_with_their_scores():
    calibration = Calibration([3.0, 1.0, 2.0], [True, False, True])
    assert calibration.scores.tolist() == [1.0, 2.0, 3.0]
    assert calibration.wrong.tolist() == [False, True, True]
    assert repr(calibration) == "Calibration(3 scores, 2 of them wrong)"
    assert repr(Calibration([1.0])) == "Calibration(1 scores)"


def test_the_digest_tells_scores_and_errors_apart():
    digests = {
        Calibration([1.0, 2.0]).digest,
        Calibration([1.0, 2.5]).digest,
        Calibration([1.0, 2.0], [False, True]).digest,
        Calibration([1.0, 2.0], [True, False]).digest,
    }
    assert len(digests) == 4
    assert Calibration([2.0, 1.0], [True, False]).digest in digests


@pytest.mark.slow
def test_of_too_many_a_random_part_is_kept(monkeypatch, rng):
    monkeypatch.setattr(conformal, "MOST_SCORES", 50)
    smoothed = []
    for _ in range(3000):
        scores = rng.normal(size=121)
        kept = Calibration(scores[:-1], scores[:-1] > 0)
        assert len(kept) == 50
        np.testing.assert_array_equal(kept.wrong, kept.scores > 0)
        smoothed.append(kept.p_values(scores[-1:], rng.uniform(size=1))[0])
    assert kstest(smoothed, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (([],), "scores is empty"),
        (([1.0, np.nan, np.inf],), "scores has 2 values that are not finite (first: row 1"),
        (([[1.0]],), "got shape (1, 1)"),
        ((["a"],), "real numbers, got <U1"),
        (([1j],), "real numbers, got complex128"),
        (([[1.0], [2.0, 3.0]],), "scores is not an array of numbers"),
        (([1.0], [True, False]), "wrong must have the shape of scores"),
        (([1.0], [2]), "wrong must hold booleans"),
        (([1.0, 2.0], [[True], [False, True]]), "wrong is not an array of numbers"),
    ],
)
def test_invalid_scores_are_rejected(arguments, phrase):
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        Calibration(*arguments)


@pytest.mark.parametrize("uniforms", [[0.5], [0.5, 0.0], [0.5, np.nan]])
def test_invalid_uniforms_are_rejected(uniforms):
    with pytest.raises(QIPFInputError, match="uniforms must"):
        Calibration([1.0]).p_values([1.0, 2.0], uniforms)


def test_a_calibrated_model_has_a_calibration_and_nothing_else_has():
    class Model:
        calibration_ = Calibration([1.0, 2.0])

        def calibrate(self):
            pass

    model = Model()
    assert conformal.calibration_of(model) is Model.calibration_
    assert conformal.calibration_of(Model.calibration_) is Model.calibration_
    model.calibration_ = None
    with pytest.raises(QIPFNotFittedError, match="This Model is not calibrated"):
        conformal.calibration_of(model)
    with pytest.raises(QIPFNotFittedError, match="not fitted yet"):
        conformal.calibration_of(QIPF())
    with pytest.raises(QIPFInputError, match="or a Calibration is needed, got list"):
        conformal.calibration_of([1.0])


@given(st.integers(1, 40), st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.5]))
def test_above_the_outlier_limit_p_values_are_at_most_the_share(count, share):
    held_out = Calibration(np.arange(1.0, count + 1))
    limit = held_out.outlier_limit(share)
    scores = np.arange(0.5, count + 2)
    np.testing.assert_array_equal(scores > limit, held_out.p_values(scores) <= share)


def test_scores_are_measured_from_zero_unless_told_otherwise():
    assert Calibration([1.0, 2.0]).origin == 0.0
