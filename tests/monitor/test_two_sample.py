"""Statistics of a window, against SciPy's two-sample statistics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp, kstwobign, mannwhitneyu

from qipf.calibration.conformal import Calibration
from qipf.calibration.quantization import rounded
from qipf.monitor.two_sample import WindowStatistics, window_statistics

SCORES = st.lists(st.integers(-4, 4), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_they_equal_the_definitions(held_out, scores):
    told = window_statistics(Calibration(held_out), np.array(scores, float), 0)
    differences = [np.mean(np.less_equal(scores, s)) - np.mean(np.less_equal(held_out, s))
                   for s in range(-4, 5)]  # fmt: skip
    assert told.ks == pytest.approx(np.abs(differences).max(), abs=1e-12)
    pairs = [np.sign(score - other) for score in scores for other in held_out]
    assert told.superiority == pytest.approx(0.5 + np.mean(pairs) / 2)
    assert told.mean_p == pytest.approx(Calibration(held_out).p_values(scores).mean())


def test_they_equal_scipy(rng):
    held_out, scores = rounded(rng.normal(size=900)), rounded(rng.normal(loc=0.1, size=400))
    told = window_statistics(Calibration(held_out), scores, 0)
    assert told.ks == pytest.approx(ks_2samp(scores, held_out).statistic)
    assert told.ks_p_value == pytest.approx(kstwobign.sf(told.ks * np.sqrt(900 * 400 / 1300)))
    assert told.superiority == pytest.approx(mannwhitneyu(scores, held_out).statistic / 360_000)


def test_rounding_differences_of_batches_do_not_count(rng):
    kinds = np.array([0.37, 1.13, 2.71])
    drawn, held_out = kinds[rng.integers(0, 3, 300)], Calibration(kinds[rng.integers(0, 3, 500)])
    noise = 1 + 4e-6 * rng.uniform(-1, 1, size=300)
    assert window_statistics(held_out, drawn * noise, 0) == window_statistics(held_out, drawn, 0)


def test_nan_is_the_highest():
    told = window_statistics(Calibration([1.0, 2.0]), np.array([np.nan, np.nan]), 2)
    assert (told.ks, told.superiority, told.mean_p) == (1.0, 1.0, 1 / 3)
    assert (told.count, told.abstained) == (2, 2)


def test_an_empty_window_differs_from_nothing():
    empty = window_statistics(Calibration([1.0]), np.empty(0), 0)
    assert empty == WindowStatistics(0, 0.0, 1.0, 0.5, 0.5, 0)
