"""Fitting a coreset to a field: its parts against plain formulas, and the gain in accuracy."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from qipf.field import coreset_fit
from qipf.field.coreset import CoresetStream, coreset
from qipf.field.coreset_fit import (
    FRACTIONS,
    Mixture,
    Target,
    _best_between,
    _drawn_rows,
    density_of_values,
    fit_coreset,
    leave_one_out,
    probes,
)
from qipf.field.engines import Moments
from qipf.field.kernel import Coreset, field_of
from qipf.field.potential import bare_modes, curvature
from tests.conftest import make_logits, naive_moments

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows():
    return make_logits(3000)


def plain(rows):
    return Coreset(rows, torch.ones(rows.shape[0], dtype=torch.float64))


def uncertainty(part, queries, sigma):
    field = field_of("auto", part.centers, sigma, part.log_weights, part.spread)
    return bare_modes(field(queries), sigma, (1, 2, 3, 4)).mean(1).numpy()


def disagreement(part, rows, queries, sigma):
    return (
        1
        - spearmanr(uncertainty(part, queries, sigma), uncertainty(plain(rows), queries, sigma))[0]
    )


# ---------------------------------------------------------------------- the parts


@pytest.mark.parametrize("variance", [1e-4, 0.3, 9.0])
def test_the_field_of_a_mixture_is_that_of_weighted_centres(variance):
    generator = torch.Generator().manual_seed(1)
    centers = 2 * torch.randn(30, 4, generator=generator).double()
    log_weights = torch.randn(30, generator=generator).double()
    places = 3 * torch.randn(16, 4, generator=generator).double()
    mixture = Mixture(centers, log_weights, torch.tensor(variance).double().log())
    expected = field_of("reference", centers, 1.0, log_weights, variance**0.5)(places)
    log_density, K = mixture.field(places)
    torch.testing.assert_close(log_density, expected.log_density)
    torch.testing.assert_close(K, curvature(expected, 1.0))


def test_density_of_values():
    values = torch.from_numpy(np.random.default_rng(0).permutation(5000) / 5000)
    inside = (values > 0.05) & (values < 0.95)
    torch.testing.assert_close(
        density_of_values(values)[inside], torch.ones(int(inside.sum())).double()
    )
    torch.testing.assert_close(density_of_values(3 * values + 7), density_of_values(values) / 3)
    squared = density_of_values(values**2)  # density of u²: 1 / 2u
    torch.testing.assert_close(squared[inside], 0.5 / values[inside], rtol=0.02, atol=0)


def test_density_of_equal_values_is_finite():
    alike = density_of_values(torch.full((10,), 3.0))
    torch.testing.assert_close(alike, torch.full((10,), 1000.0).double())
    mostly = torch.cat([torch.zeros(99), torch.tensor([2.0])])
    assert float(density_of_values(mostly).max()) == pytest.approx(1000 / 2)


def test_the_loss_is_the_squared_change_in_rank():
    values = torch.arange(1000.0).double() / 1000
    # moments whose curvature in one dimension, (m2 - 1) / 4, is 5 times the value
    moments = Moments(values, torch.zeros(1000).double(), 20 * values + 1, 1)
    target = Target.at(torch.zeros(1000, 1).double(), moments)
    assert float(target.loss(values, 5 * values)) < 1e-12
    # every value wrong by a tenth of the range of all
    missed = target.loss(values, 5 * values + 0.5)
    assert float(missed) == pytest.approx(0.01, rel=1e-3)


def test_the_rank_error_is_spearmans():
    generator = torch.Generator().manual_seed(0)
    places, centers = (torch.randn(300, 2, generator=generator).double() for _ in range(2))
    field = field_of("reference", centers, 1.0)(places)
    target = Target.at(places, field)
    flat = torch.zeros(20).double()
    few = Mixture(centers[:20], flat, torch.tensor(-1.0).double())
    expected = [
        (1 - spearmanr(found, true)[0]) / 6
        for found, true in zip(
            few.field(places), (target.log_density, target.curvature), strict=True
        )
    ]
    assert target.rank_error(few) == pytest.approx(sum(expected), rel=1e-4)
    same = Mixture(centers, torch.zeros(300).double(), torch.tensor(-60.0).double())
    assert target.rank_error(same) == 0.0
    assert target.rank_error(few._replace(log_variance=torch.tensor(torch.nan).double())) == np.inf


def test_probes_are_made_from_every_cluster_alike():
    centers = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    deviation = torch.ones(3).double()
    places = probes(centers, 0.0, deviation, 1000, np.random.RandomState(0)).numpy()
    assert places.shape == (1000, 3)
    known = {tuple(row) for row in centers.tolist()}
    same, _, between, drawn_in, drawn_out = (places[kind::5] for kind in range(5))
    assert {tuple(row) for row in same.tolist()} <= known
    assert np.abs(places).max() < 20
    low, high = centers.min(0).values.numpy(), centers.max(0).values.numpy()
    assert ((between >= low) & (between <= high)).all()

    def along(places):  # length relative to the centre of the same direction
        directions = centers.numpy() / np.linalg.norm(centers.numpy(), axis=1, keepdims=True)
        lengths = np.linalg.norm(places, axis=1)
        nearest = (places @ directions.T / lengths[:, None]).argmax(1)
        return lengths / np.linalg.norm(centers.numpy(), axis=1)[nearest]

    assert ((along(drawn_in) >= 0) & (along(drawn_in) <= 1 + 1e-9)).all()
    assert ((along(drawn_out) >= 1 - 1e-9) & (along(drawn_out) <= 2 + 1e-9)).all()
    again = probes(centers, 0.0, deviation, 1000, np.random.RandomState(0)).numpy()
    np.testing.assert_array_equal(places, again)
    many = probes(centers, 0.5, deviation, 100_000, np.random.RandomState(0)).numpy()
    np.testing.assert_allclose(many[::5].var(0), centers.numpy().var(0) + 0.25, rtol=0.1)
    # noise of every strength up to the rows' own deviation: its variance is a third of theirs
    noise = many[1::5].var(0) - many[::5].var(0)
    np.testing.assert_allclose(noise, 1 / 3, rtol=0.2)


def test_interpolation_between_mixtures():
    start = Mixture(torch.zeros(2, 1).double(), torch.zeros(2).double(), torch.tensor(0.0).double())
    goal = Mixture(torch.ones(2, 1).double(), torch.tensor([0.0, 4.0]).double(), start.log_variance)
    half = start.towards(goal, 0.5)
    assert half.centers.tolist() == [[0.5], [0.5]]
    assert half.log_weights.tolist() == [0.0, 2.0]
    for share, end in ((0.0, start), (1.0, goal)):
        assert all(map(torch.equal, start.towards(goal, share), end))


def test_leaving_a_row_out_gives_the_field_of_the_others(rows):
    points, sigma = rows[:60].double(), 6.0
    weights = torch.rand(60, generator=torch.Generator().manual_seed(0)).double()
    shares = weights / weights.sum()
    seen = field_of("reference", points / sigma, 1.0, shares.log())(points / sigma)
    found = leave_one_out(seen, shares)
    for row in range(60):
        rest = np.arange(60) != row
        expected = naive_moments(points[row : row + 1], points[rest], sigma, weights[rest])
        units = (0.0, sigma**2, sigma**2)
        for ours, theirs, unit in zip(found[:3], expected, units, strict=True):
            assert float(ours[row]) * (unit or 1) == pytest.approx(theirs[0], rel=1e-8)


def test_leaving_a_single_row_out_stays_finite():
    alone = Moments(torch.tensor([0.5]).double().log(), *torch.zeros(2, 1).double(), 1)
    found = leave_one_out(alone, torch.tensor([0.5]).double())
    assert float(found.log_density) == pytest.approx(np.log(0.001))
    assert float(found.m2) == 0.0


# ---------------------------------------------------------------------- the fit


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "dtype"), [(9.0, torch.float32), (12.0, torch.float64)])
def test_a_fit_orders_other_queries_better(rows, sigma, dtype):
    rows = rows.to(dtype)
    queries = torch.cat([make_logits(600, seed=3), 0.5 * make_logits(600, seed=4)]).to(dtype)
    unfitted, fitted = coreset(rows, 150), coreset(rows, 150, bandwidth=sigma)
    assert fitted.centers.shape == (150, 10)
    assert fitted.centers.dtype == dtype
    assert fitted.count == pytest.approx(3000, rel=1e-12)
    assert bool((fitted.weights > 0).all())
    before, after = (disagreement(part, rows, queries, sigma) for part in (unfitted, fitted))
    assert 0 < after < before / 1.5


@pytest.mark.slow
def test_numpy_comes_back_and_the_seed_decides(rows):
    first, again, other = (
        coreset(rows.numpy(), 20, bandwidth=6.0, random_state=seed) for seed in (1, 1, 2)
    )
    assert isinstance(first.centers, np.ndarray)
    np.testing.assert_array_equal(first.centers, again.centers)
    np.testing.assert_array_equal(first.weights, again.weights)
    assert first.spread == again.spread
    assert not np.array_equal(first.centers, other.centers)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0**-400, 2.0**400])
def test_the_unit_does_not_matter(rows, scale):
    rows = rows[:500].double()
    here, there = coreset(rows, 20, bandwidth=6.0), coreset(rows * scale, 20, bandwidth=6.0 * scale)
    torch.testing.assert_close(there.centers / scale, here.centers, rtol=0, atol=1e-3)
    assert there.spread / scale == pytest.approx(here.spread, rel=1e-4)


def test_weights_count_as_repetitions(rows):
    """The field of weighted points is what is fitted, so the naive one tells the error."""
    times = np.random.default_rng(0).integers(0, 5, 400)
    points, sigma = rows[:400].double(), 12.0
    queries = make_logits(50, seed=5).double()
    log_density, _, _ = naive_moments(queries, points, sigma, np.maximum(times, 1e-300))

    def error(part):
        field = field_of("reference", part.centers, sigma, part.log_weights, part.spread)
        return float(np.sqrt(np.mean((field(queries).log_density.numpy() - log_density) ** 2)))

    fitted = coreset(points, 60, weights=times, bandwidth=sigma)
    assert fitted.count == pytest.approx(times.sum())
    assert error(fitted) < error(coreset(points, 60, weights=times)) / 1.3


def test_no_fit_where_none_is_needed_or_possible(rows):
    random = np.random.RandomState(0)
    whole = plain(rows[:100])
    assert fit_coreset(whole, whole, 3.0, random, CPU) is whole
    unfitted = coreset(rows[:100], 10)
    # so narrow a kernel that squares in bandwidths have no digits left
    assert fit_coreset(unfitted, whole, 1e-6, random, CPU) is unfitted
    few = coreset(rows[:5], 10, bandwidth=3.0)
    assert torch.equal(few.centers, rows[:5])


def test_the_number_of_probes_is_bounded(rows, monkeypatch):
    assert coreset_fit._probe_count(200, 60_000) == 12_800
    assert coreset_fit._probe_count(500, 60_000) == coreset_fit.MOST_PROBES
    assert coreset_fit._probe_count(500, 8000.0) == 8000  # no more than rows
    assert coreset_fit._probe_count(10, 60_000) == coreset_fit._probe_count(10, 50) == 4096
    for centers in (1, 6000, 10_000, 100_000):
        assert centers * coreset_fit._probe_count(centers, 1e6) <= coreset_fit.PAIRS
    unfitted = coreset(rows[:100], 10)
    monkeypatch.setattr(coreset_fit, "PAIRS", 99)
    assert fit_coreset(unfitted, plain(rows[:100]), 9.0, np.random.RandomState(0), CPU) is unfitted


def test_a_fit_without_gain_is_not_taken():
    """Two rows and their mean are as near as one cloud comes; wherever it ends, it is finite."""
    for sigma in (1e-3, 1.0, 1e6):
        found = coreset(torch.tensor([[0.0], [1.0]]).double(), 1, bandwidth=sigma)
        assert found.count == pytest.approx(2.0)
        assert bool(torch.isfinite(found.centers).all())
        assert 0 <= found.spread < np.inf


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.05, 4.0, 100.0])
def test_kernels_far_too_narrow_or_wide(rows, sigma):
    queries = make_logits(300, seed=3)
    unfitted, fitted = coreset(rows, 60), coreset(rows, 60, bandwidth=sigma)
    assert bool(torch.isfinite(fitted.centers).all())
    before, after = (disagreement(part, rows, queries, sigma) for part in (unfitted, fitted))
    assert after < before + 0.02


def test_fitting_works_without_gradient_mode_and_keeps_the_rows(rows):
    before = rows.clone()
    with torch.no_grad():
        found = coreset(rows, 15, bandwidth=6.0)
    assert not found.centers.requires_grad
    assert torch.equal(rows, before)


# ---------------------------------------------------------------------- streams and merging


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 400])
def test_batches_of_a_stream_do_not_matter(rows, chunk):
    whole, parts = (CoresetStream(40, chunk=chunk) for _ in range(2))
    whole.add(rows)
    for part in rows.split(700):
        parts.add(part)
    one, two = (stream.result(bandwidth=6.0) for stream in (whole, parts))
    assert torch.equal(one.centers, two.centers)
    assert torch.equal(one.weights, two.weights)
    assert one.spread == two.spread
    assert one.count == pytest.approx(3000)


def test_a_stream_is_fitted_to_all_its_rows(rows):
    queries, sigma = make_logits(800, seed=3), 8.0
    stream = CoresetStream(100, chunk=800)
    stream.add(rows[:2500])
    known = stream.weighted_rows(rows[2500:])
    assert known.count == 3000
    assert known.centers.shape[0] < 3000
    fitted = stream.result(rows[2500:], bandwidth=sigma)
    unfitted = stream.result(rows[2500:])
    true = uncertainty(known, queries, sigma)
    before, after = (
        1 - spearmanr(uncertainty(part, queries, sigma), true)[0] for part in (unfitted, fitted)
    )
    assert after < before / 2
    assert stream.count == 2500


@pytest.mark.parametrize("dimension", [16, 17])
def test_only_short_rows_are_fitted(dimension, monkeypatch):
    rows = torch.randn(300, dimension, generator=torch.Generator().manual_seed(0))
    whole = Coreset.of_rows(rows)
    small = Coreset(rows[:10], torch.full((10,), 30.0).double(), spread=0.8)
    reached = []
    monkeypatch.setattr(coreset_fit, "_minimize", lambda start, *_: reached.append(1) or start)
    fit_coreset(small, whole, 2.0, np.random.RandomState(0), torch.device("cpu"))
    assert reached == ([1] if dimension == 16 else [])


def test_steps_are_those_of_adam(rows, monkeypatch):
    """Written out in the module; here with `torch.optim` on the same batches."""
    monkeypatch.setattr(coreset_fit, "BATCH", 32)
    monkeypatch.setattr(coreset_fit, "PASSES", 2)
    monkeypatch.setattr(coreset_fit, "ALL_PROBES", 0)
    places = rows[:80].double() / 6
    target = Target.at(places, field_of("reference", rows.double() / 6, 1.0)(places))
    start = Mixture(places[::8].clone(), torch.zeros(10).double(), torch.tensor(-1.0).double())
    found = coreset_fit._minimize(start, target, np.random.RandomState(3))
    random = np.random.RandomState(3)
    order = np.concatenate([random.permutation(80) for _ in range(2)])
    expected = Mixture(*(part.clone().requires_grad_() for part in start))
    adam = torch.optim.Adam(expected, lr=coreset_fit.LARGEST_RATE, betas=(0.9, 0.95), eps=1e-20)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 5)
    for batch in np.split(order, range(32, 160, 32)):
        adam.zero_grad()
        part = Target(*(values[torch.from_numpy(batch)] for values in target))
        part.loss(*expected.field(part.points)).backward()
        adam.step()
        schedule.step()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-9, atol=1e-12)
    before, after = (float(target.loss(*part.field(places))) for part in (start, found))
    assert after < before


def test_centres_far_from_all_points_are_not_thrown_away(monkeypatch):
    """Their slopes are not zero in float32, but the squares of these are."""
    monkeypatch.setattr(coreset_fit, "ALL_PROBES", 0)
    places = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    target = Target.at(places, field_of("reference", places, 1.0)(places))
    far = torch.linspace(10, 20, 11)
    centers = torch.cat([places[:10], torch.stack([far, torch.zeros(11)], 1)])
    start = Mixture(centers, torch.zeros(21), torch.tensor(-1.0))
    found = coreset_fit._minimize(start, target, np.random.RandomState(0))
    assert found.centers.dtype == torch.float32
    assert float((found.centers - centers).norm(dim=1).max()) < 1


class Scripted:
    """A target whose rank error depends on how far a mixture is from the start."""

    def __init__(self, *errors):
        self.errors = dict(zip((0.0, *FRACTIONS), errors, strict=True))

    def rank_error(self, mixture):
        return self.errors[float(mixture.centers)]


@pytest.mark.parametrize(
    ("first", "second", "best"),
    [
        ((5, 4, 3, 2, 1), (5, 5, 5, 5, 5), 1.0),
        ((5, 4, 1, 2, 3), (5, 4, 4, 4, 4), 0.5),  # the least sum, not the last that is better
        ((5, 4, 1, 2, 1), (5, 4, 6, 4, 6), 0.75),  # none may exceed the start's
        ((5, 5, 6, 6, 6), (5, 5, 5, 5, 5), 0.0),  # no gain
    ],
)
def test_the_best_mixture_between_two(first, second, best):
    start, end = (Mixture(*(torch.full((), value) for _ in range(3))) for value in (0.0, 1.0))
    found = _best_between(start, end, (Scripted(*first), Scripted(*second)))
    assert float(found.centers) == best
    assert (found is start) == (best == 0.0)


def test_rows_that_stand_for_others_are_drawn_with_their_spread():
    rows, shares = torch.tensor([[0.0], [100.0]]).double(), np.array([0.25, 0.75])
    shares = np.repeat(shares / 1000, 1000)
    rows = rows.repeat_interleave(1000, 0)
    drawn, own = _drawn_rows(rows, shares, 0.1, np.random.RandomState(0))
    assert len(drawn) == 2000
    assert own.tolist() == [0.0] * 2000
    upper = drawn[:, 0] > 50
    assert abs(float(upper.double().mean()) - 0.75) < 0.05
    assert float((drawn[:, 0] - 100 * upper).std()) == pytest.approx(0.1, rel=0.1)
    exact, own = _drawn_rows(rows, shares, 0.0, np.random.RandomState(0))
    assert set(exact[:, 0].tolist()) == {0.0, 100.0}
    torch.testing.assert_close(own, (exact[:, 0] / 200 + 0.25) / 1000)


def test_probes_get_the_deviation_of_all_rows_about_their_mean(rows, monkeypatch):
    seen = []

    def recorded(centers, spread, deviation, count, random):
        seen.append((spread, deviation))
        return probes(centers, spread, deviation, count, random)

    monkeypatch.setattr(coreset_fit, "probes", recorded)
    sigma, few = 3.0, rows[:300].double()
    whole = Coreset(few, torch.ones(300).double(), spread=1.5)
    small = Coreset(few[:20], torch.full((20,), 15.0).double(), spread=2.0)
    fit_coreset(small, whole, sigma, np.random.RandomState(0), CPU)
    expected = np.sqrt(few.numpy().var(0) + 1.5**2) / sigma
    for spread, deviation in seen:
        assert spread == pytest.approx(2.0 / sigma)
        np.testing.assert_allclose(deviation.numpy(), expected, rtol=1e-12)
    assert len(seen) == 2


def test_hardly_fewer_centres_than_rows_are_not_fitted(monkeypatch):
    """With fewer than two rows a centre, by their weights: a stream's rows are condensed before."""
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).double()
    small = coreset(rows, 31)
    fitted = []
    monkeypatch.setattr(coreset_fit, "_minimize", lambda start, *_: fitted.append(1) or start)
    random = np.random.RandomState(0)
    assert fit_coreset(small, plain(rows), 1.0, random, CPU) is small
    assert not fitted
    twice = Coreset(rows, torch.full((60,), 2.0).double())
    fit_coreset(small, twice, 1.0, random, CPU)
    assert fitted


