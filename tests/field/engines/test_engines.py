"""Both plain engines: definitions, laws, hard data, gradients, rejections."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from qipf import QIPFInputError
from qipf.field import engines
from qipf.field.bandwidth import silverman
from qipf.field.engines import attention, fused
from qipf.field.engines import base as contract
from qipf.field.potential import bare_modes, curvature
from tests.conftest import make_logits, naive_moments

BOTH = pytest.mark.parametrize("engine", ["reference", "attention"])


@BOTH
@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 17])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_their_definitions(engine, dimension, weighted):
    generator = torch.Generator().manual_seed(dimension)
    centers = torch.randn(53, dimension, generator=generator, dtype=torch.float64)
    queries = 2 * torch.randn(19, dimension, generator=generator, dtype=torch.float64)
    weights = torch.rand(53, generator=generator, dtype=torch.float64) if weighted else None
    log_weights = None if weights is None else weights.log()
    found = engines.moments(queries, centers, 0.7, log_weights, engine)
    expected = naive_moments(queries, centers, 0.7, weights)
    for value, truth in zip(found[:3], expected, strict=True):
        np.testing.assert_allclose(value, truth, rtol=1e-10, atol=1e-12)
    assert found.dimension == dimension


def compare(queries, centers, bandwidth, log_weights=None):
    """Largest errors of the attention engine in log ρ and K, and both engines' uncertainties."""
    fast = engines.moments(queries, centers, bandwidth, log_weights, "attention")
    true = engines.moments(queries, centers, bandwidth, log_weights, "reference")
    K, truth = curvature(fast, bandwidth), curvature(true, bandwidth)
    log_error = (fast.log_density - true.log_density).abs() / true.log_density.abs().clamp(min=1)
    K_error = (K - truth).abs() / truth.abs().clamp(min=1)
    ranks = [bare_modes(m, bandwidth, (1, 2, 3, 4)).mean(1).numpy() for m in (fast, true)]
    return float(log_error.max()), float(K_error.max()), ranks


HARD = {
    "realistic": (make_logits(6000), make_logits(500, seed=1)),
    "offset": (make_logits(6000, offset=1e4), make_logits(500, offset=1e4, seed=1)),
    "tiny": (make_logits(6000, spread=1e-3), make_logits(500, spread=1e-3, seed=1)),
    "huge": (make_logits(6000, spread=1e3), make_logits(500, spread=1e3, seed=1)),
    "duplicates": (make_logits(60).repeat(100, 1), make_logits(500, seed=1)),
    "at the centres": (make_logits(6000), make_logits(6000)[:500]),
    "far": (make_logits(6000), 1e3 * make_logits(500, seed=1)),
    "tiny, offset": (make_logits(6000, 1e-1, 1e2), make_logits(500, 1e-1, 1e2, seed=1)),
}


@pytest.mark.parametrize("factor", [0.05, 0.25, 1.0, 4.0])
@pytest.mark.parametrize("case", HARD)
def test_attention_keeps_float32_accuracy_on_hard_data(case, factor):
    centers, queries = HARD[case]
    log_error, K_error, (fast, true) = compare(queries, centers, factor * silverman(centers))
    assert log_error <= 1e-4
    assert K_error <= 1e-3
    if true.std() > 1e-4:  # narrow kernels leave every centre alone, and all alike
        assert spearmanr(fast, true).statistic >= 0.99999


def test_attention_with_one_centre():
    center, queries = make_logits(1), make_logits(500, seed=1)
    log_error, K_error, (fast, true) = compare(queries, center, 3.5)
    assert log_error <= 1e-6
    assert K_error <= 1e-6
    assert spearmanr(fast, true).statistic >= 0.99999


def test_a_kernel_far_narrower_than_the_data_is_recomputed_in_float64():
    # float32 alone errs by 0.28 in log ρ here
    centers = make_logits(2000, spread=1e3)
    log_error, K_error, _ = compare(centers[:200], centers, bandwidth=1.0)
    assert log_error <= 1e-4
    assert K_error <= 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bandwidth", [1e-3, 1e-5, 1e-8])
