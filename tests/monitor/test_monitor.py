"""The monitor: false alarms over long clean streams, power, batches, counts."""

import copy
import json
import pickle
import re
import threading

import numpy as np
import pytest
import torch

import qipf
from qipf import AccuracyEstimator, QIPFFileError, QIPFInputError, ShiftMonitor
from qipf.calibration.conformal import Calibration
from qipf.calibration.one_per_input import one_per_input
from qipf.calibration.quantization import rounded
from qipf.monitor.martingale import Martingale
from qipf.validation.arrays import NonFiniteRowsError
from tests.conftest import make_logits


def clean(rng, size, length, kind):
    """Held-out scores and a stream, drawn anew and alike."""
    draw = rng.normal(size=size + length)
    if kind == "tied":
        draw = np.floor(2 * draw)
    if kind == "heavy":
        draw = draw / rng.uniform(size=len(draw))
    return Calibration(draw[:size]), draw[size:]


@pytest.mark.slow
def test_false_alarms_over_long_clean_streams_are_at_most_alpha():
    """250 streams, each with a new held-out set, most of them smaller than the stream.

    Tested after every prediction: an alarm at level alpha is a peak of at least 1/alpha.
    """
    rng, streams, length = np.random.default_rng(0), 250, 5000
    designs = [(30, "plain"), (300, "heavy"), (300, "tied"), (3000, "plain")]
    lowest = []
    for k in range(streams):
        calibration, stream = clean(rng, *designs[k % 4][:1], length, designs[k % 4][1])
        verdict = ShiftMonitor(calibration, window=1, random_state=k).update_scores(stream)
        assert verdict.seen == length
        assert verdict.alarm == (verdict.p_value <= 0.01)
        lowest.append(verdict.p_value)
    for alpha in (0.01, 0.05):
        share = np.mean(np.array(lowest) <= alpha)
        assert share <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / streams)


def test_ranks_in_a_fixed_set_would_raise_false_alarms(rng):
    """Why the set has to grow: the sampling error of a small one looks like a shift."""
    alarms = 0
    for _ in range(40):
        calibration, stream = clean(rng, 100, 5000, "plain")
        p = calibration.p_values(stream, rng.uniform(size=len(stream)))
        alarms += Martingale().add(p, 1 - p, np.log(100)) is not None
    assert alarms > 40 * 0.2  # at alpha = 0.01


@pytest.mark.parametrize("size", [200, 5000])
@pytest.mark.parametrize(
    ("change", "soon"),
    [(lambda s: s + 3, 20), (lambda s: s + 1, 120), (lambda s: s - 1, 200),
     (lambda s: s * 2, 120), (lambda s: s * np.nan, 20)],
    ids=["sudden", "higher", "lower", "wider", "nan"],
)  # fmt: skip
def test_a_change_is_detected_soon_and_dated(size, change, soon):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        stream = rng.normal(size=4000)
        stream[3000:] = change(stream[3000:])
        verdict = ShiftMonitor(Calibration(rng.normal(size=size))).update_scores(stream)
        assert verdict.alarm
        assert 3000 < verdict.alarm_at <= 3000 + soon
        assert abs(verdict.change_point - 3001) <= 40


def test_a_small_shift_from_the_start_is_detected(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=5000)))
    assert monitor.update_scores(rng.normal(loc=0.25, size=2000)).alarm


def test_the_alarm_stays(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=500)))
    first = monitor.update_scores(rng.normal(loc=4, size=50))
    later = monitor.update_scores(rng.normal(size=5000))
    assert first.alarm
    assert (later.alarm, later.alarm_at) == (True, first.alarm_at)
    assert later.change_point == first.change_point
    assert later.p_value <= first.p_value


@pytest.mark.slow
def test_one_by_one_is_batch_by_batch_to_the_last_bit(rng):
    calibration = Calibration(rng.normal(size=700), rng.uniform(size=700) < 0.1)
    stream = rng.normal(loc=0.2, size=1500)
    stream[[5, 900]] = np.nan
    whole, singly, pieces = (ShiftMonitor(calibration, window=64) for _ in range(3))
    for score in stream:
        singly.update_scores(score)
    for part in np.split(stream, [1, 20, 20, 1100, 1499]):
        pieces.update_scores(part)
    assert whole.update_scores(stream) == singly.verdict() == pieces.verdict()