def start_of_the_fit(monkeypatch, whole, small, sigma):
    """The mixture from which `fit_coreset` starts; it stays there."""
    starts = []
    monkeypatch.setattr(coreset_fit, "_minimize", lambda start, *_: starts.append(start) or start)
    fitted = fit_coreset(small, whole, sigma, np.random.RandomState(0), CPU)
    return fitted, starts


def test_a_fit_starts_at_the_coreset_itself(rows, monkeypatch):
    small, sigma = coreset(rows, 20), 6.0
    fitted, (start,) = start_of_the_fit(monkeypatch, plain(rows), small, sigma)
    assert fitted is small
    mean = rows.double().mean(0)
    torch.testing.assert_close(start.centers.double() * sigma + mean, small.centers.double())
    variance = (small.spread / sigma) ** 2
    assert float(start.log_variance) == pytest.approx(np.log(variance), rel=1e-5)


@pytest.mark.parametrize("factor", [0.999, 1.0])
def test_rows_too_far_for_the_bandwidth_are_not_fitted(rows, monkeypatch, factor):
    small = coreset(rows, 20)
    centered = rows.double() - rows.double().mean(0)
    monkeypatch.setattr(coreset_fit, "FARTHEST", float((centered / 6.0).abs().max()) * factor)
    assert start_of_the_fit(monkeypatch, plain(rows), small, 6.0) == (small, [])


def test_no_fewer_probes_than_centres(rows, monkeypatch):
    small = coreset(rows, 64)
    for count, fits in ((63, 0), (64, 1)):
        monkeypatch.setattr(coreset_fit, "_probe_count", lambda *_, count=count: count)
        assert len(start_of_the_fit(monkeypatch, plain(rows), small, 6.0)[1]) == fits
