"""The kernel's constant: each reading against its definition in 150 digits, and its laws."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import hermite
from scipy.stats import spearmanr

from qipf import QIPF, QIPFInputError
from qipf.field import engines
from qipf.field.engines import Moments
from qipf.field.potential import NORMALIZATIONS, bare_modes, curvature, log_kernel_constant, slope
from tests.conftest import make_logits
from tests.field.conftest import moments

ORDERS = range(1, 9)


def constant_of(normalization, dimension, sigma):
    unit = {"standard": 2 * mp.pi, "density": 2 * mp.pi * sigma * sigma, "peak": mp.mpf(1)}
    return unit[normalization] ** (-mp.mpf(dimension) / 2)


def hermites(t):
    """h_0 to h_8 at t, by the recurrence of the physicists' polynomials."""
    H = [mp.mpf(1), 2 * t]
    for n in range(1, 8):
        H.append(2 * t * H[n] - 2 * n * H[n - 1])
    return [value / mp.sqrt(mp.mpf(2) ** p * mp.factorial(p)) for p, value in enumerate(H)]


def by_differences(x, centers, sigma):
    """(σ²/2)∇²f/f of f = √(h_p(ψ)²+ε²), orders 1 to 8, by differences of step 1e-20 σ."""
    d, s = len(x), mp.mpf(sigma)
    offsets = [[mp.mpf(a) - mp.mpf(b) for a, b in zip(x, c, strict=True)] for c in centers]
    squares = [mp.fsum(o * o for o in row) for row in offsets]
    step = s * mp.mpf(10) ** -20

    def root(i=0, by=0):
        """√ρ `by` further along axis i."""
        moved = (q + 2 * by * row[i] + by * by for q, row in zip(squares, offsets, strict=True))
        return mp.sqrt(mp.fsum(mp.exp(-q / (2 * s * s)) for q in moved) / len(squares))

    roots = [root(), *(root(i, by) for i in range(d) for by in (step, -step))]
    for normalization in NORMALIZATIONS:
        scale = mp.sqrt(constant_of(normalization, d, s))
        places = [hermites(scale * value) for value in roots]
        for softening in (0.0, 0.1):
            modes = []
            for p in ORDERS:
                f = [mp.sqrt(h[p] ** 2 + mp.mpf(softening) ** 2) for h in places]
                modes.append(float(s * s / 2 * (mp.fsum(f[1:]) - 2 * d * f[0]) / step**2 / f[0]))
            yield normalization, softening, modes


def some_rows(dimension, sigma, centers=4, queries=2, seed=0):
    """Centres and queries about two bandwidths apart, in whatever dimension."""
    rng = np.random.default_rng([seed, dimension])
    spread = sigma * 2 / math.sqrt(dimension)
    return rng.normal(scale=spread, size=(centers, dimension)), rng.normal(
        scale=1.5 * spread, size=(queries, dimension)
    )


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1e-3, 0.4, 30.0])
@pytest.mark.parametrize("dimension", [1, 2, 10, 100])
def test_modes_equal_the_definition(dimension, sigma):
    centers, queries = some_rows(dimension, sigma, queries=1)
    at = moments(torch.from_numpy(queries), torch.from_numpy(centers), sigma, engine="reference")
    with mp.workdps(150):
        for kind, softening, expected in by_differences(queries[0], centers, sigma):
            found = bare_modes(at, sigma, ORDERS, softening, kind)
            assert found[0].tolist() == pytest.approx(expected, rel=1e-7, abs=1e-90)
            in_numpy = bare_modes(at, sigma, ORDERS, softening, kind, in_numpy=True)
            assert torch.equal(found, in_numpy)


