"""Rounding: a fixed, rising function of the score, coarser than what batches differ by."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf.calibration.quantization import DIGITS, below, highest, rounded

FINITE = st.floats(-1e300, 1e300)


def naive(score):
    """To so many binary digits, halves away from zero."""
    if score == 0:
        return 0.0
    digits, power = math.frexp(abs(score))
    return math.copysign(math.ldexp(math.floor(digits * 2**DIGITS + 0.5), power - DIGITS), score)


@given(FINITE.filter(lambda score: score == 0 or abs(score) > 1e-300))
def test_it_is_the_nearest_of_so_many_digits(score):
    assert rounded(np.array([score]))[0] == naive(score)


@given(st.floats(), st.floats())
def test_it_keeps_the_order_with_nan_as_the_highest(a, b):
    low, high = sorted(np.inf if np.isnan(score) else score for score in (a, b))
    values = rounded(np.array([low, high]))
    assert values[0] <= values[1]
    again = rounded(values)
    np.testing.assert_array_equal(again, values)
    assert rounded(np.array([np.nan]))[0] == np.inf
    assert np.isfinite(values[np.isfinite([low, high])]).all()


@given(FINITE)
def test_the_highest_number_of_a_step_is_the_last_that_is_rounded_to_it(score):
    step = rounded(np.array([score]))[0]
    last = highest(float(step))
    assert last >= score
    assert rounded(np.array([last]))[0] == step
    assert rounded(np.array([np.nextafter(last, np.inf)]))[0] > step


@given(FINITE)
def test_below_a_step_is_the_last_number_before_it(score):
    step = rounded(np.array([score]))[0]
    last = below(float(step))
    assert rounded(np.array([last]))[0] < step
    assert rounded(np.array([np.nextafter(last, np.inf)]))[0] == step


def test_the_last_step_ends_at_the_largest_number():
    largest = np.finfo(float).max
    assert highest(float(rounded(np.array([largest]))[0])) == largest


@pytest.mark.parametrize("score", [0.37, -1.13, 100.0])
def test_what_batches_differ_by_is_rounded_off(score):
    noise = 1 + np.linspace(-5e-6, 5e-6, 11)
    assert len(set(rounded(score * noise))) == 1


@given(FINITE, st.floats(-1e6, 1e6))
def test_the_origin_is_subtracted_before_rounding(score, origin):
    assert rounded(np.array([score]), origin)[0] == rounded(np.array([score - origin]))[0]
