"""The fused engines' error control and blocks, tested with the attention engine."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from qipf.field import engines
from qipf.field.bandwidth import silverman
from qipf.field.engines import Moments, fused
from qipf.field.engines.attention import AttentionEngine
from qipf.field.potential import bare_modes, curvature
from tests.conftest import make_logits
from tests.field.conftest import moments


def assert_accurate(queries, centers, bandwidth, log_weights=None, log_error=1e-4, K_error=1e-3):
    """Compare log ρ and K with those of the reference engine; returns the uncertainties of both."""
    fast = moments(queries, centers, bandwidth, log_weights, "attention")
    true = moments(queries, centers, bandwidth, log_weights, "reference")
    pairs = ((fast.log_density, true.log_density), [curvature(m, bandwidth) for m in (fast, true)])
    for (value, truth), bound in zip(pairs, (log_error, K_error), strict=True):
        assert float(((value - truth).abs() / truth.abs().clamp(min=1)).max()) <= bound
    return [bare_modes(m, bandwidth, (1, 2, 3, 4)).mean(1).numpy() for m in (fast, true)]


HARD = {
    "realistic": (make_logits(3000), make_logits(300, seed=1)),
    "offset": (make_logits(3000, offset=1e4), make_logits(300, offset=1e4, seed=1)),
    "tiny": (make_logits(3000, spread=1e-3), make_logits(300, spread=1e-3, seed=1)),
    "huge": (make_logits(3000, spread=1e3), make_logits(300, spread=1e3, seed=1)),
    "duplicates": (make_logits(60).repeat(50, 1), make_logits(300, seed=1)),
    "at the centres": (make_logits(3000), make_logits(3000)[:300]),
    "far": (make_logits(3000), 1e3 * make_logits(300, seed=1)),
    "tiny, offset": (make_logits(3000, 1e-1, 1e2), make_logits(300, 1e-1, 1e2, seed=1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.05, 0.25, 1.0, 4.0])
@pytest.mark.parametrize("case", HARD)
def test_float32_accuracy_on_hard_data(case, factor):
    centers, queries = HARD[case]
    fast, true = assert_accurate(queries, centers, factor * silverman(centers))
    if true.std() > 1e-4:  # with a narrow kernel, all uncertainties at centres are equal
        assert spearmanr(fast, true).statistic >= 0.99999


def test_a_single_centre():
    queries = make_logits(300, seed=1)
    fast, true = assert_accurate(queries, make_logits(1), 3.5, log_error=1e-6, K_error=1e-6)
    assert spearmanr(fast, true).statistic >= 0.99999


def test_a_kernel_far_narrower_than_the_data_is_recomputed_in_float64():
    # float32 alone has an error of 0.28 in log ρ here
    centers = make_logits(2000, spread=1e3)
    assert_accurate(centers[:200], centers, bandwidth=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bandwidth", [1e-3, 1e-5, 1e-8])
def test_the_reference_recomputes_what_float64_cannot_resolve(dtype, bandwidth):
    centers = make_logits(300).to(dtype)
    queries = torch.cat([centers[:20], centers[:20] + bandwidth]).to(dtype)
    assert_accurate(queries, centers, bandwidth)


def test_weights_far_out_between_centres_of_like_distance():
    # log ρ is accurate to 1e-7 in float32 here, the weights of the two centres are not: K was
    # 1,907,968
    centers = torch.tensor([[-1855.8, 2810.6, 2187.8], [159.3, -2261.3, 92.1]])
    query = torch.tensor([[-848.24902, 274.65091, 1139.94971]])
    assert float(curvature(moments(query, centers, 1.0, engine="attention"), 1.0)) == (
        pytest.approx(1_583_918.231, rel=1e-6)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dimension", [1, 3, 10])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_queries_between_few_centres_at_every_scale(dtype, dimension, count):
    generator = torch.Generator().manual_seed(100 * dimension + count)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for scale in (1.0, 30.0, 1e3, 3e4, 1e6):
        centers = scale * normal(count, dimension)
        first, second = centers[0], centers[1]
        along = (second - first) / torch.linalg.vector_norm(second - first)
        across = scale * normal(150, dimension)
        across -= (across @ along)[:, None] * along
        # where both scores are about equal, at every distance from the centres' line
        nearly = 3 * normal(150, 1) / torch.linalg.vector_norm(second - first)
        queries = (first + second) / 2 + across * torch.logspace(-3, 1, 150)[:, None].double()
        queries += nearly * along
        assert_accurate(queries.to(dtype), centers.to(dtype), 1.0, log_error=5e-4, K_error=5e-4)


def test_one_centre_far_from_the_others():
    centers = make_logits(300).double()
    centers[0] = 1e12
    assert_accurate(make_logits(50, seed=1).double(), centers, 3.0)


@pytest.mark.parametrize("dimension", [512, 2048])
def test_many_dimensions(dimension):
    centers, queries = make_logits(200, dimension=dimension), make_logits(50, dimension=dimension)
    queries = queries + 0.1 * make_logits(50, dimension=dimension, seed=2)
    assert_accurate(queries, centers, silverman(centers))


def test_only_inexact_rows_are_recomputed(monkeypatch):
    calls = []
    plain = AttentionEngine.average

    def counted(self, queries, packed):
        calls.append((queries.dtype, queries.shape[0]))
        return plain(self, queries, packed)

    monkeypatch.setattr(AttentionEngine, "average", counted)
    centers = make_logits(3000)
    queries = torch.cat([centers[:40], make_logits(60, seed=1)])
    moments(queries, centers, silverman(centers), engine="attention")
    assert calls == [(torch.float32, 100)]
    calls.clear()
    # a narrow kernel: at a centre log ρ is small and the error of expanding the square is not
    moments(queries, centers, 0.03 * silverman(centers), engine="attention")
    assert calls == [(torch.float32, 100), (torch.float64, 40)]


def test_the_farthest_query_of_a_batch_decides_whether_rows_are_looked_at(monkeypatch):
    calls = []
    plain = AttentionEngine.average

    def counted(self, queries, packed):
        calls.append((queries.dtype, queries.shape[0]))
        return plain(self, queries, packed)

    monkeypatch.setattr(AttentionEngine, "average", counted)
    centers = torch.tensor([[-8.0, 0.0], [8.0, 0.0]])
    moments(torch.tensor([[0.0, 0.0], [0.0, 2e4]]), centers, 1.0, engine="attention")
    assert calls == [(torch.float32, 2), (torch.float64, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inexact_rows_are_those_beyond_the_bound(dtype):
    """The bound of this module's docstring, row by row."""
    rng = np.random.default_rng(0)
    engine = AttentionEngine(torch.tensor([[3.0, 4.0], [-3.0, -4.0]], dtype=dtype), 2.0)
    farthest, eps = 2.5, np.finfo(str(dtype)[6:]).eps
    q = rng.normal(size=(2000, 2))
    q *= (rng.uniform(0, 2, 2000) * np.sqrt(5e-4 / eps) / np.linalg.norm(q, axis=1))[:, None]
    m1 = 10 ** rng.uniform(-2, 4, 2000)
    m2 = m1 + 10 ** rng.uniform(-2, 2, 2000)
    log_density = -(10 ** rng.uniform(-2, 4, 2000))
    expected = []
    for row, first, second, density in zip(q, m1, m2, log_density, strict=True):
        loss = eps * (np.hypot(*row) + farthest) ** 2
        K = second / 16 - first / 32 - 2 / 4
        error = loss + np.expm1(2 * loss) * ((second - first) / 4 + loss) / 8
        expected.append(error > 5e-4 * max(1.0, min(-density, abs(K))))
    at = Moments(*map(torch.from_numpy, (log_density, m1, m2)), 2)
    found = engine._inexact(torch.from_numpy(q), at, dtype)
    assert found.tolist() == expected
    assert 0.2 < np.mean(expected) < 0.8


