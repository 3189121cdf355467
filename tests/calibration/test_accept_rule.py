"""accept_rule: the guarantee by simulation, the answer by hand, and what is refused."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

import qipf
from qipf import AcceptRule, QIPFInputError, accept_rule
from qipf.calibration.fixed_sequence import FORGIVEN, certified_ranks, fewest

DRAWS = 1000

#: 5 % and what 1,000 draws may add to it by chance: exceeded with a probability of 1 in 100.
ALLOWED = binom.isf(0.01, DRAWS, 0.05) / DRAWS


class Population:
    """Predictions whose error rate below any threshold is known exactly, by a fine grid."""

    def __init__(self, chance, levels=None):
        self.chance, self.levels = chance, levels
        values = self.tied((np.arange(20_000) + 0.5) / 20_000)
        self.values = np.sort(values, kind="stable")
        self.risks = np.cumsum(chance(self.values)) / np.arange(1, len(values) + 1)

    def tied(self, uncertainty):
        if self.levels is None:
            return uncertainty
        return np.floor(uncertainty * self.levels) / self.levels

    def draw(self, count, rng):
        uncertainty = self.tied(rng.random(count))
        return uncertainty, rng.random(count) < self.chance(uncertainty)

    def truth(self, threshold):
        """Coverage and risk of a threshold."""
        below = np.searchsorted(self.values, threshold, side="right")
        return below / len(self.values), self.risks[below - 1] if below else 0.0


def broken(population, count, seed, **options):
    """Over all draws, the share of rules that break their promise, and their mean coverage."""
    rng = np.random.default_rng(seed)
    failures, coverage = 0, 0.0
    for _ in range(DRAWS):
        rule = accept_rule(*population.draw(count, rng), **options)
        covered, risk = population.truth(rule.threshold)
        coverage += covered / DRAWS
        too_few = covered < (rule.min_coverage or 0) - 1e-4  # the grid's own step
        failures += bool(risk > rule.risk_bound + 1e-6 or too_few)
    return failures / DRAWS, coverage


@pytest.mark.parametrize(
    ("chance", "levels", "count", "max_risk", "least_coverage"),
    [
        # certified where it should be, and not beyond
        (lambda u: 0.22 * u, None, 1000, 0.1, 0.65),
        (lambda u: 0.02 * u**2, None, 2000, 0.01, 0.5),
        # the worst case: every threshold is just not good enough, so every certificate is false
        (lambda u: np.full_like(u, 0.05005), None, 1000, 0.05, 0.0),
        (lambda u: np.full_like(u, 0.01001), None, 2000, 0.01, 0.0),
        # error rates that rise and fall across the limit
        (lambda u: 0.05 * (1 + 0.8 * np.sin(12 * np.pi * u)), None, 1000, 0.05, 0.0),
        (lambda u: np.where(u < 0.5, 0.03, 0.08), None, 1000, 0.05, 0.25),
        # ties: a hundred, ten and three values, rising, flat and in zigzag
        (lambda u: 0.22 * u, 10, 1000, 0.1, 0.65),
        (lambda u: np.full_like(u, 0.05005), 100, 1000, 0.05, 0.0),
        (lambda u: 0.05 * np.where(np.round(10 * u) % 2 == 0, 1.3, 0.72), 10, 1000, 0.05, 0.0),
        (lambda u: np.where(u > 0.5, 0.3, 0.02), 3, 1000, 0.05, 0.5),
    ],
)
def test_the_certified_risk_is_exceeded_in_at_most_five_percent_of_draws(
    monkeypatch, chance, levels, count, max_risk, least_coverage
):
    monkeypatch.setattr(
        "qipf.calibration.accept_rule._reachable_risk", lambda *_: None
    )  # slow, and not needed
    failures, coverage = broken(Population(chance, levels), count, seed=1, max_risk=max_risk)
    assert failures <= ALLOWED
    assert coverage >= least_coverage


def test_the_simulation_would_find_a_search_without_correction():
    """Every rank at full level breaks the promise in far more draws than allowed."""
    population, failures = Population(lambda u: np.full_like(u, 0.05005)), 0
    rng = np.random.default_rng(1)
    for _ in range(DRAWS):
        uncertainty, wrong = population.draw(1000, rng)
        errors = wrong[np.argsort(uncertainty)].cumsum()
        failures += bool((binom.cdf(errors, np.arange(1, 1001), 0.05) <= 0.05).any())
    assert failures / DRAWS > 2 * ALLOWED


@pytest.mark.parametrize(
    ("chance", "levels", "min_coverage"),
    [
        (lambda u: 0.05 + 0.3 * u**2, None, 0.9),
        (lambda u: 0.3 - 0.25 * u, None, 0.5),
        (lambda u: 0.05 + 0.3 * u**2, 10, 0.5),
        (lambda u: np.where(np.round(10 * u) % 2 == 0, 0.3, 0.05), 10, 0.75),
    ],
)
def test_coverage_and_risk_hold_together_in_95_percent_of_draws(chance, levels, min_coverage):
    population = Population(chance, levels)
    failures, coverage = broken(population, 600, seed=2, min_coverage=min_coverage)
    assert failures <= ALLOWED
    assert min_coverage <= coverage <= min_coverage + (0.05 if levels is None else 0.15)


def test_the_answer_by_hand():
    # 300 predictions and three errors: walks start where 1 and 4 errors would be forgiven
    uncertainty, wrong = np.linspace(0, 1, 300), np.zeros(300, bool)
    wrong[[150, 200, 250]] = True
    assert [fewest(errors, 0.05, 0.025) for errors in (1, 4)] == [110, 202]
    rule = accept_rule(uncertainty, wrong, max_risk=0.05)
    assert rule == AcceptRule(
        threshold=1.0,
        risk_bound=0.05,
        confidence=0.95,
        held_out=300,
        accepted=300,
        errors=3,
        max_risk=0.05,
        min_coverage=None,
    )
    # two more at the very first end the first walk; the second forgives them, but not a third
    wrong[:2] = True
    assert accept_rule(uncertainty, wrong, max_risk=0.05).accepted == 300
    ranks = np.flatnonzero(certified_ranks(wrong.astype(int), 0.05, 0.05)) + 1
    assert ranks.tolist() == list(range(202, 301))
    wrong[2] = True
    assert accept_rule(uncertainty, wrong, max_risk=0.05).accepted == 0


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


def test_without_errors_everything_is_accepted_from_the_first_sample_that_can_certify():
    for count in (298, 299):
        rule = accept_rule(np.arange(count) / count, np.zeros(count, bool))
        assert (rule.accepted, rule.certified) == ((299, True) if count == 299 else (0, False))


def test_tied_predictions_are_accepted_or_rejected_together():
    rng = np.random.default_rng(3)
    uncertainty = rng.integers(0, 6, 2000) / 5
    wrong = rng.random(2000) < 0.3 * uncertainty
    rule = accept_rule(uncertainty, wrong, max_risk=0.1)
    assert rule.threshold in set(uncertainty)
    assert rule.accepted == (uncertainty <= rule.threshold).sum() == rule(uncertainty).sum()
    assert rule.errors == wrong[uncertainty <= rule.threshold].sum()
    one_value = accept_rule(np.full(1000, 0.5), np.arange(1000) % 100 == 0, max_risk=0.05)
    assert (one_value.threshold, one_value.accepted, one_value.errors) == (0.5, 1000, 10)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-300, 1e-3, 7.0, 1e300]))
def test_only_the_order_of_the_uncertainties_counts(seed, scale):
    rng = np.random.default_rng(seed)
    uncertainty, wrong = rng.permutation(600) / 600, rng.random(600) < 0.04
    plain = accept_rule(uncertainty, wrong, max_risk=0.1)
    shuffled = rng.permutation(600)
    moved = accept_rule(scale * uncertainty[shuffled], wrong[shuffled], max_risk=0.1)
    assert (moved.accepted, moved.errors) == (plain.accepted, plain.errors)
    assert moved.threshold == (scale * plain.threshold if plain.accepted else -np.inf)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_a_higher_confidence_or_a_lower_risk_never_asks_for_fewer_held_out_predictions(seed):
    rng = np.random.default_rng(seed)
    risks, levels = np.sort(rng.uniform(0.005, 0.5, 2)), np.sort(rng.uniform(0.001, 0.2, 2))
    assert fewest(3, risks[0], levels[0]) >= fewest(3, risks[1], levels[1])


def test_min_coverage_by_hand():
    rng = np.random.default_rng(4)
    uncertainty = rng.random(800)
    wrong = rng.random(800) < 0.2 * uncertainty
    rule = accept_rule(uncertainty, wrong, min_coverage=0.7, confidence=0.9)
    k = rule.accepted
    assert binom.sf(k - 1, 800, 0.7) <= 0.05 < binom.sf(k - 2, 800, 0.7)
    ordered = wrong[np.argsort(uncertainty)]
    assert rule.threshold == np.sort(uncertainty)[k - 1]
    assert rule.errors == ordered[:k].sum()
    bounds = [
        beta.isf(0.05, s + 1, n - s) for n, s in ((k, rule.errors), (k - 1, ordered[: k - 1].sum()))
    ]
    assert rule.risk_bound == pytest.approx(max(bounds), rel=1e-9)
    assert (rule.max_risk, rule.min_coverage) == (None, 0.7)


def test_a_coverage_too_high_to_be_told_from_all_accepts_all():
    rule = accept_rule(np.arange(20.0), np.arange(20) == 3, min_coverage=0.99)
    assert rule(np.array([1e300, -1e300, 19.5])).all()
    assert rule.risk_bound == pytest.approx(beta.isf(0.025, 2, 19), rel=1e-9)
    assert str(rule).startswith(
        "Accept every prediction.\nWith 95 % confidence, at least 99 % are "
    )


def test_arrays_tensors_and_lists_give_the_same_rule():
    rng = np.random.default_rng(5)
    uncertainty, wrong = rng.random(500), rng.random(500) < 0.02
    expected = accept_rule(uncertainty, wrong, 0.1)
    for one, other in (
        (torch.from_numpy(uncertainty), torch.from_numpy(wrong)),
        (uncertainty.tolist(), wrong.tolist()),
        (uncertainty, wrong.astype(np.float32)),
    ):
        assert accept_rule(one, other, 0.1) == expected
    half = accept_rule(torch.from_numpy(uncertainty).bfloat16(), wrong, 0.1)
    assert half.held_out == 500


U, W = np.linspace(0, 1, 400), np.zeros(400, bool)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((U, W), {"max_risk": 0.0}, "max_risk must lie between 0 and 1, got 0.0. Try 0.01."),
        (
            (U, W),
            {"max_risk": 5e-324},
            "max_risk must be at least 1e-09, got 5e-324: no held-out set is large enough to "
            "certify less.",
        ),
        ((U, W), {"max_risk": 1}, "max_risk must lie between 0 and 1, got 1. Try 0.01."),
        ((U, W), {"max_risk": np.nan}, "max_risk must lie between 0 and 1, got nan. Try 0.01."),
        ((U, W), {"max_risk": "1%"}, "max_risk must lie between 0 and 1, got '1%'. Try 0.01."),
        ((U, W), {"confidence": 95}, "confidence must lie between 0 and 1, got 95. Try 0.95."),
        ((U, W), {"confidence": True}, "confidence must lie between 0 and 1, got True. Try 0.95."),
        ((U, W), {"min_coverage": 1.5}, "min_coverage must lie between 0 and 1, got 1.5. Try 0.9."),
        (
            (U, W),
            {"max_risk": 0.01, "min_coverage": 0.5},
            "Pass max_risk or min_coverage, not both.",
        ),
        (
            (U, W[:5]),
            {},
            "wrong must have the shape of uncertainty, (400,); got (5,).",
        ),
        (
            (U, U),
            {},
            "wrong must hold booleans, true where the prediction is wrong; got ",
        ),
        (
            (U, np.array(["no"] * 400)),
            {},
            "wrong must hold booleans, true where the prediction is wrong; got ['no'].",
        ),
        (
            (U[:, None], W),
            {},
            "uncertainty must be one number for each prediction, shape (n,) with n at least 1; "
            "got shape (400, 1).",
        ),
        (
            ([], []),
            {},
            "uncertainty must be one number for each prediction, shape (n,) with n at least 1; "
            "got shape (0,).",
        ),
        (
            (np.append(U[1:], np.nan), W),
            {},
            "uncertainty has 1 values that are not finite (first: row 399, nan). Drop these "
            "predictions, or rank them yourself.",
        ),
        ((U * 1j, W), {}, "uncertainty must hold real numbers, got complex128."),
        (([[1.0], [1.0, 2.0]], W), {}, "uncertainty is not an array of numbers: "),
    ],
)
def test_what_cannot_be_used_is_refused(arguments, options, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        accept_rule(*arguments, **options)


def test_the_names_are_public():
    assert qipf.accept_rule is accept_rule
    assert {"AcceptRule", "RiskCoverage", "accept_rule", "risk_coverage"} <= set(qipf.__all__)
