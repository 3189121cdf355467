"""The script that looks for poles and for the order by density."""

import math

import numpy as np
import pytest
from numpy.polynomial.hermite import Hermite

from qipf import QIPF
from tests.docs.scripts import script


@pytest.fixture(scope="module")
def readings():
    return script("readings")


def test_poles_are_the_zeros_of_the_hermite_polynomials(readings):
    for order, poles in readings.POLES.items():
        roots = Hermite.basis(order).roots()
        squares = sorted({round(float(root) ** 2, 9) for root in roots if abs(root) > 1e-9})
        assert squares == pytest.approx(poles)


def test_a_pole_inside_the_densities_is_named(readings):
    rows = np.random.default_rng(0).normal(size=(200, 1))
    field = QIPF(normalization="peak", bandwidth=1.0).fit(rows)
    around = np.log(np.linspace(0.3, 0.6, 100))
    assert readings.reached(field, around) == "order 2 at ψ² = 0.50"
    assert readings.reached(field, around - 5) == "none"
    other = QIPF(normalization="standard", bandwidth=1.0).fit(rows)
    assert readings.reached(other, around + 0.5 * math.log(2 * math.pi)) == "order 2 at ψ² = 0.50"


@pytest.mark.parametrize(
    ("medians", "falls"),
    [
        ([5, 4, 3, 2, 1], True),
        ([5, 4, 4.3, 2, 1], True),  # a tenth of the range is allowed
        ([5, 4, 4.5, 2, 1], False),
        ([5, 4, 4.3, 4.5, 1], False),  # two small rises are one
        ([1, 2, 3, 4, 5], False),
    ],
)
def test_a_rise_of_a_tenth_of_the_range_is_too_much(readings, medians, falls):
    assert readings.monotone(np.array(medians, float)) is falls