def test_what_float64_cannot_resolve_the_reference_does(dtype, bandwidth):
    centers = make_logits(300).to(dtype)
    queries = torch.cat([centers[:20], centers[:20] + bandwidth]).to(dtype)
    log_error, K_error, _ = compare(queries, centers, bandwidth)
    assert log_error <= 1e-4
    assert K_error <= 1e-3


def test_one_centre_far_from_the_others():
    centers = make_logits(300).double()
    centers[0] = 1e12
    log_error, K_error, _ = compare(make_logits(50, seed=1).double(), centers, 3.0)
    assert log_error <= 1e-4
    assert K_error <= 1e-3


@pytest.mark.parametrize("dimension", [512, 2048])
def test_many_dimensions(dimension):
    centers, queries = make_logits(200, dimension=dimension), make_logits(50, dimension=dimension)
    queries = queries + 0.1 * make_logits(50, dimension=dimension, seed=2)
    log_error, K_error, _ = compare(queries, centers, silverman(centers))
    assert log_error <= 1e-4
    assert K_error <= 1e-3


@BOTH
def test_centres_that_no_square_can_hold_give_finite_moments(engine):
    centers = torch.tensor([[1e200], [-1e200]], dtype=torch.float64)
    found = engines.moments(centers, centers, 1.0, engine=engine)
    assert all(torch.isfinite(value).all() for value in found[:3])


def test_only_doubtful_rows_are_recomputed(monkeypatch):
    seen = []
    plain = attention.AttentionEngine.average

    def counted(self, queries, packed):
        seen.append((queries.dtype, queries.shape[0]))
        return plain(self, queries, packed)

    monkeypatch.setattr(attention.AttentionEngine, "average", counted)
    centers, elsewhere = make_logits(3000), make_logits(60, seed=1)
    queries = torch.cat([centers[:40], elsewhere])
    engines.moments(queries, centers, silverman(centers), engine="attention")
    assert seen == [(torch.float32, 100)]
    seen.clear()
    # a narrow kernel: at a centre log ρ is small and what expanding the square loses is not
    engines.moments(queries, centers, 1e-3 * silverman(centers), engine="attention")
    assert seen == [(torch.float32, 100), (torch.float64, 40)]


def test_what_the_fast_pass_could_not_compute_is_recomputed(monkeypatch):
    plain = attention.AttentionEngine.average

    def spoiled(self, queries, packed):
        found = plain(self, queries, packed)
        if queries.dtype == torch.float32:
            found.mean_square[3] = float("nan")
        return found

    monkeypatch.setattr(attention.AttentionEngine, "average", spoiled)
    log_error, K_error, _ = compare(make_logits(20, seed=1), make_logits(300), 3.0)
    assert log_error <= 1e-4
    assert K_error <= 1e-3


@pytest.mark.parametrize("dimension", [1, 2, 13, 14, 15, 16, 31, 62, 63])
def test_every_width_of_the_head_holds_its_centres(dimension):
    centers = make_logits(700, dimension=dimension)
    queries = make_logits(70, dimension=dimension, seed=1)
    log_weights = torch.linspace(-3, 0, 700)
    log_error, K_error, _ = compare(queries, centers, 2 * silverman(centers), log_weights)
    assert log_error <= 1e-4
    assert K_error <= 1e-3


