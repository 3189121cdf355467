"""The test of all thresholds: equal to its definition, and as small as it can be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from qipf.calibration.fixed_sequence import FORGIVEN, certified_ranks, fewest, tail


@pytest.mark.parametrize("max_risk", [0.003, 0.01, 0.2])
@pytest.mark.parametrize("errors", [0, 1, 7])
def test_the_fewest_predictions_that_can_certify(max_risk, errors):
    count = fewest(errors, max_risk, 0.05)
    assert binom.cdf(errors, count, max_risk) <= 0.05
    assert binom.cdf(errors, count - 1, max_risk) > 0.05


def naive_ranks(wrong, max_risk, level, forgiven):
    """The fallback procedure rank by rank, as it is told in words."""
    for number in range(len(forgiven), 0, -1):
        starts = {fewest(e, max_risk, level / number): level / number for e in forgiven[:number]}
        if max(starts) <= len(wrong):
            break
    else:
        starts = {fewest(0, max_risk, level): level}
    certified, carried = [], 0.0
    for rank in range(1, len(wrong) + 1):
        carried += starts.get(rank, 0.0)
        passed = carried > 0 and binom.cdf(wrong[:rank].sum(), rank, max_risk) <= carried
        certified.append(bool(passed))
        carried = carried if passed else 0.0
    return certified


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    count=st.integers(1, 400),
    rate=st.floats(0, 0.3),
    max_risk=st.sampled_from([0.05, 0.1, 0.3]),
    forgiven=st.sampled_from([FORGIVEN, (0,), (0, 2), (1, 4)]),
)
def test_the_search_equals_its_definition(seed, count, rate, max_risk, forgiven):
    wrong = (np.random.default_rng(seed).random(count) < rate).astype(int)
    found = certified_ranks(wrong, max_risk, 0.05, forgiven)
    assert found.tolist() == naive_ranks(wrong, max_risk, 0.05, forgiven)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_a_higher_confidence_or_a_lower_risk_never_asks_for_fewer_held_out_predictions(seed):
    rng = np.random.default_rng(seed)
    risks, levels = np.sort(rng.uniform(0.005, 0.5, 2)), np.sort(rng.uniform(0.001, 0.2, 2))
    assert fewest(3, risks[0], levels[0]) >= fewest(3, risks[1], levels[1])


def test_the_starts_forgive_what_was_measured_to_keep_most_coverage():
    """results/accept-designs.csv"""
    assert FORGIVEN == (1, 4, 16)


@pytest.mark.parametrize("errors", range(20))
def test_early_errors_end_a_sequence_and_its_share(errors):
    last = fewest(16, 0.1, 0.05 / 3)
    wrong = (np.arange(last + 10) < errors).astype(int)
    found = certified_ranks(wrong, 0.1, 0.05)
    assert found.tolist() == naive_ranks(wrong, 0.1, 0.05, FORGIVEN)
    assert found[last - 1] == (errors <= 16)


def test_after_a_failure_the_next_start_has_its_own_share_alone():
    """17 errors would pass the third start with the shares of the first two, which failed."""
    last = fewest(16, 0.1, 0.05 / 3)
    assert 0.05 / 3 < tail(17, last, 0.1) < 0.05
    wrong = (np.arange(last) < 17).astype(int)
    assert not certified_ranks(wrong, 0.1, 0.05).any()
    late = wrong[::-1].copy()  # the same errors, after two starts that passed
    assert certified_ranks(late, 0.1, 0.05)[: last - 17].any()


def test_a_chance_that_equals_the_level_is_enough():
    assert float(tail(0, 2, 0.5)) == 0.25
    found = certified_ranks(np.zeros(4, int), 0.5, 0.25, (0,))
    assert found.tolist() == [False, True, True, True]


def test_the_fewest_predictions_reach_the_level_itself():
    """Without errors the chance is (1/2)^n, exactly."""
    assert tail(0, 3, 0.5) == 0.125
    assert fewest(0, 0.5, 0.125) == 3
