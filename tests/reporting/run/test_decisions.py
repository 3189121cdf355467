"""Decisions from the scores of a run are evaluated on predictions they were not made from."""

import math

import numpy as np
import pytest

from qipf import ShiftMonitor
from qipf.calibration.accuracy import AccuracyEstimator
from qipf.calibration.conformal import Calibration
from qipf.reporting.rule_evaluation import random_halves
from qipf.reporting.run.decisions import accuracy_comparisons, monitor_stream
from qipf.reporting.run.results import Run


def test_the_timeline_is_the_monitors(rng):
    clean = rng.normal(size=8000)
    corrupted = {15.0: rng.normal(size=8000), 30.0: rng.normal(3.0, size=8000)}
    line = monitor_stream(clean, corrupted, alpha=0.02, seed=3)
    held_out, other = random_halves(8000, 3)
    stream = np.concatenate(
        [clean[other[:1000]], corrupted[15.0][other[1000:1100]], corrupted[30.0][other[1100:1200]]]
    )
    monitor = ShiftMonitor(Calibration(clean[held_out]), alpha=0.02, random_state=3)
    verdict = monitor.update_scores(stream)
    assert line.starts == [(1000, 15.0), (1100, 30.0)]
    assert (line.alarm_at, line.change_point) == (verdict.alarm_at, verdict.change_point)
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
    line = monitor_stream(images, dict(seen))
    # 15 held out, 7 clean, one each for as many levels as there are images
    assert line.starts == [(7 + k, float(k)) for k in range(8)]
    assert line.seen[-1] == 15


def test_no_alarm_has_no_delay(rng):
    line = monitor_stream(rng.normal(size=400), {1.0: rng.normal(size=400)})
    assert (line.alarm_at, line.delay, line.alarm_level) == (None, None, None)


@pytest.mark.parametrize("way", ["threshold", "isotonic"])
def test_estimates_learn_from_one_half_and_are_applied_to_the_other(paired_run, way):
    run = Run(paired_run)
    found = {(g.corruption, g.level): g for g in accuracy_comparisons(run, "tiny_mlp", way)}
    assert list(found) == [
        ("none", 0.0), ("rotation", 15.0), ("rotation", 30.0), ("rotation", 90.0),
        ("zoom", 0.5), ("zoom", 2.0),
    ]  # fmt: skip
    clean, clean_wrong = run.scores("tiny_mlp", "none")[0.0]
    corrupted, wrong = run.scores("tiny_mlp", "rotation")[30.0]
    held_out, other = random_halves(len(wrong))
    each = found["rotation", 30.0]
    assert each.truth == pytest.approx(1 - wrong[other].mean())
    assert each.clean_accuracy == pytest.approx(1 - clean_wrong[held_out].mean())
    assert list(each.estimates) == ["qipf", "softmax"]
    for name in each.estimates:
        learnt = AccuracyEstimator(clean[name][held_out], clean_wrong[held_out], way)
        assert each.estimates[name] == learnt.estimate(corrupted[name][other])
