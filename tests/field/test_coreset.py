"""Coresets: what the reduction preserves, streams, and rejections."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from qipf import QIPFInputError
from qipf.field.coreset import CoresetStream, coreset
from qipf.field.kernel import Coreset, field_of
from qipf.field.potential import curvature
from tests.conftest import make_logits
from tests.field.conftest import moments


@pytest.fixture(scope="module")
def rows():
    return make_logits(3000).double().numpy()


def as_arrays(part):
    return Coreset(part.centers.numpy(), part.weights.numpy(), part.spread)


def variance(part):
    """Total variance of what a coreset stands for, per dimension."""
    shares = part.weights / part.weights.sum()
    between = shares @ (part.centers - shares @ part.centers) ** 2
    return between.mean() + part.spread**2


def assert_stands_for(part, rows, weights=None, rel=1e-9):
    weights = np.ones(len(rows)) if weights is None else weights
    assert part.count == pytest.approx(weights.sum(), rel=1e-12)
    assert (part.weights > 0).all()
    mean = np.average(rows, axis=0, weights=weights)
    scale = np.abs(rows).max()
    np.testing.assert_allclose(part.weights @ part.centers / part.count, mean, atol=rel * scale)
    spread = np.average((rows - mean) ** 2, axis=0, weights=weights).mean()
    assert variance(part) == pytest.approx(spread, rel=rel)
    assert (part.centers >= rows.min(0) - rel * scale).all()
    assert (part.centers <= rows.max(0) + rel * scale).all()


@pytest.mark.parametrize("size", [1, 2, 100, 2999])
def test_count_mean_and_variance_are_preserved(rows, size):
    small = coreset(rows, size)
    assert small.centers.shape == (size, 10)
    assert_stands_for(small, rows)
    np.testing.assert_allclose(np.exp(small.log_weights), small.weights / 3000)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e12])
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_offset_and_scale_do_not_matter(rows, offset, scale):
    moved = (rows[:500] + offset) * scale
    small, plain = coreset(moved, 40), coreset(rows[:500], 40)
    digits = 1e-16 * abs(offset) + 1e-9
    np.testing.assert_allclose(small.centers / scale - offset, plain.centers, atol=1e3 * digits)
    assert small.spread / scale == pytest.approx(plain.spread, rel=1e3 * digits)


def test_weights_count_as_repetitions(rows):
    times = np.random.default_rng(0).integers(0, 5, 400)
    small = coreset(rows[:400], 50, weights=times)
    assert_stands_for(small, rows[:400], times)
    one = coreset(rows[:400], 1, weights=times)
    many = coreset(np.repeat(rows[:400], times, axis=0), 1)
    np.testing.assert_allclose(one.centers, many.centers, rtol=1e-12)
    assert one.spread == pytest.approx(many.spread, rel=1e-12)


@pytest.mark.parametrize("size", [5, 6, 1000])
def test_few_points_are_their_own_coreset(rows, size):
    small = coreset(rows[:5], size)
    np.testing.assert_array_equal(small.centers, rows[:5])
    np.testing.assert_array_equal(small.weights, np.ones(5))
    assert small.spread == 0.0
    weighted = coreset(rows[:5], size, weights=[1, 0, 2, 3, 4])
    np.testing.assert_array_equal(weighted.centers, rows[[0, 2, 3, 4]])
    np.testing.assert_array_equal(weighted.weights, [1, 2, 3, 4])


def test_duplicates_are_merged_without_loss(rows):
    few = rows[:20]
    repeated = np.repeat(few, 50, axis=0)
    small = coreset(repeated, 60)
    assert small.spread == pytest.approx(0.0, abs=1e-12 * np.abs(few).max())
    assert len(small.centers) <= 60
    assert_stands_for(small, repeated)
    for center in small.centers:
        assert np.abs(few - center).max(1).min() < 1e-12 * np.abs(few).max()
    alike = coreset(np.full((30, 2), 7.0), 4)
    np.testing.assert_array_equal(np.unique(alike.centers), [7.0])
    assert alike.count == 30


def test_an_outlier_does_not_widen_the_other_clusters(rows):
    outlier = np.concatenate([rows, [[1e6] * 10]])
    small = coreset(outlier, 300)
    assert_stands_for(small, outlier)
    near = np.abs(small.centers).max(1) < 1e3
    assert near.sum() == 299
    assert small.spread < 1.1 * coreset(rows, 299).spread


def test_array_types_are_kept(rows):
    kept = coreset(torch.from_numpy(rows).float(), 30)
    assert isinstance(kept.centers, torch.Tensor)
    assert (kept.centers.dtype, kept.weights.dtype) == (torch.float32, torch.float64)
    assert kept.log_weights.exp().sum() == pytest.approx(1.0)
    assert coreset(rows.astype(np.float32), 30).centers.dtype == np.float32
    assert coreset(rows.round().astype(int), 30).centers.dtype == np.float64
    assert coreset(rows.tolist()[:10], 3).centers.shape == (3, 10)


def test_the_seed_decides_and_the_input_is_not_modified(rows):
    before = rows.copy()
    first, again, other = (coreset(rows, 100, random_state=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.centers, again.centers)
    np.testing.assert_array_equal(first.weights, again.weights)
    assert not np.array_equal(first.centers, other.centers)
    np.testing.assert_array_equal(rows, before)


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 900), max_size=8),
    count=st.integers(1, 900),
    size=st.integers(1, 30),
    chunk=st.sampled_from([None, 64, 131]),
)
def test_batches_of_a_stream_do_not_matter(cuts, count, size, chunk):
    stream_rows = make_logits(900)[:count]
    whole, parts = (CoresetStream(size, chunk=chunk) for _ in range(2))
    whole.add(stream_rows)
    for part in torch.tensor_split(stream_rows, sorted(cuts)):
        parts.add(part)
    one, two = whole.result(), parts.result()
    assert torch.equal(one.centers, two.centers)
    assert torch.equal(one.weights, two.weights)
    assert one.spread == two.spread
    assert one.count == count
    mean = one.weights @ one.centers.double() / count
    torch.testing.assert_close(mean, stream_rows.double().mean(0), atol=1e-4, rtol=0)


def test_a_stream_of_one_chunk_stands_for_its_rows(rows):
    stream = CoresetStream(50)
    stream.add(rows[:1000])
    plain = stream.result()
    more = stream.result(rows[1000:])
    assert_stands_for(as_arrays(plain), rows[:1000])
    assert_stands_for(as_arrays(more), rows)
    # asking for a result does not change the stream
    assert torch.equal(stream.result().centers, plain.centers)
    assert stream.count == 1000


@pytest.mark.parametrize("size", [30, 200])  # smaller and larger than the stream keeps
def test_coresets_made_elsewhere_join_a_stream(rows, size):
    stream, parts = CoresetStream(60, chunk=240), np.array_split(rows, 9)
    for number, part in enumerate(parts):
        if number % 2:
            stream.add(part)
        else:
            stream.merge(coreset(part, size))  # numpy in, though the stream holds tensors
        assert all(kept.centers.shape[0] <= 120 for kept in stream._condensed if kept)
    assert stream.count == len(rows)
    small = stream.result()
    assert small.centers.shape[0] == 60
    assert_stands_for(as_arrays(small), rows)
    with pytest.raises(QIPFInputError, match="centres of dimension 3"):
        stream.merge(coreset(rows[:, :3], 5))


def test_a_long_stream_takes_bounded_memory(rows):
    stream = CoresetStream(60, chunk=240)
    for part in np.array_split(rows, 31):
        stream.add(part)
        held = sum(part.shape[0] for part in stream._held)
        condensed = [part.centers.shape[0] for part in stream._condensed if part is not None]
        assert held <= 240
        assert all(count <= 120 for count in condensed)
        assert len(stream._condensed) <= np.log2(stream.count / 240 + 1) + 1
    small = stream.result()
    assert_stands_for(as_arrays(small), rows)
    # chunks cost some accuracy
    assert small.spread < 1.25 * coreset(rows, 60).spread


@pytest.mark.parametrize("sigma", [8.0, 20.0])
def test_the_field_is_closer_to_that_of_all_rows_than_a_random_subset(rows, sigma):
    full = torch.from_numpy(rows)
    queries = make_logits(500, spread=9.0, seed=3).double()
    truth = curvature(moments(queries, full, sigma), sigma)

    def disagreement(field):
        return 1 - spearmanr(curvature(field(queries), sigma), truth)[0]

    small = coreset(full, 300)
    ours = field_of("auto", small.centers, sigma, small.log_weights, small.spread)
    chosen = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[:300]
    random = field_of("auto", full[chosen], sigma)
    assert disagreement(ours) < disagreement(random) / 10


BROKEN = np.zeros((5, 3))
BROKEN[2, 1] = np.nan


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        *((np.ones((5, 3)), {"size": size}, "size must be") for size in (0, -2, 2.0, True)),
        *(
            (np.ones((5, 3)), {"bandwidth": width}, "bandwidth must be a positive finite number")
            for width in (0.0, -1.0, np.inf, "cv")
        ),
        (BROKEN, {}, "points has 1 row with NaN or inf"),
        (np.ones(5), {}, "points must have shape"),
        (np.ones((0, 3)), {}, "points must have shape"),
        (np.ones((3, 0)), {}, "points must have shape"),
        (torch.ones(3, 2, dtype=torch.bool), {}, "points must hold real numbers"),
        (np.ones((2, 3)), {"weights": [1.0]}, "weights must have shape"),
        (np.ones((2, 3)), {"weights": [1.0, -1.0]}, "weights must be finite"),
        (np.ones((2, 3)), {"weights": [1.0, np.nan]}, "weights must be finite"),
        (np.ones((2, 3)), {"weights": [0.0, 0.0]}, "not all zero"),
    ],
)
def test_invalid_arguments_raise(points, options, message):
    with pytest.raises(QIPFInputError, match=message):
        coreset(points, **{"size": 2, **options})


def test_a_stream_raises_too(rows):
    with pytest.raises(QIPFInputError, match="size must be"):
        CoresetStream(0)
    with pytest.raises(QIPFInputError, match="stream is empty"):
        CoresetStream(3).result()
    stream = CoresetStream(3)
    with pytest.raises(QIPFInputError, match="points has 1 row with NaN or inf"):
        stream.add(BROKEN)
    stream.add(rows)
    with pytest.raises(QIPFInputError, match="bandwidth must be a positive finite number"):
        stream.result(bandwidth=-1.0)


@pytest.mark.parametrize(
    ("dimension", "dtype", "size", "chunk"),
    [
        (2, torch.float32, 10, 65_536),
        (1000, torch.float64, 10, 2**26 // 8000),  # 64 MB
        (1000, torch.float64, 5000, 20_000),  # four times the centres, at least
    ],
)
def test_the_rows_that_a_stream_holds(dimension, dtype, size, chunk):
    stream = CoresetStream(size)
    stream.add(torch.zeros(1, dimension, dtype=dtype))
    assert stream._chunk == chunk