@pytest.mark.parametrize("variance", [0.0, 10.0, 1000.0])
def test_rows_are_looked_at_where_the_bound_of_all_does_not_exclude_them(variance):
    """Whether it excludes all rows: with the largest loss and the largest variance."""
    engine = AttentionEngine(torch.zeros(1, 2, dtype=torch.float64), 1.0)
    values = [[-1.0, -1.0], [0.0, 0.0], [variance, 0.0]]
    at = Moments(*torch.tensor(values, dtype=torch.float64), 2)
    scales = np.linspace(0.02, 1.2, 60) * np.sqrt(5e-4 / np.finfo(np.float32).eps)
    excluded = []
    for scale in scales:
        q = torch.tensor([[scale, 0.0], [0.0, scale]], dtype=torch.float64)
        loss = np.finfo(np.float32).eps * scale**2
        found = engine._inexact(q, at, torch.float32)
        assert (found is None) == (loss * (1 + (variance + loss) * 3 / 8) <= 5e-4)
        excluded.append(found is None)
    assert 0 < sum(excluded) < 60


@pytest.mark.parametrize(("dimension", "columns"), [(1, 16), (11, 16), (12, 17), (100, 105)])
def test_a_block_of_centres_has_as_many_as_fit(dimension, columns, monkeypatch):
    monkeypatch.setattr(fused, "CENTER_BYTES", 8 * columns * 30 + 7)
    engine = AttentionEngine(torch.zeros(70, dimension), 1.0)
    assert list(engine._blocks()) == [slice(0, 30), slice(30, 60), slice(60, 70)]


