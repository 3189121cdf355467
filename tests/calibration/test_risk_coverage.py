"""risk_coverage and the bounds under it: exact, tied groups together."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from qipf import QIPFInputError, risk_coverage
from qipf.calibration.risk_coverage import upper_bound
from qipf.metrics.error_detection import aurc


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 500), share=st.floats(0, 1), level=st.sampled_from([0.01, 0.05, 0.5]))
def test_the_upper_bound_inverts_the_binomial_tail(count, share, level):
    errors = int(share * count)
    bound = float(upper_bound(errors, count, level))
    if errors == count:
        assert bound == 1.0
    else:
        assert binom.cdf(errors, count, bound) == pytest.approx(level, rel=1e-6)


def naive(uncertainty, wrong, tail):
    rows = []
    for threshold in np.unique(uncertainty):
        kept = wrong[uncertainty <= threshold]
        n, s = len(kept), int(kept.sum())
        low = beta.ppf(tail, s, n - s + 1) if s else 0.0
        high = beta.isf(tail, s + 1, n - s) if s < n else 1.0
        rows.append((threshold, n / len(wrong), s / n, low, high))
    return np.array(rows).T


@pytest.mark.parametrize("levels", [5, 10_000])
def test_the_curve_equals_its_definition(levels):
    rng = np.random.default_rng(0)
    uncertainty = rng.integers(0, levels, 300) / levels
    wrong = rng.random(300) < uncertainty
    curve = risk_coverage(uncertainty, wrong, confidence=0.9)
    found = np.stack([curve.thresholds, curve.coverage, curve.risk, curve.low, curve.high])
    np.testing.assert_allclose(found, naive(uncertainty, wrong, 0.05), rtol=1e-6, atol=1e-12)
    assert curve.confidence == 0.9
    assert curve.coverage[-1] == 1.0
    assert curve.risk[-1] == wrong.mean()


def test_the_area_under_the_curve_is_the_one_the_benchmark_measures():
    rng = np.random.default_rng(1)
    uncertainty, wrong = rng.random(500), rng.random(500) < 0.2
    assert risk_coverage(uncertainty, wrong).risk.mean() == pytest.approx(aurc(uncertainty, wrong))


@pytest.mark.slow
def test_the_band_holds_at_a_threshold_fixed_beforehand():
    rng, inside = np.random.default_rng(2), 0
    for _ in range(1000):
        uncertainty = rng.random(400)
        wrong = rng.random(400) < 0.4 * uncertainty
        curve = risk_coverage(uncertainty, wrong)
        at = np.searchsorted(curve.thresholds, 0.5, side="right") - 1
        inside += bool(curve.low[at] <= 0.1 <= curve.high[at])  # the mean of 0.4 u up to 0.5
    assert inside / 1000 >= 0.95 - 0.014  # exact intervals are conservative


def test_bad_input_is_refused():
    with pytest.raises(
        QIPFInputError, match=re.escape("confidence must lie between 0 and 1, got 2")
    ):
        risk_coverage([1.0], [True], confidence=2)
    with pytest.raises(QIPFInputError, match="uncertainty has 1 values that are not finite"):
        risk_coverage([np.inf], [True])
