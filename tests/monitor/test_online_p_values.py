"""Online p-values: equal to a naive urn, uniform and independent."""

import numpy as np
import pytest
from scipy.stats import kstest

from qipf.calibration import quantization as rounding
from qipf.calibration.conformal import Calibration
from qipf.monitor import online_p_values as module
from qipf.monitor.online_p_values import OnlinePValues


def naive(calibration, scores, seed):
    """The p-values by going through all earlier scores, bin by bin, one prediction at a time."""
    ranks = OnlinePValues(calibration, seed)
    u, tie_breaks = module._uniforms(seed, 1, 0, len(scores)).T
    mass, p = ranks.gaps.astype(float), []
    for k, score in enumerate(scores):
        rounded = rounding.rounded(np.array([score]))[0]
        pairs = zip(ranks._edges, ranks._keys, strict=True)
        first = sum(edge < rounded for edge in ranks._edges)
        mine = sum(edge < rounded or (edge == rounded and key < first + tie_breaks[k])
                   for edge, key in pairs)  # fmt: skip
        p.append((mass[mine + 1 :].sum() + u[k] * mass[mine]) / mass.sum())
        mass[mine] += 1
    return np.array(p)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "digits"), [(7, 3), (60, 0), (3000, 3), (3000, 0)])
def test_they_are_those_of_the_urn(rng, size, digits):
    calibration = Calibration(np.round(rng.normal(size=size), digits))
    scores = np.round(rng.normal(size=700), digits)
    scores[[3, 50]] = np.nan
    p, q = OnlinePValues(calibration, 5).add(scores)
    np.testing.assert_allclose(p, naive(calibration, scores, 5), rtol=1e-13)
    np.testing.assert_allclose(p + q, 1.0, rtol=1e-15)
    assert (p > 0).all()
    assert (q > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("digits", [0, 6])
@pytest.mark.parametrize("size", [3, 1500])
def test_p_values_of_a_clean_stream_are_uniform_and_independent(rng, size, digits):
    """Over draws of held-out set and stream."""
    streams = []
    for seed in range(300):
        draw = np.round(rng.normal(size=size + 60), digits)
        streams.append(OnlinePValues(Calibration(draw[:size]), seed).add(draw[size:])[0])
    p = np.array(streams)  # (stream, place)
    assert kstest(p[:, 0], "uniform").pvalue > 1e-3
    assert kstest(p[:, -1], "uniform").pvalue > 1e-3
    assert kstest(p.ravel(), "uniform").pvalue > 1e-3
    # variance of a mean of independent uniforms; a fixed set's sampling error would raise it
    assert p.mean(1).var() == pytest.approx(1 / 12 / 60, rel=0.3)
    neighbours = np.corrcoef(p[:, :-1].ravel(), p[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(p[:, 1:].size)


def test_batches_make_no_difference(rng):
    calibration, scores = Calibration(rng.normal(size=5000)), rng.normal(size=1000)
    whole, pieces = OnlinePValues(calibration, 1), OnlinePValues(calibration, 1)
    p, q = whole.add(scores)
    cut = [pieces.add(part) for part in np.split(scores, [1, 2, 300, 300, 999])]
    np.testing.assert_array_equal(p, np.concatenate([part for part, _ in cut]))
    np.testing.assert_array_equal(q, np.concatenate([part for _, part in cut]))
    np.testing.assert_array_equal(whole.counts, pieces.counts)
    assert whole.seen == 1000


@pytest.mark.parametrize("size", [1, 2, 1023, 1024, 5000, 2**20])
def test_the_bins_are_few_and_cover_every_gap(size):
    ranks = module._edge_ranks(size)
    assert len(ranks) < module.MOST_BINS
    assert ranks[0] == 1
    assert ranks[-1] == size
    assert (np.diff(ranks) > 0).all()


def test_rounding_noise_does_not_order_equal_predictions(rng):
    """A stream of one value, off by the last bit, is ranked as ties."""
    calibration = Calibration(np.ones(400))
    p, _ = OnlinePValues(calibration, 0).add(np.full(400, 1.0 + 2e-16))
    assert kstest(p, "uniform").pvalue > 1e-3


def test_huge_scores_are_the_most_unusual():
    with np.errstate(all="raise"):
        p, _ = OnlinePValues(Calibration(np.arange(9.0)), 0).add(np.array([1e300, -1e300]))
    assert p[0] < 0.1
    assert p[1] > 0.9


def test_the_bins_are_those_that_saved_counts_rest_on():
    """768 even ranks and 127 in each tail, geometrically."""
    n = 2**20
    tail = [int(float(n / 2) ** (k / 126)) for k in range(127)]
    even = [int(1 + (n - 1) * k / 767) for k in range(768)]
    found = module._edge_ranks(n)
    assert len(found) == 993
    near = np.abs(found[:, None] - np.array([*tail, *even, *(n + 1 - t for t in tail)])).min(1)
    assert near.max() <= 1  # whole numbers of powers may differ by one
    assert np.isin(even, found).all()
    np.testing.assert_array_equal(found[:6], [1, 2, 3, 4, 5, 6])


def test_random_numbers_are_the_middles_of_steps_of_counted_words():
    found = module._uniforms(5, 1, 7, 3)
    for k, pair in enumerate(found.tolist()):
        words = np.random.Philox(key=[5, 1], counter=7 + k).random_raw(2).tolist()
        assert pair == [((word >> 12) + 0.5) / 2**52 for word in words]


def test_the_urn_by_hand():
    """Four gaps between three held-out scores; then every prediction adds one to its gap."""
    ranks = OnlinePValues(Calibration([1.0, 2.0, 3.0]), 0)
    u = module._uniforms(0, 1, 0, 4)[:, 0]
    p, q = ranks.add(np.array([2.5, 2.6, 0.5, 9.0]))
    expected = [(1 + u[0]) / 4, (1 + 2 * u[1]) / 5, (5 + u[2]) / 6, u[3] / 7]
    np.testing.assert_allclose(p, expected, rtol=1e-14)
    np.testing.assert_allclose(q, 1 - np.array(expected), rtol=1e-14)


def test_tied_held_out_scores_are_ordered_by_the_numbers_that_saved_counts_rest_on():
    """By the first of two numbers of the Philox stream with the key (seed, 0)."""
    p_values = OnlinePValues(Calibration(np.zeros(9)), seed=5)
    words = np.random.Philox(key=[5, 0]).random_raw(36).reshape(9, 4)[:, 0]
    tie_breaks = ((words >> np.uint64(12)).astype(float) + 0.5) * 2.0**-52
    np.testing.assert_array_equal(p_values._keys, np.sort(tie_breaks))
