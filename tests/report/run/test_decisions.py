"""Decisions on kept scores: rules, alarms and accuracies, tried on what they were not made from."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import ShiftMonitor, accept_rule
from qipf.calibration.accuracy import AccuracyEstimator
from qipf.calibration.conformal import Calibration
from qipf.report.run.decisions import (
    by_severity,
    guesses,
    halved_trial,
    halves,
    timeline,
    tried,
)
from qipf.report.run.run import Run


@given(st.integers(2, 500), st.integers(0, 2**32 - 1))
def test_halves_are_two_and_whole(count, seed):
    held_out, other = halves(count, seed)
    assert len(held_out) == count // 2
    assert sorted([*held_out, *other]) == list(range(count))


def test_a_rule_is_tried_on_the_other_half(rng):
    uncertainty = rng.random(2000).astype(np.float32)
    wrong = rng.random(2000) < uncertainty**3 / 2
    trial = halved_trial(uncertainty, wrong, 0.05, seed=4)
    held_out, other = halves(2000, 4)
    assert trial.rule == accept_rule(uncertainty[held_out], wrong[held_out], 0.05)
    accepted = uncertainty[other] <= trial.rule.threshold
    assert (trial.count, trial.accepted) == (1000, accepted.sum())
    assert trial.errors == wrong[other][accepted].sum()
    assert trial.coverage == accepted.mean()
    assert trial.risk == wrong[other][accepted].mean()


def test_a_rule_that_certifies_nothing_accepts_nothing():
    trial = halved_trial(np.arange(100.0), np.arange(100) % 2 == 0, 0.01)
    assert (trial.rule.certified, trial.accepted, trial.errors) == (False, 0, 0)
    assert trial.coverage == 0.0
    assert math.isnan(trial.risk)


def test_unlike_data_break_the_promise():
    rule = accept_rule(np.linspace(0, 1, 1000), np.zeros(1000, bool), 0.01)
    shifted = tried(rule, np.zeros(10), np.ones(10, bool))
    assert (shifted.risk, shifted.coverage) == (1.0, 1.0)


def test_the_timeline_is_the_monitors(rng):
    clean = rng.normal(size=8000)
    spoilt = {15.0: rng.normal(size=8000), 30.0: rng.normal(3.0, size=8000)}
    line = timeline(clean, spoilt, alpha=0.02, seed=3)
    held_out, other = halves(8000, 3)
    stream = np.concatenate(
        [clean[other[:1000]], spoilt[15.0][other[1000:1100]], spoilt[30.0][other[1100:1200]]]
    )
    monitor = ShiftMonitor(Calibration(clean[held_out]), alpha=0.02, random_state=3)
    verdict = monitor.update(stream)
    assert line.starts == [(1000, 15.0), (1100, 30.0)]
    assert (line.alarm_at, line.since) == (verdict.alarm_at, verdict.change_point)
    assert (line.seen[0], line.seen[-1]) == (0, 1200)
    assert line.evidence[0] == 0.0
    assert line.evidence[-1] == pytest.approx(verdict.log_evidence / math.log(10))
    assert 1100 < line.alarm_at < 1130
    assert (line.clean, line.delay) == (1000, line.alarm_at - 1000)
    assert line.alarm_level == 30.0
    before = [e for seen, e in zip(line.seen, line.evidence, strict=True) if seen < line.alarm_at]
    assert max(before) < math.log10(1 / 0.02)


def test_no_image_comes_twice_and_small_test_sets_are_dealt_out():
    images = np.arange(30.0)
    seen = []
    for level in range(20):
        seen.append((float(level), images + 100 * level))
    line = timeline(images, dict(seen))
    # 15 held out, 7 clean, one each for as many levels as there are images
    assert line.starts == [(7 + k, float(k)) for k in range(8)]
    assert line.seen[-1] == 15


def test_no_alarm_has_no_delay(rng):
    line = timeline(rng.normal(size=400), {1.0: rng.normal(size=400)})
    assert (line.alarm_at, line.delay, line.alarm_level) == (None, None, None)


def test_levels_by_severity():
    assert by_severity("brightness", [4, 0.2, 0.8, 1.5, 0, 0.5, 2]) == [0.8, 1.5, 0.5, 2, 4, 0.2, 0]
    assert by_severity("rotation", [30, 15, 270, 90]) == [15, 30, 90, 270]
    assert by_severity("a corruption of one's own", [3, 1, 2]) == [1, 2, 3]


@pytest.mark.parametrize("way", ["threshold", "isotonic"])
def test_guesses_learn_from_one_half_and_are_asked_about_the_other(paired_run, way):
    run = Run(paired_run)
    found = {(g.corruption, g.level): g for g in guesses(run, "tiny_mlp", way)}
    assert list(found) == [
        ("none", 0.0), ("rotation", 15.0), ("rotation", 30.0), ("rotation", 90.0),
        ("zoom", 0.5), ("zoom", 2.0),
    ]  # fmt: skip
    clean, clean_wrong = run.scores("tiny_mlp", "none")[0.0]
    spoilt, wrong = run.scores("tiny_mlp", "rotation")[30.0]
    held_out, other = halves(len(wrong))
    guess = found["rotation", 30.0]
    assert guess.truth == pytest.approx(1 - wrong[other].mean())
    assert guess.assumed == pytest.approx(1 - clean_wrong[held_out].mean())
    assert list(guess.told) == ["qipf", "softmax"]
    for name in guess.told:
        learnt = AccuracyEstimator(clean[name][held_out], clean_wrong[held_out], way)
        assert guess.told[name] == learnt.estimate(spoilt[name][other])
