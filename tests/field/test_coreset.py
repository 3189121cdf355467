"""Coresets: what survives the reduction, how the stream may be cut, and rejections."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from qipf import QIPFInputError
from qipf.field import engines
from qipf.field.coreset import Coreset, CoresetStream, coreset, field_of, merge
from qipf.field.potential import curvature
from tests.conftest import make_logits


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


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1500, 2999])
def test_count_mean_and_variance_survive(rows, size):
    small = coreset(rows, size)
    assert small.centers.shape == (size, 10)
    assert_stands_for(small, rows)
    np.testing.assert_allclose(np.exp(small.log_weights), small.weights / 3000)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e12])
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_where_and_how_large_the_rows_are_does_not_matter(rows, offset, scale):
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
def test_few_points_stay_as_they_are(rows, size):
    small = coreset(rows[:5], size)
    np.testing.assert_array_equal(small.centers, rows[:5])
    np.testing.assert_array_equal(small.weights, np.ones(5))
    assert small.spread == 0.0
    weighted = coreset(rows[:5], size, weights=[1, 0, 2, 3, 4])
    np.testing.assert_array_equal(weighted.centers, rows[[0, 2, 3, 4]])
    np.testing.assert_array_equal(weighted.weights, [1, 2, 3, 4])


def test_duplicates_are_gathered_without_loss(rows):
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


def test_one_wild_row_does_not_blur_the_others(rows):
    wild = np.concatenate([rows, [[1e6] * 10]])
    small = coreset(wild, 300)
    assert_stands_for(small, wild)
    near = np.abs(small.centers).max(1) < 1e3
    assert near.sum() == 299
    assert small.spread < 1.1 * coreset(rows, 299).spread


def test_kinds_of_arrays_come_back(rows):
    kept = coreset(torch.from_numpy(rows).float(), 30)
    assert isinstance(kept.centers, torch.Tensor)
    assert (kept.centers.dtype, kept.weights.dtype) == (torch.float32, torch.float64)
    assert kept.log_weights.exp().sum() == pytest.approx(1.0)
    assert coreset(rows.astype(np.float32), 30).centers.dtype == np.float32
    assert coreset(rows.round().astype(int), 30).centers.dtype == np.float64
    assert coreset(rows.tolist()[:10], 3).centers.shape == (3, 10)


def test_the_seed_decides_and_the_input_is_left_alone(rows):
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
def test_the_cuts_of_a_stream_do_not_show(cuts, count, size, chunk):
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


def test_a_stream_of_one_chunk_stands_for_its_rows_as_the_function_does(rows):
    stream = CoresetStream(50)
    stream.add(rows[:1000])
    plain = stream.result()
    more = stream.result(rows[1000:])
    assert_stands_for(as_arrays(plain), rows[:1000])
    assert_stands_for(as_arrays(more), rows)
    # what is asked in between changes nothing
    assert torch.equal(stream.result().centers, plain.centers)
    assert stream.count == 1000


@pytest.mark.parametrize("size", [30, 500])  # smaller and larger than the stream keeps
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
    with pytest.raises(QIPFInputError) as refused:
        stream.merge(coreset(rows[:, :3], 5))
    width = rows.shape[1]
    assert str(refused.value) == (
        f"part has centres of dimension 3, but the stream has rows of {width}."
    )


def test_a_long_stream_stays_small_and_near_the_rows(rows):
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
    # the price of going through chunks
    assert small.spread < 1.25 * coreset(rows, 60).spread


def test_merging_stands_for_all_rows(rows):
    parts = [coreset(part, 150) for part in (rows[:1000], rows[1000:1100], rows[1100:])]
    small = merge(parts, 200)
    assert small.centers.shape == (200, 10)
    assert_stands_for(small, rows)
    joined = merge(parts, 1000)
    assert joined.centers.shape == (150 + 100 + 150, 10)
    assert_stands_for(joined, rows)
    backwards = merge(parts[::-1], 200)
    assert backwards.spread == pytest.approx(small.spread, rel=0.1)
    same = merge([parts[0]], 200)
    np.testing.assert_array_equal(same.centers, parts[0].centers)


@pytest.mark.parametrize("sigma", [8.0, 12.0, 20.0])
def test_the_field_is_nearer_to_the_full_one_than_that_of_a_random_part(rows, sigma):
    full = torch.from_numpy(rows)
    queries = make_logits(500, spread=9.0, seed=3).double()
    truth = curvature(engines.moments(queries, full, sigma), sigma)

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
        (np.ones((5, 3)), {"size": 0}, "size must be an integer of at least 1, got 0."),
        (np.ones((5, 3)), {"size": -2}, "size must be an integer of at least 1, got -2."),
        (np.ones((5, 3)), {"size": 2.0}, "size must be an integer of at least 1, got 2.0."),
        (np.ones((5, 3)), {"size": True}, "size must be an integer of at least 1, got True."),
        (
            np.ones((5, 3)),
            {"bandwidth": 0.0},
            "bandwidth must be a positive finite number, or None to fit no width, got 0.0.",
        ),
        (
            np.ones((5, 3)),
            {"bandwidth": np.inf},
            "bandwidth must be a positive finite number, or None to fit no width, got inf.",
        ),
        (
            np.ones((5, 3)),
            {"bandwidth": "cv"},
            "bandwidth must be a positive finite number, or None to fit no width, got 'cv'.",
        ),
        (BROKEN, {}, "points has 1 row with NaN or inf (rows 2). Drop or repair them first."),
        (np.ones(5), {}, "points must have shape (n, d) with n, d ≥ 1, got (5,)."),
        (np.ones((0, 3)), {}, "points must have shape (n, d) with n, d ≥ 1, got (0, 3)."),
        (np.ones((3, 0)), {}, "points must have shape (n, d) with n, d ≥ 1, got (3, 0)."),
        (torch.ones(3, 2, dtype=torch.bool), {}, "points must hold real numbers, got torch.bool."),
        (np.ones((2, 3)), {"weights": [1.0]}, "weights must have shape (2,), one per point"),
        (np.ones((2, 3)), {"weights": [1.0, -1.0]}, "weights must be finite and ≥ 0."),
        (np.ones((2, 3)), {"weights": [1.0, np.nan]}, "weights must be finite and ≥ 0."),
        (np.ones((2, 3)), {"weights": [0.0, 0.0]}, "All weights are zero: at least one point"),
    ],
)
def test_what_cannot_be_meant_is_refused(points, options, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        coreset(points, **{"size": 2, **options})


def test_a_stream_and_a_merge_refuse_too(rows):
    with pytest.raises(QIPFInputError, match="size must be an integer of at least 1, got 0."):
        CoresetStream(0)
    with pytest.raises(QIPFInputError, match="stream is empty: add rows before asking"):
        CoresetStream(3).result()
    with pytest.raises(QIPFInputError, match="points has 1 row with NaN or inf"):
        CoresetStream(3).add(BROKEN)
    stream = CoresetStream(3)
    stream.add(rows)
    for found in (
        stream.result,
        lambda bandwidth: merge([coreset(rows, 3)], 2, bandwidth=bandwidth),
    ):
        with pytest.raises(QIPFInputError, match="bandwidth must be a positive finite number, or"):
            found(bandwidth=-1.0)
    with pytest.raises(QIPFInputError, match="merge needs at least one coreset, got none."):
        merge([], 3)
    with pytest.raises(QIPFInputError, match=re.escape("one dimension, got [2, 10].")):
        merge([coreset(rows, 3), coreset(rows[:, :2], 3)], 3)
