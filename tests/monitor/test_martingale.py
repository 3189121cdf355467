"""The game against uniform p-values: money counted by hand, fair while nothing changes."""

import copy

import numpy as np
import pytest
from scipy.stats import beta

from qipf.monitor.martingale import BETS, Betting, Crossing


def naive_money(p):
    """The definition, bet by bet and start by start."""

    def cash(t):
        return 1 / (1 + np.log(1 + t))

    densities = np.array([beta.pdf(p, a, b) for a, b in BETS])  # (m, t)
    t = len(p)
    money = cash(t)
    for start in range(t):
        money += (cash(start) - cash(start + 1)) * densities[:, start:].prod(1).mean()
    return money


def test_the_money_is_that_of_the_definition(rng):
    p, betting = rng.uniform(size=40), Betting()
    for k in range(40):
        betting.add(p[k : k + 1], 1 - p[k : k + 1], np.inf)
        assert betting.log_evidence == pytest.approx(np.log(naive_money(p[: k + 1])), abs=1e-12)


@pytest.mark.parametrize("before", [[], [0.1, 0.9, 0.2]])
def test_the_game_is_fair(before):
    """One step: the mean money over all p-values is what it was before."""
    start, betting = np.array(before), Betting()
    betting.add(start, 1 - start, np.inf)
    t = (np.arange(2000) + 0.5) / 2000
    # a grid that is dense at both ends, where steep bets have their mass
    rise, fall = t**15, (1 - t) ** 15
    p, q, width = rise / (rise + fall), fall / (rise + fall), 15 * (t * (1 - t)) ** 14
    mean = 0.0
    for each, other, dp in zip(p, q, width / (rise + fall) ** 2 / 2000, strict=True):
        after = copy.copy(betting)
        after.add(np.array([each]), np.array([other]), np.inf)
        mean += np.exp(after.log_evidence) * dp
    assert mean == pytest.approx(np.exp(betting.log_evidence), rel=1e-4)


def test_batches_make_no_difference_to_the_last_bit(rng):
    p = rng.uniform(size=3000) ** 1.5
    whole, pieces = Betting(), Betting()
    crossings = [whole.add(p, 1 - p, 5.0)]
    found = [
        pieces.add(part, 1 - part, 5.0) for part in np.split(p, [1, 2, 3, 700, 700, 1999, 2998])
    ]
    assert [c for c in found if c] == crossings
    for name in ("gains", "stakes", "best", "best_start"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))
    assert (whole.log_evidence, whole.peak) == (pieces.log_evidence, pieces.peak)


def test_the_crossing_is_told_once_with_its_start(rng):
    p = np.concatenate([rng.uniform(size=500), rng.uniform(size=100) ** 4])
    betting = Betting()
    crossing = betting.add(p, 1 - p, np.log(100))
    assert isinstance(crossing, Crossing)
    assert 500 < crossing.at < 540
    assert abs(crossing.since - 500) < 15
    assert betting.add(p[-50:], 1 - p[-50:], np.log(100)) is None
    # just that many are needed
    again = Betting()
    assert again.add(p[: crossing.at - 1], 1 - p[: crossing.at - 1], np.log(100)) is None
    assert again.peak < np.log(100) <= betting.peak


@pytest.mark.parametrize(
    "shift",
    [lambda u: u**2, lambda u: 1 - u**2, lambda u: 0.5 + 0.5 * (2 * u - 1) ** 3,
     lambda u: 0.5 + (0.3 * (2 * u - 1)), lambda u: 1e-12 * u],
    ids=["high", "low", "narrow", "middle", "extreme"],
)  # fmt: skip
def test_every_kind_of_change_is_found(rng, shift):
    u = rng.uniform(size=3000)
    u[1000:] = shift(u[1000:])
    crossing = Betting().add(u, 1 - u, np.log(100))
    assert crossing is not None
    assert 1000 < crossing.at < 1300


def test_nothing_to_add_changes_nothing():
    betting = Betting()
    assert betting.add(np.empty(0), np.empty(0), 1.0) is None
    assert (betting.count, betting.log_evidence, betting.peak) == (0, 0.0, 0.0)