def by_derivatives(x, centers, sigma, normalization):
    """Exact modes from the derivatives of ρ: fewer operations than differences."""
    d, s = len(x), mp.mpf(sigma)
    offsets = [[mp.mpf(b) - mp.mpf(a) for a, b in zip(x, c, strict=True)] for c in centers]
    squares = [mp.fsum(o * o for o in row) for row in offsets]
    kernels = [mp.exp(-q / (2 * s * s)) / len(centers) for q in squares]
    rho = mp.fsum(kernels)
    slopes = [
        mp.fsum(k * row[i] for k, row in zip(kernels, offsets, strict=True)) / s**2
        for i in range(d)
    ]
    bend = mp.fsum(k * (q / s**4 - d / s**2) for k, q in zip(kernels, squares, strict=True))
    steep = mp.fsum(g * g for g in slopes) / (4 * rho)  # |∇√ρ|²
    laplacian = bend / (2 * mp.sqrt(rho)) - steep / mp.sqrt(rho)
    scale = mp.sqrt(constant_of(normalization, d, s))
    psi = scale * mp.sqrt(rho)
    h = hermites(psi)
    modes = []
    for p in ORDERS:
        top = mp.sqrt(2 * p) * h[p - 1] * scale * laplacian
        if p > 1:
            top += 2 * mp.sqrt(p * (p - 1)) * h[p - 2] * scale**2 * steep
        modes.append(float(s * s / 2 * top / h[p]))
    return modes


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize(
    ("dimension", "sigma"),
    [(1000, 1e-3), (1000, 1.0), (1000, 50.0), (1, 1e-3), (100, 1e-3), (2, 1e-3), (10, 1e3)],
)
def test_nothing_leaves_the_range_of_numbers(dimension, sigma, normalization):
    centers, queries = some_rows(dimension, sigma, centers=2, queries=1)
    at = moments(torch.from_numpy(queries), torch.from_numpy(centers), sigma, engine="reference")
    found = bare_modes(at, sigma, ORDERS, 0.0, normalization)[0].tolist()
    with mp.workdps(150):
        expected = by_derivatives(queries[0], centers, sigma, normalization)
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-300)
    K, S = float(curvature(at, sigma)), float(slope(at, sigma))
    if dimension == 1000 and sigma >= 1 and normalization != "peak":  # ψ² is 1e-400 or less
        assert found == pytest.approx([K, 0] * 4, rel=1e-9)
    if dimension >= 100 and sigma == 1e-3 and normalization == "density":  # 1e260 or more
        assert found == pytest.approx([p * K + p * (p - 1) * S for p in ORDERS], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("softening", [0.0, 0.1])
@pytest.mark.parametrize("engine", ["reference", "attention"])
def test_gradients_equal_differences_where_psi_exceeds_one(engine, softening):
    sigma, rng = 0.05, np.random.default_rng(0)
    centers = torch.from_numpy(rng.normal(scale=0.05, size=(5, 2)))
    rows = torch.from_numpy(rng.normal(scale=0.04, size=(3, 2))).requires_grad_()
    field = engines.create(engine, centers, sigma)
    assert (field(rows).log_density + log_kernel_constant("density", sigma, 2) > 0.5).all()

    def modes(at):
        return bare_modes(field(at), sigma, (1, 2, 3, 4, 7), softening, "density")

    assert torch.autograd.gradcheck(modes, (rows,), eps=1e-7, rtol=1e-4)


def test_modes_are_continuous_where_psi_is_one():
    """Two recurrences meet there; K and S are the same on both sides."""
    sigma = 0.1
    constant = log_kernel_constant("density", sigma, 2)
    log_density = -constant + torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64)
    at = Moments(log_density, torch.full((3,), 0.01).double(), torch.full((3,), 0.05).double(), 2)
    for softening in (0.0, 0.1):
        found = bare_modes(at, sigma, (*ORDERS, 16, 40), softening, "density")
        torch.testing.assert_close(found[0], found[2], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


numbers = st.floats(-50, 50, allow_nan=False)
points = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    centers=points,
    queries=points,
    bandwidth=st.floats(0.01, 20),
    kind=st.sampled_from(NORMALIZATIONS),
)
def test_the_first_mode_is_the_potential(centers, queries, bandwidth, kind):
    at = moments(torch.tensor(queries).double(), torch.tensor(centers).double(), bandwidth)
    first = bare_modes(at, bandwidth, [1], 0.0, kind)[:, 0]
    torch.testing.assert_close(first, curvature(at, bandwidth), rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(dimension=st.integers(1, 6), power=st.integers(-20, 20), seed=st.integers(0, 999))
def test_only_density_depends_on_the_unit_of_length(dimension, power, seed):
    unit = 2.0**power  # exact, so that even rounding is the same
    centers, queries = map(torch.from_numpy, some_rows(dimension, 0.7, seed=seed))
    for kind in ("peak", "standard"):
        plain = bare_modes(moments(queries, centers, 0.7), 0.7, ORDERS, 0.0, kind)
        at = moments(unit * queries, unit * centers, unit * 0.7)
        torch.testing.assert_close(
            bare_modes(at, unit * 0.7, ORDERS, 0.0, kind), plain, rtol=1e-9, atol=1e-9
        )


def test_density_depends_on_it():
    centers, queries = map(torch.from_numpy, some_rows(3, 0.7))
    found = [
        bare_modes(moments(k * queries, k * centers, k * 0.7), k * 0.7, ORDERS, 0.0, "density")
        for k in (1.0, 4.0)
    ]
    torch.testing.assert_close(found[0][:, 0], found[1][:, 0])  # the potential does not
    assert not torch.isclose(found[0][:, 1:], found[1][:, 1:], rtol=1e-3).any()


def test_the_readings_meet_where_their_constants_do():
    centers, queries = map(torch.from_numpy, some_rows(3, 1.0))
    at = moments(queries, centers, 1.0)
    by_density, standard = (bare_modes(at, 1.0, ORDERS, 0.1, k) for k in ("density", "standard"))
    assert torch.equal(by_density, standard)
    sigma = 1 / math.sqrt(2 * math.pi)  # 2πσ² = 1
    at = moments(queries, centers, sigma)
    by_density, peak = (bare_modes(at, sigma, ORDERS, 0.1, k) for k in ("density", "peak"))
    torch.testing.assert_close(by_density, peak, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dimension", [2, 3, 10, 100])
def test_standard_has_no_pole_up_to_order_four(dimension):
    """ψ is at most (2π)^(-d/4), below the first positive root of H_2, H_3 and H_4, 0.5246."""
    highest = math.exp(log_kernel_constant("standard", 123.0, dimension) / 2)
    assert highest == pytest.approx((2 * math.pi) ** (-dimension / 4))
    roots = [root for p in (2, 3, 4) for root in hermite.hermroots([0] * p + [1])]
    first = min(root for root in roots if root > 1e-6)
    assert highest < 0.4 < first == pytest.approx(0.52465, abs=1e-5)
    # so no mode exceeds a small multiple of curvature and slope, at any density
    log_density = torch.cat([torch.linspace(-800, 0, 500), -torch.logspace(-9, 2, 500)]).double()
    one = torch.ones(1000, dtype=torch.float64)
    for K, S in ((1.0, 0.0), (0.0, 1.0), (-1.0, 1.0)):
        at = Moments(log_density, 8 * S * one, (4 * K + 4 * S + dimension) * one, dimension)
        assert bare_modes(at, 1.0, (1, 2, 3, 4), 0.0, "standard").abs().max() < 6
    with_peak = bare_modes(at, 1.0, (1, 2, 3, 4), 0.0, "peak").abs().max()
    assert with_peak > 40


def test_in_one_dimension_standard_has_a_pole():
    at = Moments(torch.linspace(-3, 0, 10_000).double(), *(2 * [torch.ones(10_000).double()]), 1)
    assert bare_modes(at, 1.0, (4,), 0.0, "standard").abs().max() > 1e3


@settings(max_examples=60, deadline=None)
@given(
    x=st.tuples(numbers, numbers, numbers),
    bandwidth=st.floats(0.3, 10),
    kind=st.sampled_from(NORMALIZATIONS),
)
def test_one_centre(x, bandwidth, kind):
    """K = r²/8σ² - d/4 and S = r²/8σ², ψ² = c exp(-r²/2σ²), and Hermite polynomials of numpy."""
    ratio = sum(v * v for v in x) / bandwidth**2
    if ratio > 200:  # numpy's polynomials of so small a ψ lose their digits
        return
    squared = {"standard": 2 * math.pi, "density": 2 * math.pi * bandwidth**2, "peak": 1.0}[kind]
    psi = math.sqrt(squared**-1.5 * math.exp(-ratio / 2))
    K, S = ratio / 8 - 3 / 4, ratio / 8
    at = moments(torch.tensor([x], dtype=torch.float64), torch.zeros(1, 3).double(), bandwidth)
    found = bare_modes(at, bandwidth, ORDERS, 0.0, kind)[0]
    for p, value in zip(ORDERS, found.tolist(), strict=True):
        unit = [0.0] * p + [1.0]
        first = hermite.hermder(unit)
        second = hermite.hermder(first) if p > 1 else [0.0]
        below = hermite.hermval(psi, unit)
        if abs(below) < 1e-6 * 2**p * math.factorial(p // 2):
            continue  # at a pole
        top = hermite.hermval(psi, first) * psi * K + hermite.hermval(psi, second) * psi**2 * S
        assert value == pytest.approx(top / below, rel=1e-6, abs=1e-9)


# ---------------------------------------------------------------------- the estimator


@pytest.mark.slow
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("reduced", [{}, {"max_centers": 80, "reduction": "coreset"}])
def test_float32_engines_agree_with_the_reference(normalization, reduced):
    rows, queries = make_logits(400, dimension=4), make_logits(60, dimension=4, seed=1)
    options = {"bandwidth": 4.0, "normalization": normalization, "orders": (1, 2, 3, 4), **reduced}
    exact = QIPF(engine="reference", **options).fit(rows.double())
    single = QIPF(engine="attention", **options).fit(rows)
    torch.testing.assert_close(
        single.uncertainty(queries).double(), exact.uncertainty(queries.double()),
        rtol=2e-3, atol=2e-3,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_coreset_stands_for_its_rows_in_every_reading(normalization):
    rows, queries = make_logits(900, dimension=3), make_logits(80, dimension=3, seed=1)
    whole = QIPF(bandwidth=6.0, normalization=normalization).fit(rows)
    small = QIPF(bandwidth=6.0, normalization=normalization, max_centers=200, reduction="coreset")
    found, expected = small.fit(rows).potential(queries), whole.potential(queries)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    if normalization == "standard":  # no poles, near which small differences grow
        found, expected = small.uncertainty(queries), whole.uncertainty(queries)
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_an_unknown_constant_is_refused():
    with pytest.raises(QIPFInputError, match="Unknown normalization 'peek'. Did you mean 'peak'"):
        QIPF(normalization="peek").fit(make_logits(20))
    with pytest.raises(QIPFInputError, match="fallback must be True or False, got 'no'"):
        QIPF(fallback="no").fit(make_logits(20))


def ten_clusters(count, seed, apart=5):
    rng = np.random.default_rng(seed)
    labels = rng.integers(10, size=count)
    return apart * np.eye(10)[labels] + rng.normal(size=(count, 10)), labels


@pytest.mark.slow
def test_uncertainty_follows_the_density_of_ten_clusters():
    """One row near a pole set an energy of 5,100, and the order was lost."""
    field = QIPF().fit(*ten_clusters(3000, 0))
    rows = ten_clusters(4000, 1)[0]
    density, uncertainty = field.log_density(rows), field.uncertainty(rows)
    deciles = np.array_split(uncertainty[np.argsort(density)], 10)  # sparsest first
    assert (np.diff([np.median(part) for part in deciles]) < 0).all()
    assert field.score_ == "modes"
    assert field.energies_.max() < 10
    # along rays from every cluster, away from the others
    out = 5 * np.eye(10) - 0.5
    rays = 5 * np.eye(10)[:, None] + np.linspace(0.3, 6, 200)[None, :, None] * out[:, None]
    along = field.uncertainty(rays.reshape(-1, 10)).reshape(10, 200)
    assert (np.diff(along, axis=1) >= 0).all()
    far = field.uncertainty(100 * rows[:50])
    assert far.min() > uncertainty.max()


@pytest.mark.slow
@pytest.mark.parametrize("apart", [5, 10, 20])
def test_the_default_orders_predictions_as_the_potential_does(apart):
    field = QIPF().fit(*ten_clusters(2000, 0, apart))
    rows = ten_clusters(1000, 1, apart)[0]
    assert spearmanr(field.uncertainty(rows), field.potential(rows))[0] > 0.999
