"""The monitor: false alarms over long clean streams, power, exact batches, what it counts."""

import copy
import json

import numpy as np
import pytest
import torch

import qipf
from qipf import AccuracyEstimator, QIPFInputError, ShiftMonitor
from qipf.calibration.conformal import Calibration
from qipf.calibration.quantization import rounded
from tests.conftest import make_logits


def clean(rng, size, length, kind):
    """Held-out scores and a stream, drawn anew and alike."""
    draw = rng.normal(size=size + length)
    if kind == "tied":
        draw = np.floor(2 * draw)
    if kind == "heavy":
        draw = draw / rng.uniform(size=len(draw))
    return Calibration(draw[:size]), draw[size:]


def test_false_alarms_over_long_clean_streams_are_at_most_alpha():
    """1,000 streams of 10,000, each with a new held-out set, most of them shorter than the stream.

    Judged after every prediction: an alarm at level alpha is a peak of at least 1/alpha.
    """
    rng, streams, length = np.random.default_rng(0), 1000, 10_000
    designs = [(30, "plain"), (300, "heavy"), (300, "tied"), (3000, "plain")]
    lowest = []
    for k in range(streams):
        calibration, stream = clean(rng, *designs[k % 4][:1], length, designs[k % 4][1])
        verdict = ShiftMonitor(calibration, window=1, random_state=k).update(stream)
        assert verdict.seen == length
        assert verdict.alarm == (verdict.p_value <= 0.01)
        lowest.append(verdict.p_value)
    for alpha in (0.01, 0.05):
        share = np.mean(np.array(lowest) <= alpha)
        assert share <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / streams)


def test_ranked_against_a_fixed_set_the_same_game_would_be_lost(rng):
    """Why the held-out set has to grow: a small one's luck looks like a shift."""
    from qipf.monitor.martingale import Betting

    alarms = 0
    for _ in range(40):
        calibration, stream = clean(rng, 100, 5000, "plain")
        p = calibration.p_values(stream, rng.uniform(size=len(stream)))
        alarms += Betting().add(p, 1 - p, np.log(100)) is not None
    assert alarms > 40 * 0.2  # at alpha = 0.01


@pytest.mark.parametrize("size", [200, 5000])
@pytest.mark.parametrize(
    ("change", "soon"),
    [(lambda s: s + 3, 20), (lambda s: s + 1, 120), (lambda s: s - 1, 200),
     (lambda s: s * 2, 120), (lambda s: s * np.nan, 20)],
    ids=["sudden", "higher", "lower", "wider", "nan"],
)  # fmt: skip
def test_a_change_is_found_soon_and_dated(size, change, soon):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        stream = rng.normal(size=4000)
        stream[3000:] = change(stream[3000:])
        verdict = ShiftMonitor(Calibration(rng.normal(size=size))).update(stream)
        assert verdict.alarm
        assert 3000 < verdict.alarm_at <= 3000 + soon
        assert abs(verdict.since - 3001) <= 40


def test_a_small_lasting_shift_from_the_start_is_found(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=5000)))
    assert monitor.update(rng.normal(loc=0.25, size=2000)).alarm


def test_the_alarm_stays(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=500)))
    first = monitor.update(rng.normal(loc=4, size=50))
    later = monitor.update(rng.normal(size=5000))
    assert first.alarm
    assert (later.alarm, later.alarm_at, later.since) == (True, first.alarm_at, first.since)
    assert later.p_value <= first.p_value


def test_one_by_one_is_batch_by_batch_to_the_last_bit(rng):
    calibration = Calibration(rng.normal(size=700), rng.uniform(size=700) < 0.1)
    stream = rng.normal(loc=0.2, size=3000)
    stream[[5, 900]] = np.nan
    whole, singly, pieces = (ShiftMonitor(calibration, window=64) for _ in range(3))
    for score in stream:
        singly.update(score)
    for part in np.split(stream, [1, 20, 20, 1500, 2999]):
        pieces.update(part)
    assert whole.update(stream) == singly.verdict() == pieces.verdict()


def test_the_seed_decides_ties_and_nothing_else(rng):
    calibration, stream = Calibration(rng.normal(size=99)), rng.normal(size=99)
    first, same, other = (ShiftMonitor(calibration, random_state=seed) for seed in (1, 1, 2))
    assert first.update(stream) == same.update(stream)
    assert first.verdict().log_evidence != other.update(stream).log_evidence
    assert first.verdict().window == other.verdict().window


def test_memory_does_not_grow(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=200_000)), window=100)

    def numbers():
        state = monitor._state
        held = [*vars(state.ranks).values(), *vars(state.betting).values()]
        held += [state.recent, state.refused]
        return sum(np.size(value) for value in held)

    monitor.update(rng.normal(size=200))
    before = numbers()
    monitor.update(rng.normal(size=20_000))
    assert numbers() == before < 6000
    state = monitor._state
    assert (state.recent.base, state.refused.base) == (None, None)  # no view of all that came


