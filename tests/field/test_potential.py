"""Closed forms against automatic Hessians, and every law of the potential."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.hermite import hermval

from qipf import QIPFInputError
from qipf.field.engines import Moments
from qipf.field.potential import (
    bare_modes,
    checked_orders,
    checked_softening,
    curvature,
    ground_energies,
    slope,
)
from tests.field.conftest import moments


def hermite(p, t):
    """h_p = H_p/√(2^p p!) by the three-term recurrence of the physicists' polynomials."""
    before, now = torch.zeros_like(t), torch.ones_like(t)
    for n in range(p):
        before, now = now, 2 * t * now - 2 * n * before
    return now / math.sqrt(2.0**p * math.factorial(p))


def wave(x, centers, bandwidth):
    squared = ((x - centers) ** 2).sum(1)
    return torch.exp(-squared / (2 * bandwidth**2)).mean().sqrt()


def automatic(x, centers, bandwidth, order, softening=0.0):
    """(σ²/2)∇²f/f of f = √(ψ_p²+ε²), by differentiating twice."""

    def f(point):
        mode = hermite(order, wave(point, centers, bandwidth))
        return torch.sqrt(mode**2 + softening**2) if softening else mode

    hessian = torch.autograd.functional.hessian(f, x)
    return float(bandwidth**2 / 2 * hessian.diagonal().sum() / f(x))


