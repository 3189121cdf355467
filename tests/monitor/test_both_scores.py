"""A monitor of both scores: two tests with half of alpha each."""

import math

import numpy as np
import pytest

import qipf
from qipf import QIPFInputError, ShiftMonitor
from qipf.calibration.conformal import Calibration


def streams(seed, shifted=(), size=300, length=600):
    """A calibration set, and the scores of a stream of which the named ones shift half-way."""
    rng = np.random.default_rng(seed)
    calibration = Calibration(rng.normal(size=size), novelty=rng.normal(size=size))
    uncertainty, novelty = rng.normal(size=(2, length))
    for values, name in ((uncertainty, "uncertainty"), (novelty, "novelty")):
        if name in shifted:
            values[length // 2 :] += 2
    return calibration, uncertainty, novelty


@pytest.mark.parametrize(
    "shifted", [(), ("novelty",), ("uncertainty",), ("novelty", "uncertainty")]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_both_is_the_earlier_alarm_of_two_monitors_at_half_the_level(shifted, seed):
    calibration, uncertainty, novelty = streams(seed, shifted)
    both = ShiftMonitor(calibration, 0.02, window=100, random_state=seed)
    assert both.score == "both"
    for part in (slice(0, 50), slice(50, 350), slice(350, None)):
        verdict = both.update_scores(uncertainty[part], novelty[part])
    single = {}
    for score in ("novelty", "uncertainty"):
        alone = ShiftMonitor(calibration, 0.01, window=100, random_state=seed, score=score)
        single[score] = alone.update_scores(uncertainty, novelty)
    alarms = {s: v.alarm_at for s, v in single.items() if v.alarm}
    assert set(alarms) == set(shifted)
    assert verdict.alarm == bool(shifted)
    assert verdict.p_value == min(1.0, 2 * min(v.p_value for v in single.values()))
    if shifted:
        assert verdict.score == min(alarms, key=alarms.get)
        assert verdict.alarm_at == min(alarms.values())
        assert verdict.change_point == single[verdict.score].change_point
    else:
        assert verdict.score == min(single, key=lambda s: single[s].p_value)
    told = single[verdict.score]
    assert verdict.log_evidence == told.log_evidence - math.log(2)
    for found, parts in (
        (verdict.window, [v.window for v in single.values()]),
        (verdict.start, [v.start for v in single.values()]),
    ):
        largest = max(parts, key=lambda part: part.ks)
        assert (found.score, found.ks) == (largest.score, largest.ks)
        assert found.ks_p_value == min(1.0, 2 * largest.ks_p_value)


def test_a_saved_monitor_of_both_continues(tmp_path):
    calibration, uncertainty, novelty = streams(3, ("novelty",))
    whole, path = ShiftMonitor(calibration, window=50), tmp_path / "state"
    expected = whole.update_scores(uncertainty, novelty)
    part = ShiftMonitor(calibration, window=50)
    part.update_scores(uncertainty[:320], novelty[:320])
    part.save(path)
    loaded = ShiftMonitor.load(path, calibration)
    assert loaded.score == "both"
    assert loaded.update_scores(uncertainty[320:], novelty[320:]) == expected
    assert expected.score == "novelty"


def test_evidence_that_alarms_one_score_alone_is_no_alarm_of_both(tmp_path):
    """A p-value between alpha / 2 and alpha: also a file of it is read."""
    calibration, uncertainty, novelty = streams(3, ("novelty",))
    single = ShiftMonitor(calibration, score="novelty").update_scores(uncertainty, novelty)
    both = ShiftMonitor(calibration, alpha=1.5 * single.p_value)
    assert not both.update_scores(uncertainty, novelty).alarm
    both.save(tmp_path / "state")
    assert not ShiftMonitor.load(tmp_path / "state", calibration).verdict().alarm


def test_a_single_score_can_be_chosen():
    calibration, uncertainty, novelty = streams(0, ("novelty",))
    alone = ShiftMonitor(calibration, score="uncertainty").update_scores(uncertainty)
    assert not alone.alarm
    assert ShiftMonitor(calibration, score="novelty").update_scores(uncertainty, novelty).alarm
    with pytest.raises(QIPFInputError, match="test needs the novelty"):
        ShiftMonitor(calibration, score="both").update_scores(uncertainty)
    with pytest.raises(QIPFInputError, match="has no novelties"):
        ShiftMonitor(Calibration(uncertainty), score="both")
    assert ShiftMonitor(Calibration(uncertainty)).score == "uncertainty"


def test_the_plot_is_of_the_score_that_speaks():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    calibration, uncertainty, novelty = streams(0, ("novelty",), length=200)
    monitor = ShiftMonitor(calibration)
    verdict = monitor.update_scores(uncertainty, novelty)
    figure, ax = pyplot.subplots()
    monitor.plot(ax)
    assert ax.lines[0].get_ydata()[0] == pytest.approx(-math.log10(2))
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(verdict.log_evidence / math.log(10))
    pyplot.close(figure)


def test_false_alarms_of_both_are_at_most_alpha():
    """The two scores of a prediction are equal up to noise: the alarms often come together."""
    rng, streams_ = np.random.default_rng(0), 150
    lowest = []
    for seed in range(streams_):
        scores = rng.normal(size=700)
        novelty = scores + 0.3 * rng.normal(size=700)
        calibration = qipf.Calibration(scores[:100], novelty=novelty[:100])
        monitor = ShiftMonitor(calibration, window=1, random_state=seed)
        lowest.append(monitor.update_scores(scores[100:], novelty[100:]).p_value)
    assert np.mean(np.array(lowest) <= 0.05) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / streams_)


def test_a_novelty_that_is_no_number_is_abstained_from_without_a_word(rng):
    """By the rule's own limit, which warns of such scores."""
    uncertainty, novelty = rng.uniform(size=(2, 400))
    calibration = Calibration(uncertainty, np.zeros(400), novelty=novelty)
    rule = qipf.accept_rule(uncertainty, np.zeros(400), 0.1, novelty=novelty, min_novelty_p=0.05)
    monitor = ShiftMonitor(calibration, rule=rule)
    verdict = monitor.update_scores([0.1, 0.2, np.nan, 0.3], [0.1, np.nan, 0.2, np.inf])
    assert verdict.abstained == 3
