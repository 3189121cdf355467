"""Accept rules are evaluated on predictions they were not made from."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import AcceptRule, accept_rule
from qipf.reporting.rule_evaluation import (
    RuleEvaluation,
    evaluate_rule,
    random_halves,
    split_evaluation,
)


@given(st.integers(2, 500), st.integers(0, 2**32 - 1))
def test_halves_are_two_and_whole(count, seed):
    held_out, other = random_halves(count, seed)
    assert len(held_out) == count // 2
    assert sorted([*held_out, *other]) == list(range(count))


def test_a_rule_is_evaluated_on_the_other_half(rng):
    uncertainty = rng.random(2000).astype(np.float32)
    wrong = rng.random(2000) < uncertainty**3 / 2
    found = split_evaluation(uncertainty, wrong, 0.05, seed=4)
    held_out, other = random_halves(2000, 4)
    assert found.rule == accept_rule(uncertainty[held_out], wrong[held_out], 0.05)
    accepted = uncertainty[other] <= found.rule.threshold
    assert (found.count, found.accepted) == (1000, accepted.sum())
    assert found.errors == wrong[other][accepted].sum()
    assert found.coverage == accepted.mean()
    assert found.risk == wrong[other][accepted].mean()


def test_a_rule_that_certifies_nothing_accepts_nothing():
    found = split_evaluation(np.arange(100.0), np.arange(100) % 2 == 0, 0.01)
    assert (found.rule.certified, found.accepted, found.errors) == (False, 0, 0)
    assert found.coverage == 0.0
    assert math.isnan(found.risk)


def test_shifted_data_void_the_guarantee():
    rule = accept_rule(np.linspace(0, 1, 1000), np.zeros(1000, bool), 0.01)
    shifted = evaluate_rule(rule, np.zeros(10), np.ones(10, bool))
    assert (shifted.risk, shifted.coverage) == (1.0, 1.0)


def evaluation(accepted, errors):
    rule = AcceptRule(1.5, 0.1, 0.95, 150, 100, 2, max_risk=0.1, min_coverage=None)
    return RuleEvaluation(rule, 1000, accepted, errors)


def test_a_rule_that_fails_on_the_other_half():
    assert not evaluation(100, 30).holds
    assert evaluation(100, 12).holds
    assert evaluation(0, 0).holds


@pytest.mark.parametrize(("errors", "accepted"), [(0, 10), (3, 40), (40, 40), (500, 1000)])
def test_the_error_rate_has_wilsons_interval(errors, accepted):
    z, share = 1.959964, errors / accepted
    middle = share + z * z / (2 * accepted)
    reach = z * (share * (1 - share) / accepted + z * z / (4 * accepted * accepted)) ** 0.5
    expected = [(middle + sign * reach) / (1 + z * z / accepted) for sign in (-1, 1)]
    assert evaluation(accepted, errors).interval == pytest.approx(expected, abs=1e-6)
