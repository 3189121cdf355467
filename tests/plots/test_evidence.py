"""The plot of a monitor shows its evidence, its alarm level and its alarm."""

import math

import numpy as np
import pytest
from matplotlib import pyplot

from qipf import Calibration, ShiftMonitor
from tests.plots.conftest import labels, line


def test_the_line_is_the_evidence(ax, rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=300)), alpha=0.02)
    evidence = [monitor.update_scores([score]).log_evidence for score in rng.normal(size=40)]
    assert monitor.plot(ax) is ax
    x, y = line(ax, "evidence")
    assert x.tolist() == list(range(41))
    np.testing.assert_allclose(y, np.r_[0.0, evidence] / math.log(10), rtol=1e-12)
    assert list(line(ax, "alarm level, 1/0.02")[1]) == [pytest.approx(math.log10(50))] * 2
    assert labels(ax) == ["evidence", "alarm level, 1/0.02"]


def test_the_alarm_and_the_last_prediction_are_drawn(ax, rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=300)))
    monitor.update_scores(np.r_[rng.normal(size=800), rng.normal(2.0, size=201)])
    verdict = monitor.verdict()
    monitor.plot(ax, color="blue")
    x, y = line(ax, "evidence")
    assert (x[-2], x[-1]) == (1000, 1001)
    assert y[-1] == verdict.log_evidence / math.log(10)
    assert ax.lines[0].get_color() == "blue"
    assert line(ax, f"alarm at {verdict.alarm_at:,}")[0] == [verdict.alarm_at] * 2
    change = verdict.change_point
    assert line(ax, f"change point, about {change:,}")[0] == [change] * 2


def test_a_monitor_without_predictions(ax, rng):
    ShiftMonitor(Calibration(rng.normal(size=30))).plot(ax)
    assert [values.tolist() for values in line(ax, "evidence")] == [[0], [0.0]]
    assert ShiftMonitor(Calibration(rng.normal(size=30))).plot() is not ax
    pyplot.close("all")