@pytest.mark.slow
@pytest.mark.parametrize("softening", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("dimension", [1, 2, 10])
def test_modes_equal_automatic_hessians(dimension, softening):
    generator = torch.Generator().manual_seed(dimension)
    centers = torch.randn(30, dimension, generator=generator, dtype=torch.float64)
    queries = torch.randn(6, dimension, generator=generator, dtype=torch.float64)
    bandwidth = 1.3 * math.sqrt(dimension)
    found = bare_modes(moments(queries, centers, bandwidth), bandwidth, range(1, 9), softening)
    for row, x in zip(found, queries, strict=True):
        for value, order in zip(row, range(1, 9), strict=True):
            expected = automatic(x, centers, bandwidth, order, softening)
            assert float(value) == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_curvature_and_slope_equal_automatic_derivatives():
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    x = torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_()
    at = moments(x.detach()[None], centers, 0.9)
    psi = wave(x, centers, 0.9)
    (gradient,) = torch.autograd.grad(psi, x)
    expected = 0.9**2 / 2 * gradient.square().sum() / psi.detach() ** 2
    assert float(slope(at, 0.9)) == pytest.approx(float(expected), rel=1e-10)
    assert float(curvature(at, 0.9)) == pytest.approx(
        automatic(x.detach(), centers, 0.9, 1), rel=1e-10
    )


numbers = st.floats(-50, 50, allow_nan=False)
points = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(centers=points, queries=points, bandwidth=st.floats(0.01, 100))
def test_curvature_is_bounded_below(centers, queries, bandwidth):
    at = moments(
        torch.tensor(queries, dtype=torch.float64),
        torch.tensor(centers, dtype=torch.float64),
        bandwidth,
    )
    K, S = curvature(at, bandwidth), slope(at, bandwidth)
    assert (S >= 0).all()
    assert (K >= S - 3 / 4 - 1e-9 * (1 + S)).all()


@settings(max_examples=40, deadline=None)
@given(x=st.tuples(numbers, numbers), bandwidth=st.floats(0.1, 10))
def test_one_centre_is_the_harmonic_oscillator(x, bandwidth):
    at = moments(torch.tensor([x], dtype=torch.float64), torch.zeros(1, 2).double(), bandwidth)
    r_squared = x[0] ** 2 + x[1] ** 2
    assert float(curvature(at, bandwidth)) == pytest.approx(
        r_squared / (8 * bandwidth**2) - 2 / 4, rel=1e-9, abs=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(centers=points, queries=points, bandwidth=st.floats(0.05, 20))
def test_the_first_mode_is_the_potential(centers, queries, bandwidth):
    at = moments(
        torch.tensor(queries, dtype=torch.float64),
        torch.tensor(centers, dtype=torch.float64),
        bandwidth,
    )
    torch.testing.assert_close(
        bare_modes(at, bandwidth, [1])[:, 0], curvature(at, bandwidth), rtol=1e-12, atol=1e-12
    )


def test_softening_vanishes_continuously():
    at = moments(torch.linspace(-2, 2, 9).double()[:, None], torch.zeros(3, 1).double(), 1.0)
    exact = bare_modes(at, 1.0, (1, 3, 5))
    torch.testing.assert_close(bare_modes(at, 1.0, (1, 3, 5), 1e-9), exact, rtol=1e-6, atol=1e-6)


def artificial(log_density, m1_squared, m2, dimension=2):
    return Moments(
        *(torch.tensor(v, dtype=torch.float64) for v in (log_density, m1_squared, m2)), dimension
    )


def near_pole(distance):
    """Where h_2(ψ), which is zero at ψ² = 1/2, is `distance` away from it."""
    return artificial([math.log(0.5 + distance / math.sqrt(2))], [1.0], [4.0])


def test_a_pole_is_high_on_one_side_deep_on_the_other_and_finite():
    before, after = (float(bare_modes(near_pole(x), 1.0, [2])[0, 0]) for x in (-1e-6, 1e-6))
    assert before == pytest.approx(-after, rel=1e-4)
    assert abs(after) > 1e5
    extremes = [
        float(bare_modes(near_pole(x), 1.0, [2])[0, 0]) for x in (-1e-8, -1e-12, 0, 1e-12, 1e-8)
    ]
    assert np.abs(extremes).max() < 1e8


def test_a_softened_pole_keeps_its_kinetic_energy():
    energy = 4 * 0.5 * (1 / 8)  # G_2 = h_2'² ψ² S with h_2' = √8 ψ = 2
    softened = float(bare_modes(near_pole(0.0), 1.0, [2], 0.1)[0, 0])
    assert softened == pytest.approx(energy / 0.1**2)  # all that is left where ψ_2 = 0


def test_gradients_are_finite_on_a_pole():
    log_density = torch.tensor([math.log(0.5)], dtype=torch.float64, requires_grad=True)
    at = Moments(log_density, torch.ones(1).double(), 4 * torch.ones(1).double(), 2)
    bare_modes(at, 1.0, (1, 2, 3, 4)).sum().backward()
    assert torch.isfinite(log_density.grad).all()


@settings(max_examples=80, deadline=None)
@given(
    log_density=st.floats(-1e300, 0),
    m1=st.floats(0, 1e300),
    spread=st.floats(0, 1e300),
    bandwidth=st.floats(1e-100, 1e100),
    softening=st.sampled_from([0.0, 1e-3, 0.1, 10.0]),
)
def test_modes_are_finite_for_every_finite_moment(log_density, m1, spread, bandwidth, softening):
    at = artificial([log_density], [m1], [min(m1 + spread, 1e300)])
    found = bare_modes(at, bandwidth, (1, 2, 3, 4, 7, 16, 40), softening)
    assert torch.isfinite(found).all()
    assert torch.isfinite(found.mean(1)).all()


@pytest.mark.parametrize("order", [1, 2, 5, 8, 17, 40])
def test_high_orders_stay_close_to_numpys_polynomials(order):
    # the recurrence is on h_p, so that nothing overflows where H_p would
    psi = np.linspace(0.05, 0.99, 7)
    at = artificial(list(2 * np.log(psi)), [2.0] * 7, [5.0] * 7)
    K, S = curvature(at, 1.0).numpy(), slope(at, 1.0).numpy()
    unit = np.zeros(order + 1)
    unit[order] = 1.0
    first = np.polynomial.hermite.hermder(unit)
    second = np.polynomial.hermite.hermder(first) if order > 1 else np.zeros(1)
    top = hermval(psi, first) * psi * K + hermval(psi, second) * psi**2 * S
    expected = top / hermval(psi, unit)
    np.testing.assert_allclose(bare_modes(at, 1.0, [order])[:, 0], expected, rtol=1e-7)


def test_deep_in_the_tail_odd_modes_become_the_curvature_and_even_ones_vanish():
    at = artificial([-2000.0], [4000.0], [4000.0])  # ψ underflows to zero
    found = bare_modes(at, 1.0, (1, 2, 3, 4))[0]
    K = float(curvature(at, 1.0))
    np.testing.assert_allclose(found, [K, 0.0, K, 0.0], rtol=1e-12, atol=1e-12)


def test_no_orders_and_no_rows():
    at = artificial([], [], [])
    assert bare_modes(at, 1.0, (1, 2)).shape == (0, 2)
    assert bare_modes(artificial([0.0], [0.0], [0.0]), 1.0, ()).shape == (1, 0)


def test_ground_energies_lift_the_minimum_to_zero():
    bare = torch.tensor([[1.0, -3.0], [0.5, 7.0]])
    assert (bare + ground_energies(bare)).amin(0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "orders", [(), (0,), (1, -2), (1.5,), ("1",), 0, None, "12", (65,), (10**6,)]
)
def test_orders_that_are_not_whole_numbers_from_one_are_refused(orders):
    with pytest.raises(QIPFInputError, match="orders must be integers from 1 to 64"):
        checked_orders(orders)


@pytest.mark.parametrize("softening", [-0.1, float("nan"), float("inf"), 1e308, "a", None])
def test_softening_out_of_range_is_refused(softening):
    with pytest.raises(QIPFInputError, match=r"softening must be a number from 0 to 1e\+100"):
        checked_softening(softening)


@pytest.mark.parametrize("softening", [0.0, 0.1])
@pytest.mark.parametrize("orders", [(1,), (2,), (1, 2, 3, 4), (3, 16, 40)])
def test_in_numpy_every_mode_is_the_same_number(orders, softening):
    log_density = torch.linspace(-900, 0, 40, dtype=torch.float64)
    m1_squared = torch.logspace(-5, 300, 40, dtype=torch.float64)
    m2 = (2 * m1_squared).clamp(max=1e300)
    for at in (Moments(log_density, m1_squared, m2, 3), Moments(*(3 * [log_density[:0]]), 3)):
        for bandwidth in (1e-100, 0.7, 1e100):
            plain = bare_modes(at, bandwidth, orders, softening)
            found = bare_modes(at, bandwidth, orders, softening, in_numpy=True)
            torch.testing.assert_close(found, plain, rtol=0.0, atol=0.0)