def test_the_window_holds_the_last_predictions(rng):
    calibration = Calibration(rng.normal(size=300), rng.uniform(size=300) < 0.2)
    monitor, stream = ShiftMonitor(calibration, window=50), rng.normal(size=120)
    stream[[100, 119]] = np.nan, np.inf
    verdict = monitor.update(stream)
    estimate = AccuracyEstimator.of(calibration).estimate(stream[-50:])
    assert verdict.accuracy == estimate
    assert verdict.window.count == 50
    assert (verdict.window.abstained, verdict.abstained) == (2, 2)
    assert monitor.update(rng.normal(size=50)).window.abstained == 0
    assert monitor.verdict().abstained == 2


def test_a_rule_says_what_is_abstained_from(rng):
    calibration = Calibration(rng.uniform(size=100))
    monitor = ShiftMonitor(calibration, rule=lambda u: u <= 0.5)
    assert monitor.update([0.1, 0.9, np.nan, 0.5]).abstained == 2
    assert ShiftMonitor(calibration).update([0.1, 0.9, np.nan, 0.5]).abstained == 1


def test_before_anything_was_seen():
    verdict = ShiftMonitor(Calibration([1.0, 2.0], [False, True])).verdict()
    assert (verdict.seen, verdict.log_evidence, verdict.p_value, verdict.alarm) == (0, 0, 1, False)
    assert (verdict.alarm_at, verdict.since, verdict.accuracy) == (None, None, None)
    assert verdict.window.count == 0


def test_a_verdict_is_plain_json(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=50), np.zeros(50)))
    told = monitor.update([np.nan, 1.0]).as_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told


@pytest.fixture(scope="module")
def field():
    return qipf.QIPF(bandwidth="silverman").fit(make_logits(300).numpy())


def test_logits_are_judged_by_the_field(field):
    held_out, stream = make_logits(200, seed=4), make_logits(100, seed=5)
    calibrated = copy.deepcopy(field).calibrate(held_out.numpy())
    by_logits, by_uncertainty = ShiftMonitor(calibrated), ShiftMonitor(calibrated)
    expected = by_uncertainty.update(calibrated.uncertainty(stream.numpy()))
    assert by_logits.update_logits(stream) == expected
    spoilt = stream.numpy().copy()
    spoilt[3, 0], spoilt[7, 1] = np.nan, np.inf
    values = by_logits.uncertainty(spoilt)
    assert np.flatnonzero(np.isnan(values)).tolist() == [3, 7]
    assert by_logits.update_logits(spoilt).abstained == 2
    assert by_logits.update_logits(torch.full((10,), torch.nan)).abstained == 3
    assert by_logits.seen == 201


def test_narrow_logits_are_judged_as_wide_ones(field):
    calibrated = copy.deepcopy(field).calibrate(make_logits(200, seed=4).numpy())
    narrow = make_logits(20, seed=5).bfloat16()
    one, other = ShiftMonitor(calibrated), ShiftMonitor(calibrated)
    assert one.update_logits(narrow) == other.update_logits(narrow.float())


def well_inside(field, rows):
    """Rows whose scores lie in the middle of a step of rounding, not at a limit between two."""
    scores = field.uncertainty(rows)
    return rows[rounded(scores * (1 - 1e-5)) == rounded(scores * (1 + 1e-5))]


@pytest.mark.parametrize("seed", range(4))
def test_equal_predictions_are_equal_one_by_one_and_in_a_batch(field, seed):
    """Three kinds of predictions: the batch may decide the last bits of scores, but no rank."""
    rng = np.random.default_rng(seed)
    kinds = well_inside(field, make_logits(50, seed=40 + seed).numpy())[:3]
    calibrated = copy.deepcopy(field).calibrate(kinds[rng.integers(0, 3, 500)])
    stream = kinds[rng.integers(0, 3, 300)]
    singly, whole = ShiftMonitor(calibrated), ShiftMonitor(calibrated)
    for row in stream:
        singly.update_logits(row)
    verdict = whole.update_logits(stream)
    assert not verdict.alarm
    alone = singly.verdict()
    assert alone.log_evidence == verdict.log_evidence
    assert (alone.p_value, alone.window) == (verdict.p_value, verdict.window)


def test_scores_off_by_the_rounding_of_a_batch_raise_no_alarm(rng):
    """As far off as float32 engines leave them, whatever the engine does today."""
    kinds = np.array([0.37, 1.13, 2.71])
    monitor = ShiftMonitor(Calibration(kinds[rng.integers(0, 3, 500)]))
    noise = 1 + 4e-6 * rng.uniform(-1, 1, size=300)
    exact = ShiftMonitor(monitor.calibration)
    drawn = kinds[rng.integers(0, 3, 300)]
    noisy, verdict = monitor.update(drawn * noise), exact.update(drawn)
    assert not noisy.alarm
    assert noisy == verdict