@pytest.mark.parametrize("dimension", [2, 10, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_does_not_depend_on_its_batch(dimension, dtype):
    centers = make_logits(5000, dimension=dimension).to(dtype)
    queries = make_logits(132, dimension=dimension, seed=1).to(dtype)
    field = engines.create("attention", centers, silverman(centers))
    whole = field(queries)
    for size in (1, 2, 3, 5, 31, 33, 66):
        parts = [field(queries[part])[:3] for part in contract.blocks(132, size)]
        # one row by itself is computed in float64: the difference is what float32 loses
        tolerance = 3e-5 if size == 1 else 1e-6
        for value, truth in zip(zip(*parts, strict=True), whole, strict=False):
            torch.testing.assert_close(torch.cat(value), truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dimension", [1, 2, 10, 100, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_packed_block_of_centres_keeps_to_its_budget(dimension, dtype, monkeypatch):
    monkeypatch.setattr(fused, "CENTER_BYTES", 2**18)
    engine = engines.create("attention", torch.zeros(3000, dimension), 1.0)
    for packed in engine._packed(dtype):
        assert packed.centers.nbytes <= 2**18


def test_streaming_in_blocks_changes_nothing(monkeypatch):
    centers, queries = make_logits(700).double(), make_logits(300, seed=1).double()
    log_weights = torch.linspace(-3, 0, 700, dtype=torch.float64)
    whole = engines.moments(queries, centers, 3.0, log_weights, "attention")
    monkeypatch.setitem(fused.BLOCK_BYTES, "cpu", 2000)  # 20 queries at a time
    monkeypatch.setattr(fused, "CENTER_BYTES", 8000)  # 62 centres at a time
    engine = engines.create("attention", centers, 3.0, log_weights)
    parts = engine(queries)
    assert engine._keys == {}
    for value, truth in zip(parts[:3], whole[:3], strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)


def test_out_of_memory_halves_the_block_and_goes_on(monkeypatch):
    sizes = []
    plain = fused.FusedEngine._block

    def starved(self, queries, dtype):
        sizes.append(queries.shape[0])
        if queries.shape[0] > 30:
            raise torch.cuda.OutOfMemoryError
        return plain(self, queries, dtype)

    centers, queries = make_logits(50).double(), make_logits(100, seed=1).double()
    whole = engines.moments(queries, centers, 3.0, engine="attention")
    monkeypatch.setattr(fused.FusedEngine, "_block", starved)
    parts = engines.moments(queries, centers, 3.0, engine="attention")
    assert sizes == [100, 50, 25, 25, 25, 25]
    for value, truth in zip(parts[:3], whole[:3], strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)


def test_a_field_that_fits_nowhere_is_an_error(monkeypatch):
    def starved(self, queries, dtype):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(fused.FusedEngine, "_block", starved)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        engines.moments(make_logits(9), make_logits(5), 3.0, engine="attention")


def test_far_away_the_second_moment_is_the_squared_distance():
    centers = make_logits(600).double()
    queries = torch.full((3, 10), 1.0, dtype=torch.float64) * torch.tensor([[1e12], [1e16], [1e18]])
    found = engines.moments(queries.double(), centers, 3.0, engine="reference")
    torch.testing.assert_close(found.m2, queries.double().square().sum(1), rtol=1e-9, atol=0.0)


@BOTH
def test_blocks_of_the_reference(engine, monkeypatch):
    monkeypatch.setattr("qipf.field.engines.reference.PAIRS_PER_BLOCK", 64)
    centers, queries = make_logits(30).double(), make_logits(11, seed=1).double()
    found = engines.moments(queries, centers, 3.0, engine=engine)
    for value, truth in zip(found[:3], naive_moments(queries, centers, 3.0), strict=True):
        np.testing.assert_allclose(value, truth, rtol=1e-10)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_finite_query_gives_finite_moments(engine, dtype):
    top = torch.finfo(dtype).max
    queries = torch.tensor([[0.0], [1e-30], [1e19], [-top], [top]], dtype=dtype)
    found = engines.moments(queries, torch.tensor([[-1.0], [1.0]], dtype=dtype), 0.5, engine=engine)
    for value in found[:3]:
        assert torch.isfinite(value).all()
    assert (found.m2 >= found.m1_squared).all()


@BOTH
def test_no_queries_give_no_moments(engine):
    found = engines.moments(torch.empty(0, 3), torch.zeros(4, 3), 1.0, engine=engine)
    assert [tuple(value.shape) for value in found[:3]] == [(0,), (0,), (0,)]


@BOTH
def test_centres_without_weight_do_not_count(engine):
    centers = make_logits(20).double()
    log_weights = torch.zeros(20, dtype=torch.float64)
    log_weights[5:] = -float("inf")
    found = engines.moments(centers, centers, 3.0, log_weights, engine)
    alone = engines.moments(centers, centers[:5], 3.0, engine=engine)
    for value, truth in zip(found[:3], alone[:3], strict=True):
        torch.testing.assert_close(value, truth)


@BOTH
def test_gradients_of_all_moments_are_right(engine):
    centers = make_logits(40, spread=1.0, dimension=3).double()
    queries = make_logits(4, spread=1.0, dimension=3, seed=1).double().requires_grad_()
    field = engines.create(engine, centers, 0.8)
    torch.autograd.gradcheck(lambda q: field(q)[:3], queries)


floats = st.floats(-5, 5, allow_nan=False, width=32)
points = st.lists(st.tuples(floats, floats), min_size=1, max_size=8)


@BOTH
@settings(max_examples=60, deadline=None)
@given(centers=points, queries=points, bandwidth=st.floats(0.2, 5), seed=st.integers(0, 99))
def test_moving_turning_scaling_and_repeating_change_nothing(
    engine, centers, queries, bandwidth, seed
):
    c = torch.tensor(centers, dtype=torch.float64)
    x = torch.tensor(queries, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(2, 2, generator=generator, dtype=torch.float64))
    shift = torch.randn(2, generator=generator, dtype=torch.float64)

    def K_and_density(x, c, sigma):
        found = engines.moments(x, c, sigma, engine=engine)
        return curvature(found, sigma), found.log_density

    plain = K_and_density(x, c, bandwidth)
    assert (plain[1] <= 0).all()
    for changed in (
        K_and_density(x + shift, c + shift, bandwidth),
        K_and_density(x @ turn, c @ turn, bandwidth),
        K_and_density(17 * x, 17 * c, 17 * bandwidth),
        K_and_density(x, c.repeat(3, 1), bandwidth),
    ):
        for value, truth in zip(changed, plain, strict=True):
            torch.testing.assert_close(value, truth, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3), torch.zeros(0, 3), 1.0), "centers must have shape (N, d) with"),
        ((torch.zeros(2, 3), torch.zeros(4), 1.0), "centers must have shape (N, d) with"),
        ((torch.zeros(2, 4), torch.zeros(4, 3), 1.0), "queries must have shape (Q, 3), got (2, 4)"),
        ((torch.zeros(3), torch.zeros(4, 3), 1.0), "queries must have shape (Q, 3), got (3,)"),
        ((torch.zeros(2, 3), torch.zeros(4, 3), 0.0), "bandwidth must be a positive finite"),
        ((torch.zeros(2, 3), torch.zeros(4, 3), float("nan")), "bandwidth must be a positive"),
        ((torch.zeros(2, 3), torch.zeros(4, 3), 1.0, torch.zeros(5)), "shape (4,), one per centre"),
        (
            (torch.zeros(2, 3), torch.zeros(4, 3), 1.0, torch.full((4,), -float("inf"))),
            "All weights are zero",
        ),
        (
            (torch.zeros(2, 3), torch.zeros(4, 3), 1.0, torch.full((4,), float("nan"))),
            "log_weights contain NaN",
        ),
        (
            (torch.zeros(2, 3, device="meta"), torch.zeros(4, 3), 1.0),
            "queries are on meta, centers on cpu. Move them to one device.",
        ),
    ],
)
@BOTH
def test_bad_fields_and_queries_are_refused(engine, arguments, message):
    with pytest.raises(QIPFInputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        engines.moments(*arguments, engine=engine)


def test_an_unknown_engine_is_refused_with_the_nearest_name():
    with pytest.raises(QIPFInputError, match="Did you mean 'attention'"):
        engines.create("atention", torch.zeros(1, 1), 1.0)


def test_blocks_cover_everything_once():
    assert list(contract.blocks(0, 3)) == []
    assert [s.stop - s.start for s in contract.blocks(7, 3)] == [3, 3, 1]


def test_autocast_does_not_reach_the_field():
    rows = make_logits(300)
    plain = engines.moments(rows[:20], rows, 1.0, engine="attention")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = engines.moments(rows[:20], rows, 1.0, engine="attention")
    assert all(torch.equal(a, b) for a, b in zip(plain[:3], cast[:3], strict=True))
