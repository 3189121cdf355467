"""accept_rule: the guarantee by simulation, rules by hand, rejections."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from qipf import AcceptRule, QIPFInputError, QIPFWarning, accept_rule
from qipf.calibration.conformal import Calibration
from qipf.calibration.fixed_sequence import certified_ranks, fewest
from qipf.calibration.quantization import highest, rounded
from qipf.calibration.rule import Tally

DRAWS = 400

#: 5 % and what so many draws may add to it by chance: exceeded with a probability of 1 in 100.
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_simulation_would_find_a_search_without_correction():
    """Every rank at full level breaks the promise in far more draws than allowed."""
    population, failures = Population(lambda u: np.full_like(u, 0.05005)), 0
    rng = np.random.default_rng(1)
    for _ in range(DRAWS):
        uncertainty, wrong = population.draw(1000, rng)
        errors = wrong[np.argsort(uncertainty)].cumsum()
        failures += bool((binom.cdf(errors, np.arange(1, 1001), 0.05) <= 0.05).any())
    assert failures / DRAWS > 2 * ALLOWED


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("levels", [None, 12])
def test_the_risk_of_a_rule_that_abstains_from_novel_inputs(monkeypatch, levels):
    """The worst case: below the limit of novelty every threshold is just not good enough.

    Above it predictions are right, and would outweigh the errors of a rule that counted them.
    """
    monkeypatch.setattr("qipf.calibration.accept_rule._reachable_risk", lambda *_: None)
    rng, false, rejected = np.random.default_rng(3), 0, []
    for _ in range(DRAWS):
        uncertainty, novelty = rng.random((2, 500))
        if levels is not None:
            novelty = np.floor(novelty * levels)
        wrong = (rng.random(500) < 0.1001) & (novelty <= 0.75 * (levels or 1))
        rule = accept_rule(uncertainty, wrong, 0.1, novelty=novelty, min_novelty_p=0.3)
        false += rule.accepted > 0
        rejected.append(np.mean(novelty > rule.max_novelty))
    assert false / DRAWS <= ALLOWED
    assert np.mean(rejected) == pytest.approx(0.3, abs=0.01 if levels is None else 0.05)


def test_a_rule_with_novelty_is_that_of_the_usual_predictions(rng):
    uncertainty, novelty = rng.random((2, 999))
    wrong = rng.random(999) < 0.2 * uncertainty + 0.3 * (novelty > 0.9)
    rule = accept_rule(uncertainty, wrong, 0.1, novelty=novelty, min_novelty_p=0.1)
    first = np.sort(rounded(novelty))[-100]  # 0.1 · (999 + 1)
    usual = rounded(novelty) < first
    same = accept_rule(uncertainty[usual], wrong[usual], 0.1)
    assert (rule.threshold, rule.accepted, rule.errors) == (
        same.threshold, same.accepted, same.errors,
    )  # fmt: skip
    assert rule.held_out == 999
    assert rule.coverage == rule.accepted / 999
    assert 0 < rule.accepted < 899
    p_values = Calibration(novelty).p_values(novelty)
    assert (p_values[novelty <= rule.max_novelty] > 0.1).all()
    assert (p_values[rounded(novelty) > first] <= 0.1).all()
    accepted = rule(uncertainty, novelty)
    np.testing.assert_array_equal(
        accepted, (uncertainty <= rule.threshold) & (novelty <= rule.max_novelty)
    )
    assert int(accepted.sum()) == rule.accepted
    tensors = torch.from_numpy(uncertainty), torch.from_numpy(novelty)
    assert torch.equal(rule(*tensors), torch.from_numpy(accepted))
    np.testing.assert_array_equal(rule(uncertainty, tensors[1]), accepted)
    assert torch.equal(rule(tensors[0], novelty), torch.from_numpy(accepted))
    assert f"and a novelty of at most {rule.max_novelty:.6g}." in str(rule)


def test_a_rule_with_novelty_needs_it_and_abstains_from_nan(rng):
    uncertainty, novelty = rng.random((2, 300))
    rule = accept_rule(uncertainty, np.zeros(300), 0.1, novelty=novelty, min_novelty_p=0.05)
    with pytest.raises(QIPFInputError, match=re.escape("rule(*model.both_scores(inputs))")):
        rule(uncertainty)
    with pytest.raises(QIPFInputError, match=re.escape("shape of uncertainty, (300,); got (2,)")):
        rule(uncertainty, novelty[:2])
    assert rule.tally([0.0, 0.0, np.nan], [0.5, np.nan, 0.5]) == Tally(1, 2, 2)
    with pytest.warns(QIPFWarning, match="1 of 2 scores are NaN or infinite"):
        assert rule([0.0, 0.0], [0.5, np.nan]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"novelty": np.ones(20)}, "belong together, such as min_novelty_p=0.01"),
        ({"min_novelty_p": 0.1}, "belong together"),
        ({"novelty": np.ones(20), "min_novelty_p": 0.1, "min_coverage": 0.5}, "not with min_cov"),
        ({"novelty": np.ones(19), "min_novelty_p": 0.1}, "shape of uncertainty, (20,); got (19,)"),
        ({"novelty": np.full(20, np.nan), "min_novelty_p": 0.1}, "20 values that are not finite"),
        ({"novelty": np.ones(20), "min_novelty_p": 2}, "min_novelty_p must lie between 0 and 1"),
        ({"novelty": np.ones(20), "min_novelty_p": 0.01}, "at least 99 of them, or a larger"),
    ],
)
def test_invalid_novelties_are_rejected(options, phrase):
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        accept_rule(np.arange(20.0), np.zeros(20), **options)


def test_if_all_are_tied_in_novelty_the_rule_abstains():
    rule = accept_rule(np.arange(99.0), np.zeros(99), novelty=np.ones(99), min_novelty_p=0.01)
    assert (rule.accepted, rule.held_out, rule.certified) == (0, 99, False)
    assert "abstain from all predictions" in str(rule)


def step_above(score):
    """The largest score that is rounded as this one is: where a rule ends that accepts it."""
    return highest(float(rounded(np.array([score]))[0]))


def test_the_answer_by_hand():
    # 300 predictions and three errors: walks start where 1 and 4 errors would be forgiven
    uncertainty, wrong = np.linspace(0, 1, 300), np.zeros(300, bool)
    wrong[[150, 200, 250]] = True
    assert [fewest(errors, 0.05, 0.025) for errors in (1, 4)] == [110, 202]
    rule = accept_rule(uncertainty, wrong, max_risk=0.05)
    assert rule == AcceptRule(
        threshold=step_above(1.0),
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


def test_without_errors_everything_is_accepted_from_the_first_sample_that_can_certify():
    for count in (298, 299):
        rule = accept_rule(np.arange(count) / count, np.zeros(count, bool))
        assert (rule.accepted, rule.certified) == ((299, True) if count == 299 else (0, False))


@pytest.mark.parametrize("first", [True, False])
def test_ties_are_tested_in_random_order_whatever_order_they_come_in(first, monkeypatch):
    """Right predictions first would let a sequence pass that a random order ends."""
    seen = []

    def recorded(errors, *options):
        seen.append(errors.tolist())
        return certified_ranks(errors, *options)

    monkeypatch.setattr("qipf.calibration.accept_rule.certified_ranks", recorded)
    wrong = (np.arange(400) < 40) == first  # 40 errors at one end, or all but 40
    accept_rule(np.repeat([1.0, 2.0], 200), wrong, 0.05)
    shuffled = np.random.default_rng(0).permutation(400)
    ranked = sorted(shuffled.tolist(), key=lambda place: place >= 200)  # ties keep the order
    by_score = np.concatenate([np.sort(wrong[:200]), np.sort(wrong[200:])])
    assert seen[0] == by_score[ranked].astype(int).tolist()
    places = np.flatnonzero(np.array(seen[0][:200]) != seen[0][399])
    assert 60 < places.mean() < 140


def test_tied_predictions_are_accepted_or_rejected_together():
    rng = np.random.default_rng(3)
    uncertainty = rng.integers(0, 6, 2000) / 5
    wrong = rng.random(2000) < 0.3 * uncertainty
    rule = accept_rule(uncertainty, wrong, max_risk=0.1)
    assert rule.threshold in {step_above(score) for score in set(uncertainty)}
    assert rule.accepted == (uncertainty <= rule.threshold).sum() == rule(uncertainty).sum()
    assert rule.errors == wrong[uncertainty <= rule.threshold].sum()
    one_value = accept_rule(np.full(1000, 0.5), np.arange(1000) % 100 == 0, max_risk=0.05)
    assert (one_value.threshold, one_value.accepted, one_value.errors) == (
        step_above(0.5),
        1000,
        10,
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-300, 1e-3, 7.0, 1e300]))
def test_only_the_order_of_the_uncertainties_counts(seed, scale):
    rng = np.random.default_rng(seed)
    uncertainty, wrong = rng.permutation(600) / 600, rng.random(600) < 0.04
    plain = accept_rule(uncertainty, wrong, max_risk=0.1)
    shuffled = rng.permutation(600)
    moved = accept_rule(scale * uncertainty[shuffled], wrong[shuffled], max_risk=0.1)
    assert (moved.accepted, moved.errors) == (plain.accepted, plain.errors)
    last = scale * np.sort(uncertainty)[plain.accepted - 1]
    assert moved.threshold == (step_above(last) if plain.accepted else -np.inf)


def test_min_coverage_by_hand():
    rng = np.random.default_rng(4)
    uncertainty = rng.random(800)
    wrong = rng.random(800) < 0.2 * uncertainty
    rule = accept_rule(uncertainty, wrong, min_coverage=0.7, confidence=0.9)
    k = rule.accepted
    assert binom.sf(k - 1, 800, 0.7) <= 0.05 < binom.sf(k - 2, 800, 0.7)
    ordered = wrong[np.argsort(uncertainty)]
    assert rule.threshold == step_above(np.sort(uncertainty)[k - 1])
    assert rule.errors == ordered[:k].sum()
    bounds = [
        beta.isf(0.05, s + 1, n - s) for n, s in ((k, rule.errors), (k - 1, ordered[: k - 1].sum()))
    ]
    assert rule.risk_bound == pytest.approx(max(bounds), rel=1e-9)
    assert (rule.max_risk, rule.min_coverage) == (None, 0.7)


def test_min_coverage_counts_the_errors_of_tied_scores():
    rng = np.random.default_rng(5)
    uncertainty = rng.integers(10, size=800) / 10
    wrong = rng.random(800) < 0.3
    rule = accept_rule(uncertainty, wrong, min_coverage=0.7)
    accepted = uncertainty <= rule.threshold
    tied = uncertainty == uncertainty[accepted].max()
    assert wrong[tied].any()
    assert (rule.accepted, rule.errors) == (accepted.sum(), wrong[accepted].sum())


def test_a_coverage_too_high_for_the_sample_accepts_all():
    rule = accept_rule(np.arange(20.0), np.arange(20) == 3, min_coverage=0.99)
    assert rule(np.array([1e300, -1e300, 19.5])).all()
    assert rule.risk_bound == pytest.approx(beta.isf(0.025, 2, 19), rel=1e-9)
    assert "Accept every prediction." in str(rule)
    assert "at least 99 % are accepted" in str(rule)


@pytest.mark.parametrize("options", [{"max_risk": 0.1}, {"min_coverage": 0.4}])
@pytest.mark.parametrize("largest", [1e308, np.finfo(float).max])
def test_the_largest_finite_scores_are_rounded_to_finite_ones(largest, options):
    few = accept_rule(
        np.append(np.zeros(300), np.full(300, largest)), np.arange(600) > 300, **options
    )
    all_ = accept_rule(np.full(300, largest), np.zeros(300, bool), **options)
    assert few(np.array([0.0, largest])).tolist() == [True, False]
    assert all_(np.array([0.0, largest])).all()


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
    ("arguments", "options", "phrase"),
    [
        ((U, W), {"max_risk": 0.0}, "max_risk must lie between 0 and 1, got 0.0. Try 0.01."),
        ((U, W), {"max_risk": 5e-324}, "max_risk must be at least 1e-09"),
        ((U, W), {"max_risk": 1}, "got 1"),
        ((U, W), {"max_risk": np.nan}, "got nan"),
        ((U, W), {"max_risk": "1%"}, "got '1%'"),
        ((U, W), {"confidence": 95}, "confidence must lie between 0 and 1, got 95. Try 0.95."),
        ((U, W), {"confidence": True}, "got True"),
        ((U, W), {"min_coverage": 1.5}, "min_coverage must lie between 0 and 1, got 1.5. Try 0.9."),
        ((U, W), {"max_risk": 0.01, "min_coverage": 0.5}, "not both"),
        ((U, W[:5]), {}, "wrong must have the shape of uncertainty, (400,)"),
        ((U, U), {}, "wrong must hold booleans"),
        ((U, np.array(["no"] * 400)), {}, "got ['no']"),
        ((U[:, None], W), {}, "got shape (400, 1)"),
        (([], []), {}, "uncertainty is empty"),
        ((np.append(U[1:], np.nan), W), {}, "(first: row 399, nan)"),
        ((U * 1j, W), {}, "real numbers, got complex128"),
        (([[1.0], [1.0, 2.0]], W), {}, "uncertainty is not an array of numbers"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, options, phrase):
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        accept_rule(*arguments, **options)


def test_the_text_says_if_nothing_can_be_certified_and_what_would_help():
    few = accept_rule(np.arange(60.0), np.zeros(60, bool))
    assert (few.certified, few.accepted, few.threshold, few.risk_bound) == (False, 0, -np.inf, 1.0)
    assert np.isnan(few.risk)
    assert not few(np.array([-1e308, 0.0])).any()
    assert str(few).splitlines() == [
        "No threshold can be certified: abstain from all predictions.",
        "Requested: at most 1 % wrong among the accepted, with 95 % confidence.",
        "Given: 60 held-out predictions; 299 are needed even if none of them is wrong. "
        "max_risk=0.049 would have been certified, if it had been requested first.",
    ]
    assert "Given: 1 held-out prediction; 299 are" in str(accept_rule([0.5], [False]))
    assert accept_rule(np.arange(60.0), np.zeros(60, bool), max_risk=0.049).accepted == 60
    bad = accept_rule(np.arange(900.0), np.arange(900) % 3 == 0)
    assert "Even the least uncertain of 900" in str(bad)
    assert accept_rule(np.arange(900.0), np.arange(900) % 3 == 0, bad.reachable_risk).certified
    hopeless = accept_rule(np.arange(900.0), np.ones(900, bool))
    assert hopeless.reachable_risk is None
    assert "max_risk=" not in str(hopeless)