def test_the_rule_never_sees_nan_and_is_asked_once(field):
    """Warnings are errors here: asked about NaN, an accept rule would warn."""
    held_out = make_logits(400, seed=4).numpy()
    calibrated = copy.deepcopy(field)
    calibrated.calibrate(held_out, wrong=calibrated.uncertainty(held_out) > 1)
    calibrated.accept_rule(max_risk=0.2)
    monitor = ShiftMonitor(calibrated)
    verdict = monitor.update([np.nan])
    assert (verdict.seen, verdict.abstained, verdict.window.abstained) == (1, 1, 1)
    assert monitor.update([np.nan, 0.0, np.inf]).abstained == 3
    asked = []
    counted = ShiftMonitor(calibrated, rule=lambda u: asked.append(list(u)) or u < 0.5)
    assert counted.update([0.25, np.nan, 0.75]).abstained == 2
    assert asked == [[0.25, 0.75]]


def test_a_rule_that_fails_leaves_nothing_half_counted(rng):
    def failing(_):
        raise RuntimeError

    monitor = ShiftMonitor(Calibration(rng.normal(size=50)), rule=failing)
    with pytest.raises(RuntimeError):
        monitor.update([1.0])
    assert monitor.seen == 0


def test_the_field_s_own_rule_is_used(field):
    held_out = make_logits(400, seed=4).numpy()
    calibrated = copy.deepcopy(field)
    calibrated.calibrate(held_out, wrong=calibrated.uncertainty(held_out) > 1)
    rule = calibrated.accept_rule(max_risk=0.2)
    stream = calibrated.uncertainty(make_logits(100, seed=6).numpy())
    verdict = ShiftMonitor(calibrated).update(stream)
    assert verdict.abstained == int((~rule(stream)).sum())
    assert verdict.accuracy is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0}, "alpha must lie between 0 and 1, got 0. Try 0.01."),
        ({"alpha": 1.0}, "alpha must lie between 0 and 1, got 1.0. Try 0.01."),
        ({"alpha": True}, "alpha must lie between 0 and 1, got True. Try 0.01."),
        ({"alpha": "0.1"}, "alpha must lie between 0 and 1, got '0.1'. Try 0.01."),
        ({"window": 0}, "window must be a whole number from 1 to 1048576, got 0."),
        ({"window": 2.5}, "window must be a whole number from 1 to 1048576, got 2.5."),
        ({"random_state": -1}, "random_state must be a whole number ≥ 0, got -1."),
    ],
)
def test_impossible_parameters_are_refused(arguments, message):
    with pytest.raises(QIPFInputError) as caught:
        ShiftMonitor(Calibration([1.0]), **arguments)
    assert str(caught.value) == message


def test_what_cannot_be_watched_is_refused(field):
    def message(call):
        with pytest.raises(QIPFInputError) as caught:
            call()
        return str(caught.value)

    assert message(lambda: ShiftMonitor(field)) == (
        "This field is not calibrated. Call field.calibrate(held_out_logits, labels) first."
    )
    assert message(lambda: ShiftMonitor([1.0])) == (
        "A calibrated field or a Calibration is needed, got list."
    )
    monitor = ShiftMonitor(Calibration([1.0]))
    assert message(lambda: monitor.update_logits([[1.0]])) == (
        "This monitor was made from a Calibration and cannot judge logits. Make it from the field, "
        "or call update(uncertainty)."
    )
    assert message(lambda: monitor.update([[1.0]])) == (
        "uncertainty must have one dimension, one number per prediction, got shape (1, 1)."
    )
    own = ShiftMonitor(copy.deepcopy(field).calibrate(make_logits(20, seed=1).numpy()))
    assert message(lambda: own.update_logits([["a"]])) == (
        "logits must hold real numbers, got <U1."
    )
    assert message(lambda: own.update_logits([[1.0], [1.0, 2.0]])).startswith(
        "logits is not an array of numbers: "
    )
    # of NaN too, though it is not judged
    assert message(lambda: own.update_logits(np.full((2, 3), np.nan))) == (
        "logits must be rows of 10 numbers, as the field was fitted with, got shape (2, 3)."
    )
    assert own.seen == 0
    assert monitor.seen == 0


def test_what_interrupts_an_update_leaves_nothing_half_counted(rng, monkeypatch):
    monitor = ShiftMonitor(Calibration(rng.normal(size=50)))
    before = monitor.update(rng.normal(size=10))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("qipf.monitor.martingale.Betting.add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            monitor.update(rng.normal(size=10))
    assert monitor.verdict() == before
    assert monitor._state.ranks.seen == 10