def test_nan_of_the_fast_pass_is_recomputed(monkeypatch):
    plain = AttentionEngine.average

    def with_nan(self, queries, packed):
        found = plain(self, queries, packed)
        if queries.dtype == torch.float32:
            found.mean_square[3] = float("nan")
        return found

    monkeypatch.setattr(AttentionEngine, "average", with_nan)
    assert_accurate(make_logits(20, seed=1), make_logits(300), 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [1, 10, 100, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_packed_block_of_centres_keeps_to_its_budget(dimension, dtype, monkeypatch):
    sizes = []
    plain = AttentionEngine.pack

    def measured(self, keys, bias):
        packed = plain(self, keys, bias)
        sizes.append(packed.nbytes)
        return packed

    monkeypatch.setattr(AttentionEngine, "pack", measured)
    monkeypatch.setattr(fused, "CENTER_BYTES", 2**18)
    field = engines.create("attention", torch.zeros(3000, dimension, dtype=dtype), 1.0)
    field(torch.zeros(1, dimension, dtype=dtype))
    assert max(sizes) <= 2**18


def test_small_blocks_give_the_same(monkeypatch):
    centers, queries = make_logits(700).double(), make_logits(300, seed=1).double()
    log_weights = torch.linspace(-3, 0, 700, dtype=torch.float64)
    whole = moments(queries, centers, 3.0, log_weights, "attention")
    monkeypatch.setitem(fused.BLOCK_BYTES, "cpu", 2000)  # 20 queries at a time
    monkeypatch.setattr(fused, "CENTER_BYTES", 8000)  # 62 centres at a time
    parts = moments(queries, centers, 3.0, log_weights, "attention")
    for value, truth in zip(parts[:3], whole[:3], strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)


def limit_memory(monkeypatch, rows):
    """Make blocks of more queries than `rows` run out of memory; returns the sizes tried."""
    sizes = []
    plain = AttentionEngine.average

    def limited(self, queries, packed):
        sizes.append(queries.shape[0])
        if queries.shape[0] > rows:
            raise torch.cuda.OutOfMemoryError
        return plain(self, queries, packed)

    monkeypatch.setattr(AttentionEngine, "average", limited)
    return sizes


def test_out_of_memory_halves_the_block(monkeypatch):
    centers, queries = make_logits(50).double(), make_logits(100, seed=1).double()
    whole = moments(queries, centers, 3.0, engine="attention")
    sizes = limit_memory(monkeypatch, 30)
    parts = moments(queries, centers, 3.0, engine="attention")
    assert sizes == [100, 50, 25, 25, 25, 25]
    for value, truth in zip(parts[:3], whole[:3], strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)


def test_out_of_memory_with_a_single_query_raises(monkeypatch):
    limit_memory(monkeypatch, 0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        moments(make_logits(9), make_logits(5), 3.0, engine="attention")


def test_autocast_does_not_change_the_field():
    rows = make_logits(300)
    plain = moments(rows[:20], rows, 1.0, engine="attention")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = moments(rows[:20], rows, 1.0, engine="attention")
    assert all(torch.equal(a, b) for a, b in zip(plain[:3], cast[:3], strict=True))
