"""The test martingale: values of the definition, and fairness under the hypothesis."""

import copy

import numpy as np
import pytest
from scipy.stats import beta

from qipf.monitor.martingale import ALTERNATIVES, Crossing, Martingale


def naive_martingale(p):
    """The definition, alternative by alternative and start by start."""

    def unstarted(t):
        return 1 / (1 + np.log(1 + t))

    densities = np.array([beta.pdf(p, a, b) for a, b in ALTERNATIVES])  # (m, t)
    t = len(p)
    value = unstarted(t)
    for start in range(t):
        value += (unstarted(start) - unstarted(start + 1)) * densities[:, start:].prod(1).mean()
    return value


def naive_change_point(p):
    """The first prediction after the likeliest start, counted from 1."""
    logs = np.array([beta.logpdf(p, a, b) for a, b in ALTERNATIVES])  # (m, t)
    g = 1 / (1 + np.log(1 + np.arange(len(p) + 1)))
    best = [np.log(g[k] - g[k + 1]) + logs[:, k:].sum(1).max() for k in range(len(p))]
    return int(np.argmax(best)) + 1


@pytest.mark.parametrize("before", [0, 1, 7, 60])
def test_the_change_point_follows_the_likeliest_start(rng, before):
    p = np.concatenate([rng.uniform(size=before), rng.uniform(size=40) ** 3])
    for cut in (before, before + 2):  # the best start may be of an earlier batch
        martingale = Martingale()
        assert martingale.add(p[:cut], 1 - p[:cut], 7.0) is None
        crossing = martingale.add(p[cut:], 1 - p[cut:], 7.0)
        assert crossing.change_point == naive_change_point(p[: crossing.at])
        reached = [np.log(naive_martingale(p[: crossing.at + k])) >= 7.0 for k in (-1, 0)]
        assert reached == [False, True]


def test_it_equals_the_definition(rng):
    p, martingale = rng.uniform(size=40), Martingale()
    for k in range(40):
        martingale.add(p[k : k + 1], 1 - p[k : k + 1], np.inf)
        assert martingale.log_evidence == pytest.approx(
            np.log(naive_martingale(p[: k + 1])), abs=1e-12
        )


@pytest.mark.parametrize("before", [[], [0.1, 0.9, 0.2]])
def test_it_is_a_martingale(before):
    """One step: the mean over all p-values is the value before."""
    start, martingale = np.array(before), Martingale()
    martingale.add(start, 1 - start, np.inf)
    t = (np.arange(800) + 0.5) / 800
    # a grid that is dense at both ends, where steep densities have their mass
    rise, fall = t**15, (1 - t) ** 15
    p, q, width = rise / (rise + fall), fall / (rise + fall), 15 * (t * (1 - t)) ** 14
    mean = 0.0
    for each, other, dp in zip(p, q, width / (rise + fall) ** 2 / 800, strict=True):
        after = copy.copy(martingale)
        after.add(np.array([each]), np.array([other]), np.inf)
        mean += np.exp(after.log_evidence) * dp
    assert mean == pytest.approx(np.exp(martingale.log_evidence), rel=1e-4)


def test_batches_make_no_difference_to_the_last_bit(rng):
    p = rng.uniform(size=3000) ** 1.5
    whole, pieces = Martingale(), Martingale()
    crossings = [whole.add(p, 1 - p, 5.0)]
    found = [
        pieces.add(part, 1 - part, 5.0) for part in np.split(p, [1, 2, 3, 700, 700, 1999, 2998])
    ]
    assert [c for c in found if c] == crossings
    for name in ("gains", "stakes", "best", "best_start"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))
    assert (whole.log_evidence, whole.peak) == (pieces.log_evidence, pieces.peak)


def test_the_crossing_is_returned_once_with_the_change_point(rng):
    p = np.concatenate([rng.uniform(size=500), rng.uniform(size=100) ** 4])
    martingale = Martingale()
    crossing = martingale.add(p, 1 - p, np.log(100))
    assert isinstance(crossing, Crossing)
    assert 500 < crossing.at < 540
    assert abs(crossing.change_point - 500) < 15
    assert martingale.add(p[-50:], 1 - p[-50:], np.log(100)) is None
    # it is the first prediction that reaches the level
    again = Martingale()
    assert again.add(p[: crossing.at - 1], 1 - p[: crossing.at - 1], np.log(100)) is None
    assert again.peak < np.log(100) <= martingale.peak


@pytest.mark.parametrize(
    "shift",
    [lambda u: u**2, lambda u: 1 - u**2, lambda u: 0.5 + 0.5 * (2 * u - 1) ** 3,
     lambda u: 0.5 + (0.3 * (2 * u - 1)), lambda u: 1e-12 * u],
    ids=["high", "low", "narrow", "middle", "extreme"],
)  # fmt: skip
def test_every_kind_of_change_is_detected(rng, shift):
    u = rng.uniform(size=3000)
    u[1000:] = shift(u[1000:])
    crossing = Martingale().add(u, 1 - u, np.log(100))
    assert crossing is not None
    assert 1000 < crossing.at < 1300


def test_nothing_to_add_changes_nothing():
    martingale = Martingale()
    assert martingale.add(np.empty(0), np.empty(0), 1.0) is None
    assert (martingale.count, martingale.log_evidence, martingale.peak) == (0, 0.0, 0.0)


def test_the_alternatives_are_those_that_saved_states_rest_on():
    high = [(0.1, 1.0), (0.4, 1.0), (0.75, 1.0), (1.0, 1.4), (1.0, 3.0)]
    both = [*high, *((b, a) for a, b in high), (0.6, 0.6), (2.0, 2.0)]
    assert ALTERNATIVES.tolist() == [list(pair) for pair in both]


def test_a_level_that_was_reached_exactly_is_not_reached_again(rng):
    p = rng.uniform(size=20) ** 6
    before = Martingale()
    before.add(p[:10], 1 - p[:10], np.inf)
    level = before.peak
    martingale = Martingale()
    assert martingale.add(p[:10], 1 - p[:10], level) is not None
    assert martingale.add(p[10:], 1 - p[10:], level) is None
    assert martingale.peak > level
