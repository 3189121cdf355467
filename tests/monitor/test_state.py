"""A monitor's state on disk: exact, for one model only, and checked."""

import copy
import hashlib
import json

import numpy as np
import pytest

import qipf
from qipf import QIPFError, QIPFFileError, QIPFInputError, ShiftMonitor
from qipf.calibration.conformal import Calibration
from qipf.io.container import encode, read_file
from tests.conftest import make_logits
from tests.stored.write_files import stored, watched_field


@pytest.fixture
def calibration(rng):
    return Calibration(rng.normal(size=400), rng.uniform(size=400) < 0.1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "watch.qipf"


def test_a_loaded_monitor_continues_exactly(rng, calibration, path):
    stream = rng.normal(loc=0.15, size=2000)
    stream[70] = np.nan
    whole = ShiftMonitor(calibration, alpha=0.2, window=77, random_state=3)
    expected = [whole.update_scores(part) for part in np.array_split(stream, 40)]
    monitor, found = ShiftMonitor(calibration, alpha=0.2, window=77, random_state=3), []
    for part in np.array_split(stream, 40):
        monitor.save(path)
        monitor = ShiftMonitor.load(path, calibration)
        found.append(monitor.update_scores(part))
    assert found == expected
    assert expected[-1].alarm
    monitor.save(path)
    first = path.read_bytes()
    ShiftMonitor.load(path, calibration).save(path)
    assert path.read_bytes() == first


def test_notes_and_parameters_come_back(calibration, path):
    monitor = ShiftMonitor(calibration, alpha=0.03, window=5, random_state=9)
    monitor.notes = {"line": 17, "file": "a.csv"}
    monitor.save(path)
    loaded = ShiftMonitor.load(path, calibration, rule=lambda u: u < 0)
    assert (loaded.alpha, loaded.window, loaded.random_state) == (0.03, 5, 9)
    assert loaded.notes == {"line": 17, "file": "a.csv"}
    assert loaded.update_scores([1.0]).abstained == 1
    monitor.notes = {"line": 1.5}
    with pytest.raises(QIPFInputError, match="notes must be a dict"):
        monitor.save(path)


def test_abstentions_are_saved_whatever_the_later_rule(calibration, path):
    monitor = ShiftMonitor(calibration, window=4, rule=lambda u: u <= 0)
    before = monitor.update_scores([-1.0, 1.0, np.nan, 2.0, -2.0])
    monitor.save(path)
    loaded = ShiftMonitor.load(path, calibration, rule=lambda u: u > 0)
    assert loaded.verdict() == before
    assert (before.window.abstained, before.abstained) == (3, 3)
    # 2 by the first rule, -1 by the second
    assert loaded.update_scores([1.0, -1.0]).window.abstained == 2


def test_another_model_or_calibration_is_rejected(path, tmp_path):
    rows, held_out = make_logits(200).numpy(), make_logits(50, seed=1).numpy()
    field = qipf.QIPF(bandwidth="silverman").fit(rows).calibrate(held_out)
    ShiftMonitor(field).save(path)
    qipf.save(field, tmp_path / "field.qipf")
    assert ShiftMonitor.load(path, qipf.load(tmp_path / "field.qipf")).seen == 0
    others = [
        copy.deepcopy(field).calibrate(held_out[1:]),
        copy.deepcopy(field).calibrate(held_out, wrong=np.zeros(50)),
        qipf.QIPF(bandwidth=2.0).fit(rows).calibrate(held_out),
        field.calibration_,
    ]
    # the same scores, of another field
    twin = qipf.QIPF(bandwidth=2.0).fit(rows)
    twin.calibration_ = field.calibration_
    for other in [*others, twin]:
        with pytest.raises(QIPFFileError, match="belongs to another model"):
            ShiftMonitor.load(path, other)


def test_a_model_calibrated_again_is_another_model(path):
    rows, held_out = make_logits(200).numpy(), make_logits(50, seed=1).numpy()
    field = qipf.QIPF(bandwidth="silverman").fit(rows).calibrate(held_out)
    monitor, before = ShiftMonitor(field), copy.deepcopy(field)
    field.calibrate(held_out[1:])
    monitor.save(path)
    assert ShiftMonitor.load(path, before).seen == 0
    with pytest.raises(QIPFFileError, match="another calibration of it"):
        ShiftMonitor.load(path, field)


def forged(path, calibration, header=None, arrays=None):
    """The file with other content, and a digest that fits it."""
    monitor = ShiftMonitor(calibration, window=10)
    monitor.update_scores(np.random.default_rng(5).normal(size=25))
    monitor.save(path)
    head, parts = read_file(path)
    header, arrays = header or {}, arrays or {}
    own = {name: value for name, value in header.items() if name in OF_TEST}
    head |= {name: value for name, value in header.items() if name not in OF_TEST}
    if own:
        head["tests"]["uncertainty"] |= own
    apart = ("uncertainty", "refused", "more")
    for name, array in arrays.items():
        parts[name if name in apart else f"uncertainty {name}"] = array
    path.write_bytes(encode(head, parts))


OF_TEST = ("alarm", "start", "trail")
M = 12  # alternatives of the martingale
START = {
    "count": 10, "ks": 0.5, "ks_p_value": 0.1, "superiority": 0.5, "mean_p": 0.5, "abstained": 0,
    "score": "uncertainty",
}  # fmt: skip
INVALID = {
    "kind": ({"kind": "sky"}, {}, "holds something of the kind 'sky', where the state of a moni"),
    "no kind": ({"kind": [1]}, {}, "holds something of the kind [1], where the state of a monitor"),
    "newer": ({"format_version": 8}, {}, "a newer qipf wrote it (format 8, here 7): update qipf"),
    "earlier": ({"format_version": 6}, {}, "wrote it (format 6, here 7): start a new monitor"),
    "no version": ({"format_version": "1"}, {}, "its format version is '1'"),
    "more": ({"more": 1}, {}, "its header is ['abstained'"),
    "arrays": ({}, {"more": np.zeros(1)}, "its list of arrays is ['more'"),
    "huge alpha": ({"alpha": 10**400}, {}, "alpha must lie between 0 and 1, got 1000"),
    "alpha": ({"alpha": 2}, {}, "alpha must lie between 0 and 1, got 2. Try 0.01."),
    "window": ({"window": 10**12}, {}, "window must be an integer from 1 to 1048576, got 1000"),
    "seed": ({"random_state": "0"}, {}, "random_state must be an integer ≥ 0, got '0'."),
    "score": ({"score": "sky"}, {}, "its score is 'sky'"),
    "no test": ({"score": "novelty"}, {}, "its list of tests is ['uncertainty'], not ['novelty']"),
    "tests": ({"tests": {"uncertainty": 1}}, {}, "its test of the uncertainty is 1"),
    "list of tests": ({"tests": [1]}, {}, "its list of tests is [1]"),
    "score of the start": ({"start": START | {"score": "novelty"}}, {}, "its first window is {'"),
    "notes": ({"notes": {"a": [1]}}, {}, "its notes are not integers and strings"),
    "seen": ({"seen": 24}, {}, "its counts do not add up"),
    "negative": ({"seen": -1}, {}, "it counts 0 abstained of -1"),
    "abstained": ({"abstained": 26}, {}, "it counts 26 abstained of 25"),
    "text": ({"seen": "many"}, {}, "it counts 0 abstained of 'many'"),
    "alarm": ({"alarm": [3, 4]}, {}, "its alarm is [3, 4], after 25 predictions"),
    "alarm kind": ({"alarm": "yes"}, {}, "its alarm is 'yes'"),
    "first window": ({"start": {"ks": 1.0}}, {}, "its first window is ['ks'], not ['abstained'"),
    "first share": ({"start": START | {"ks": 2.0}}, {}, "its first window is {'abstained': 0"),
    "first count": ({"start": START | {"count": 9}}, {}, "its first window counts (0, 9)"),
    "first abstained": ({"start": START | {"abstained": 11}}, {}, "first window counts (11, 10)"),
    "trail": ({"trail": [0]}, {}, "its trail is [0]"),
    "trail step": ({"trail": [0, 0]}, {}, "its trail is [0, 0], after 25 predictions"),
    "trail start": ({"trail": [26, 1]}, {}, "its trail is [26, 1], after 25 predictions"),
    "trail length": ({}, {"trail": np.zeros(24)}, "its array 'trail' is float64 of shape (24,)"),
    "trail value": ({}, {"trail": np.full(25, np.inf)}, "its trail holds NaN or inf"),
    "quiet alarm": ({"alarm": [4, 3]}, {}, "its alarm does not agree with its evidence"),
    "fractions": ({}, {"counts": np.full(401, 25 / 401)}, "its counts do not add up"),
    "negative counts": ({}, {"counts": np.r_[-1.0, 26.0, np.zeros(399)]}, "its counts do not add"),
    "nan counts": ({}, {"counts": np.full(401, np.nan)}, "its counts do not add up"),
    "shape": ({}, {"counts": np.zeros(3)}, "its array 'counts' is float64 of shape (3,)"),
    "dtype": ({}, {"gains": np.zeros(M, np.float32)}, "its array 'gains' is float32 of shape"),
    "recent": ({}, {"recent": np.zeros(11)}, "its array 'recent' is float64 of shape (11,)"),
    "refused": ({}, {"refused": np.full(10, 2.0)}, "abstained predictions of its window"),
    "more refused": ({}, {"refused": np.ones(10)}, "abstained predictions of its window"),
    "refused shape": ({}, {"refused": np.zeros(9)}, "its array 'refused' is float64 of shape (9,)"),
    "accepted nan": ({}, {"uncertainty": np.full(10, np.nan)}, "abstained predictions of its"),
    "inf": ({}, {"stakes": np.full(M, np.inf)}, "its martingale holds NaN or inf"),
    "start": ({}, {"best_start": np.full(M, 25.0)}, "its martingale is impossible"),
    "peak": ({}, {"evidence": np.array([3.0, 2.0])}, "its martingale is impossible"),
    "silent": ({}, {"evidence": np.array([9.0, 9.0])}, "its alarm does not agree"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_invalid_content_is_rejected(path, calibration, case):
    header, arrays, message = INVALID[case]
    forged(path, calibration, header, arrays)
    with pytest.raises(QIPFFileError) as caught:
        ShiftMonitor.load(path, calibration)
    assert message in str(caught.value)


@pytest.mark.parametrize("seen", [0, 25])
def test_arrays_of_any_other_length_are_rejected(rng, path, seen):
    """Of both tests, and of a state that has seen nothing yet."""
    calibration = Calibration(rng.normal(size=20), novelty=rng.normal(size=20))
    monitor = ShiftMonitor(calibration, window=10)
    if seen:
        monitor.update_scores(*rng.normal(size=(2, seen)))
    monitor.save(path)
    header, arrays = read_file(path)
    assert len(arrays) == 18
    for name, array in arrays.items():
        for other in (np.append(array, 0.0), array[:-1], array[None]):
            if other.shape == array.shape:  # of an empty one
                continue
            path.write_bytes(encode(header, arrays | {name: other}))
            with pytest.raises(QIPFFileError, match="its array"):
                ShiftMonitor.load(path, calibration)


def test_models_and_states_are_distinguished(path, tmp_path):
    field = qipf.QIPF(bandwidth="silverman").fit(make_logits(200).numpy())
    field.calibrate(make_logits(50, seed=1).numpy())
    qipf.save(field, tmp_path / "field.qipf")
    ShiftMonitor(field).save(path)
    with pytest.raises(QIPFFileError, match="where the state of a monitor is expected"):
        ShiftMonitor.load(tmp_path / "field.qipf", field)
    for load in (qipf.load, qipf.storage.save_load.load_field, qipf.storage.save_load.describe):
        with pytest.raises(QIPFFileError, match="holds the state of a monitor"):
            load(path)


def test_a_damaged_or_missing_file_is_rejected(path, calibration):
    with pytest.raises(QIPFFileError, match=f"There is no file {path}."):
        ShiftMonitor.load(path, calibration)
    forged(path, calibration)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(QIPFFileError, match="cannot be read"):
        ShiftMonitor.load(path, calibration)
    path.write_bytes(data[:-3] + b"abc")
    with pytest.raises(QIPFFileError, match="is damaged: its content does not match its digest"):
        ShiftMonitor.load(path, calibration)


def test_a_failed_save_leaves_the_file_before_it(path, calibration, monkeypatch):
    monitor = ShiftMonitor(calibration)
    monitor.save(path)
    before = hashlib.sha256(path.read_bytes()).hexdigest()

    def full(*_):
        raise OSError(28, "No space left on device")

    monitor.update_scores([1.0])
    monkeypatch.setattr("qipf.io.atomic.os.fsync", full)
    with pytest.raises(QIPFError, match="No space left on device"):
        monitor.save(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def close(found, expected):
    """Counts and words are the same; the last digits of numbers may be another machine's."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            close(found[name], value)
        elif isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
        else:
            assert found[name] == value, name


def test_a_stored_state_continues_as_when_it_was_written():
    path = stored("monitor")
    told = json.loads(path.with_suffix(".verdicts").read_text())
    monitor = ShiftMonitor.load(path, watched_field())
    assert monitor.score == "both"
    assert (monitor.alpha, monitor.window, monitor.random_state) == (0.05, 30, 7)
    assert monitor.notes == told["notes"]
    close(monitor.verdict().as_dict(), told["verdict"])
    assert told["verdict"]["alarm"]
    close(monitor.update_scores(*told["more"]).as_dict(), told["verdict_after_more"])
    verdict, tests = monitor.verdict(), {test.score: test for test in monitor._state.tests}
    trail = tests[verdict.score].martingale.trail
    assert (trail.start, trail.seen[-1]) == (0, monitor.seen)
    assert trail.values[-1] - np.log(len(tests)) == pytest.approx(verdict.log_evidence)