def test_the_seed_decides_ties_and_nothing_else(rng):
    calibration, stream = Calibration(rng.normal(size=99)), rng.normal(size=99)
    first, same, other = (ShiftMonitor(calibration, random_state=seed) for seed in (1, 1, 2))
    assert first.update_scores(stream) == same.update_scores(stream)
    assert first.verdict().log_evidence != other.update_scores(stream).log_evidence
    assert first.verdict().window == other.verdict().window


def test_memory_does_not_grow(rng):
    scores = rng.normal(size=200_000)
    monitor = ShiftMonitor(Calibration(scores, novelty=scores), window=100)

    def numbers():
        state = monitor._state
        held = [state.uncertainty, state.abstained_recent]
        for test in state.tests:
            held += [*vars(test.p_values).values(), *vars(test.martingale).values(), test.recent]
        return sum(np.size(value) for value in held)

    monitor.update_scores(*rng.normal(size=(2, 200)))
    before = numbers()
    monitor.update_scores(*rng.normal(size=(2, 20_000)))
    assert numbers() == before < 12_000
    state = monitor._state
    kept = [state.uncertainty, state.abstained_recent, *(test.recent for test in state.tests)]
    assert [array.base for array in kept] == [None] * 4  # no views


def test_the_window_holds_the_last_predictions(rng):
    calibration = Calibration(rng.normal(size=300), rng.uniform(size=300) < 0.2)
    monitor, stream = ShiftMonitor(calibration, window=50), rng.normal(size=120)
    stream[[100, 119]] = np.nan, np.inf
    verdict = monitor.update_scores(stream)
    estimate = AccuracyEstimator.of(calibration).estimate(stream[-50:])
    assert verdict.accuracy == estimate
    assert verdict.window.count == 50
    assert (verdict.window.abstained, verdict.abstained) == (2, 2)
    assert monitor.update_scores(rng.normal(size=50)).window.abstained == 0
    assert monitor.verdict().abstained == 2


def test_predictions_rejected_by_the_rule_are_abstained_from(rng):
    calibration = Calibration(rng.uniform(size=100))
    monitor = ShiftMonitor(calibration, rule=lambda u: u <= 0.5)
    assert monitor.update_scores([0.1, 0.9, np.nan, 0.5]).abstained == 2
    assert ShiftMonitor(calibration).update_scores([0.1, 0.9, np.nan, 0.5]).abstained == 1


def test_before_anything_was_seen():
    verdict = ShiftMonitor(Calibration([1.0, 2.0], [False, True])).verdict()
    assert (verdict.seen, verdict.log_evidence, verdict.p_value, verdict.alarm) == (0, 0, 1, False)
    assert (verdict.alarm_at, verdict.change_point, verdict.accuracy) == (None, None, None)
    assert verdict.window.count == 0


def test_a_verdict_is_plain_json(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=50), np.zeros(50)))
    told = monitor.update_scores([np.nan, 1.0]).as_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told


@pytest.fixture(scope="module")
def uncalibrated():
    return qipf.QIPF(bandwidth="silverman").fit(make_logits(300).numpy())


@pytest.fixture(scope="module")
def field(uncalibrated):
    """Calibrated, with a rule."""
    field, held_out = copy.deepcopy(uncalibrated), make_logits(400, seed=4).numpy()
    field.calibrate(held_out, wrong=field.uncertainty(held_out) > 1)
    field.accept_rule(max_risk=0.2)
    return field


def test_logits_are_scored_by_the_model(field):
    stream = make_logits(100, seed=5)
    by_logits, by_scores = (ShiftMonitor(field, rule=np.isfinite) for _ in range(2))
    expected = by_scores.update_scores(*field.both_scores(stream.numpy()))
    assert by_logits.update(stream) == expected
    assert by_logits.score == "both"
    corrupted = stream.numpy().copy()
    corrupted[3, 0], corrupted[7, 1] = np.nan, np.inf
    assert by_logits.update(corrupted).abstained == 2
    assert by_logits.update(torch.full((10,), torch.nan)).abstained == 3
    assert by_logits.seen == 201


def test_a_prediction_of_the_model_takes_the_place_of_its_inputs(field):
    stream = make_logits(100, seed=5)
    model = qipf.wrap(torch.nn.Identity(), field=field)
    scores = field.both_scores(stream)
    found = qipf.Prediction(stream, stream.argmax(1), scores[0], novelty=scores[1])
    for made_of in (field, model):
        by_inputs, by_prediction = (ShiftMonitor(made_of) for _ in range(2))
        assert by_prediction.update(found) == by_inputs.update(stream)


def test_predictions_of_other_models_are_refused(field):
    stream = make_logits(100, seed=5)
    model = qipf.wrap(torch.nn.Identity(), field=field)
    own = model(stream)
    seen = ShiftMonitor(model).update(own).seen
    assert seen == 100
    other = qipf.QIPF(bandwidth=9.0).fit(make_logits(120)).calibrate(make_logits(90, seed=3))
    others = qipf.wrap(torch.nn.Identity(), field=other)(stream)
    with pytest.raises(
        QIPFInputError,
        match=(
            "made by another model, or with another calibration set, than the monitor's. Pass a "
            "Prediction of the monitor's model."
        ),
    ):
        ShiftMonitor(model).update(others)
    with pytest.raises(QIPFInputError, match="takes no mask beside it"):
        ShiftMonitor(model).update(own, mask=None)


def test_any_model_with_a_calibration_and_uncertainty_can_be_monitored(rng):
    class Model:
        calibration_ = Calibration(rng.normal(size=50))

        def uncertainty(self, batch):
            return batch.sum(axis=1)

    rows = rng.normal(size=(20, 3))
    monitor, expected = ShiftMonitor(Model()), ShiftMonitor(Model.calibration_)
    assert monitor.update(rows) == expected.update_scores(rows.sum(axis=1))
    assert monitor.model_digest == expected.model_digest


def test_float16_logits_are_scored_as_float32(field):
    narrow = make_logits(20, seed=5).bfloat16()
    one, other = ShiftMonitor(field), ShiftMonitor(field)
    assert one.update(narrow) == other.update(narrow.float())


def test_batches_change_last_bits_of_scores_but_no_rank(uncalibrated, rng):
    """Three distinct predictions, with scores away from the boundaries of quantization."""
    rows = make_logits(50, seed=40).numpy()
    scores = uncalibrated.uncertainty(rows)
    distinct = rows[rounded(scores * (1 - 1e-5)) == rounded(scores * (1 + 1e-5))][:3]
    calibrated = copy.deepcopy(uncalibrated).calibrate(distinct[rng.integers(0, 3, 300)])
    stream = distinct[rng.integers(0, 3, 60)]
    singly, whole = ShiftMonitor(calibrated), ShiftMonitor(calibrated)
    for row in stream:
        singly.update(row)
    verdict, alone = whole.update(stream), singly.verdict()
    assert not verdict.alarm
    assert alone.log_evidence == verdict.log_evidence
    assert (alone.p_value, alone.window) == (verdict.p_value, verdict.window)


def test_scores_off_by_the_rounding_of_a_batch_raise_no_alarm(rng):
    """As far off as float32 engines leave them, whatever the engine does today."""
    kinds = np.array([0.37, 1.13, 2.71])
    monitor = ShiftMonitor(Calibration(kinds[rng.integers(0, 3, 500)]))
    noise = 1 + 4e-6 * rng.uniform(-1, 1, size=300)
    exact = ShiftMonitor(monitor.calibration)
    drawn = kinds[rng.integers(0, 3, 300)]
    noisy, verdict = monitor.update_scores(drawn * noise), exact.update_scores(drawn)
    assert not noisy.alarm
    assert noisy == verdict


def test_the_rule_is_never_called_with_nan_and_only_once(field):
    """Warnings are errors here: called with NaN, an accept rule would warn."""
    monitor = ShiftMonitor(field, score="uncertainty")
    verdict = monitor.update_scores([np.nan])
    assert (verdict.seen, verdict.abstained, verdict.window.abstained) == (1, 1, 1)
    assert monitor.update_scores([np.nan, 0.0, np.inf]).abstained == 3
    calls = []
    counted = ShiftMonitor(field, rule=lambda u: calls.append(list(u)) or u < 0.5)
    assert counted.update_scores([0.25, np.nan, 0.75], [1.0, np.nan, np.nan]).abstained == 2
    assert calls == [[0.25, 0.75]]


def test_a_failing_rule_counts_nothing(rng):
    def failing(_):
        raise RuntimeError

    monitor = ShiftMonitor(Calibration(rng.normal(size=50)), rule=failing)
    with pytest.raises(RuntimeError):
        monitor.update_scores([1.0])
    assert monitor.seen == 0


def test_the_model_s_own_rule_is_the_default(field):
    scores = field.both_scores(make_logits(100, seed=6).numpy())
    verdict = ShiftMonitor(field).update_scores(*scores)
    assert verdict.abstained == int((~field.rule_(scores[0])).sum())
    assert verdict.accuracy is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0}, "alpha must lie between 0 and 1, got 0"),
        ({"alpha": 1.0}, "alpha must lie between 0 and 1, got 1.0"),
        ({"alpha": True}, "alpha must lie between 0 and 1, got True"),
        ({"alpha": "0.1"}, "alpha must lie between 0 and 1, got '0.1'"),
        ({"window": 0}, "window must be an integer from 1 to 1048576, got 0"),
        ({"window": 2.5}, "window must be an integer from 1 to 1048576, got 2.5"),
        ({"score": "doubt"}, "Unknown score 'doubt'. Known: auto,"),
        ({"score": ["novelty"]}, "Unknown score"),
        ({"score": "novelty"}, "This calibration set has no novelties"),
        ({"random_state": -1}, "random_state must be an integer ≥ 0, got -1"),
        ({"random_state": 2**63}, "random_state must be an integer ≥ 0, got 9223372036854775808"),
    ],
)
def test_invalid_parameters_are_rejected(arguments, message):
    with pytest.raises(QIPFInputError, match=message):
        ShiftMonitor(Calibration([1.0]), **arguments)


def test_the_largest_seed_is_accepted():
    assert ShiftMonitor(Calibration([1.0]), random_state=2**63 - 1).update_scores([1.0]).seen == 1


def test_a_file_with_impossible_parameters_is_refused(tmp_path):
    calibration = Calibration([1.0, 2.0])
    monitor = ShiftMonitor(calibration)
    monitor.alpha = 2.0
    monitor.save(tmp_path / "state")
    with pytest.raises(QIPFFileError, match="alpha must lie between 0 and 1, got 2.0"):
        ShiftMonitor.load(tmp_path / "state", calibration)


def test_of_a_batch_with_nan_only_rows_are_selected():
    """Single numbers among the options are passed on as they are."""

    class Model:
        calibration_ = Calibration(np.arange(9.0))

        def uncertainty(self, rows, scale):
            bad = np.flatnonzero(np.isnan(rows)).tolist()
            if bad:
                raise NonFiniteRowsError("rows", bad, len(rows))
            return scale * rows

    rows, scale = np.array([1.0, np.nan, 3.0]), np.array(2.0)
    found = ShiftMonitor(Model()).update(rows, scale=scale)
    assert found == ShiftMonitor(Model.calibration_).update_scores([2.0, np.nan, 6.0])


def test_invalid_input_is_rejected_and_not_counted(field):
    with pytest.raises(QIPFInputError, match="got list"):
        ShiftMonitor([1.0])
    monitor, own = ShiftMonitor(Calibration([1.0])), ShiftMonitor(field)
    for call, message in [
        (lambda: monitor.update([[1.0]]), "made from a Calibration"),
        (lambda: monitor.update_scores([[1.0]]), "one dimension"),
        (lambda: own.update([["a"]]), "real numbers"),
        (lambda: own.update_scores([1.0]), "This monitor's test needs the novelty"),
        (lambda: own.update_scores([1.0, 2.0], [1.0]), "shape of uncertainty, (2,); got (1,)"),
        (lambda: own.update([[1.0], [1.0, 2.0]]), "not an array of numbers"),
        (lambda: own.update(np.full((2, 3), np.nan)), "rows of 10 numbers"),
    ]:
        with pytest.raises(QIPFInputError, match=re.escape(message)):
            call()
    assert (monitor.seen, own.seen) == (0, 0)


@pytest.mark.filterwarnings("ignore:The layers are")
@pytest.mark.parametrize("layered", [False, True])
def test_a_batch_with_nan_is_counted_and_the_rest_of_it_scored(layered):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    inputs, labels = torch.randn(240, 4), torch.arange(240) % 3
    batches = list(zip(inputs.split(60), labels.split(60), strict=True))
    model = qipf.LayeredQIPF(net) if layered else qipf.wrap(net)
    model.fit(batches[:3]).calibrate(batches[3:])
    new = torch.randn(20, 4)
    expected = torch.stack(model.both_scores(new)).double()
    new[[3, 17]] = torch.nan
    expected[:, [3, 17]] = torch.nan
    monitor, other = ShiftMonitor(model), ShiftMonitor(model)
    assert monitor.update(new) == other.update_scores(*expected)
    assert (monitor.seen, monitor.verdict().abstained) == (20, 2)
    assert monitor.update(torch.full((5, 4), torch.nan)).abstained == 7
    with pytest.raises(QIPFInputError, match="2 rows with NaN or inf"):
        model(new)


def test_an_interrupted_update_counts_nothing(rng, monkeypatch):
    monitor = ShiftMonitor(Calibration(rng.normal(size=50)))
    before = monitor.update_scores(rng.normal(size=10))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("qipf.monitor.martingale.Martingale.add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            monitor.update_scores(rng.normal(size=10))
    assert monitor.verdict() == before
    assert monitor._state.tests[0].p_values.seen == 10


def test_threads_that_add_at_once_lose_nothing(monkeypatch, rng):
    """The second begins after the first has read the state and before it has written it."""
    monitor, plain, over = ShiftMonitor(Calibration(rng.normal(size=50))), Martingale.add, []

    def add(self, p, q, log_threshold):
        if not over:
            over.append(threading.Event())
            threads.append(threading.Thread(target=second))
            threads[0].start()
            over[0].wait(0.1)  # with a lock the second waits, and this runs out
        return plain(self, p, q, log_threshold)

    def second():
        monitor.update_scores([2.0, 3.0])
        over[0].set()

    threads = []
    monkeypatch.setattr(Martingale, "add", add)
    assert monitor.update_scores([1.0]).seen == 1
    threads[0].join()
    assert monitor.seen == 3
    assert monitor._state.tests[0].recent.tolist() == [1.0, 2.0, 3.0]


def test_a_monitor_can_be_copied_and_pickled(rng):
    monitor = ShiftMonitor(Calibration(rng.normal(size=50)))
    monitor.update_scores([1.0, 2.0])
    for twin in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        assert twin.update_scores([3.0]).seen == 3
    assert monitor.seen == 2


@pytest.mark.parametrize("sizes", [[500], [1] * 20 + [480], [19, 1, 480], [21, 479]])
def test_the_first_window_is_compared_with_the_held_out_set(rng, sizes):
    calibration = Calibration(rng.normal(size=100))
    monitor = ShiftMonitor(calibration, window=20)
    scores = np.append([np.nan, 5.0], rng.normal(loc=1.0, size=498))
    parts = np.split(scores, np.cumsum(sizes)[:-1])
    starts = [monitor.update_scores(part).start for part in parts]
    alone = ShiftMonitor(calibration, window=20).update_scores(scores[:20]).window
    for seen, start in zip(np.cumsum(sizes), starts, strict=True):
        assert start == (alone if seen >= 20 else None)
    assert alone.abstained == 1


def test_a_shift_from_the_first_prediction_on_shows_in_the_first_window():
    """With few held-out scores the stream soon ranks among itself: the alarm seldom comes."""
    alarms, found, false = 0, 0, 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        calibration = Calibration(rng.normal(size=20))
        verdict = ShiftMonitor(calibration).update_scores(rng.normal(0.5, size=2000))
        alarms += verdict.alarm
        found += verdict.start.ks_p_value <= 0.05
        usual = ShiftMonitor(calibration, alpha=0.05).update_scores(rng.normal(size=1000))
        false += usual.start.ks_p_value <= 0.05
    assert alarms <= 2
    assert found >= 9
    assert false <= 3


def test_of_an_input_with_several_predictions_one_is_drawn():
    """The draw goes on where the stream is."""

    class Model:
        calibration_ = Calibration(np.arange(50.0))

        def uncertainty(self, scores):
            return scores

    scores = torch.arange(120.0).reshape(10, 3, 4)
    monitor, expected = ShiftMonitor(Model()), ShiftMonitor(Model.calibration_)
    of_predictions = ShiftMonitor(Model())
    for part in (scores[:4], scores[4:]):
        drawn = one_per_input(part.shape, expected.seen)
        expected.update_scores(part.flatten()[drawn])
        assert monitor.update(part) == expected.verdict()
        found = qipf.Prediction(part[:, None], part.long(), part)
        assert of_predictions.update(found) == expected.verdict()
    assert monitor.seen == 10


def test_a_field_takes_one_batch_and_no_options(field):
    rows = make_logits(3, seed=5)
    for call in (
        lambda: ShiftMonitor(field).update(rows, rows),
        lambda: ShiftMonitor(field).update(rows, batch_size=3),
        lambda: ShiftMonitor(field).update(),
    ):
        with pytest.raises(QIPFInputError, match="update takes one batch of logits"):
            call()
