"""A monitor's state, and its file.

The file is a safetensors container (`qipf.io.container`) of the kind ``monitor``. Its header holds
the monitor's parameters, counts and notes, under ``reference`` the digest of the model and its
calibration, and under ``tests`` alarm, first window and trail of each tested score. Its arrays are,
after the name of each tested score, the counts per bin (``counts``), the martingale (``gains``,
``stakes``, ``best``, ``best_start``, ``evidence``, ``trail``) and the scores of the window
(``recent``); besides, the window's uncertainties (``uncertainty``) and which of its predictions
were abstained from (``refused``). Everything is checked before it is used.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf._version import __version__
from qipf.calibration.conformal import SCORES
from qipf.errors import QIPFFileError, QIPFInputError
from qipf.io.atomic import atomic_write, checked_output
from qipf.io.container import Arrays, encode, read_file
from qipf.io.schema import KINDS, refuse, require, require_keys, require_version
from qipf.monitor.martingale import ALTERNATIVES, Crossing, Martingale
from qipf.monitor.score_test import ScoreTest
from qipf.monitor.trail import MOST, Trail
from qipf.monitor.two_sample import WindowStatistics

#: Format version of states; no other is read.
FORMAT_VERSION = 7

#: Scores that are tested, by the parameter `score`; at a tie the first is reported.
TESTED = {"both": ("novelty", "uncertainty"), **{score: (score,) for score in SCORES}}

_KEYS = {
    "format_version",
    "library_version",
    "kind",
    "reference",
    "alpha",
    "window",
    "random_state",
    "score",
    "seen",
    "abstained",
    "notes",
    "tests",
}
_OF_TEST = ("alarm", "start", "trail")
_ARRAYS_OF_TEST = (
    "counts", "gains", "stakes", "best", "best_start", "evidence", "trail", "recent",
)  # fmt: skip
_ARRAYS = ("uncertainty", "refused")


@dataclass(frozen=True)
class State:
    """Everything that changes while a stream is monitored."""

    tests: tuple[ScoreTest, ...]
    uncertainty: NDArray[np.float64]  # of the window, oldest first
    abstained_recent: NDArray[np.bool_]  # which of its predictions were abstained from
    abstained: int = 0  # in the whole stream

    @property
    def seen(self) -> int:
        """Number of predictions so far."""
        return self.tests[0].martingale.count

    @property
    def leading(self) -> ScoreTest:
        """The test that raised the alarm first; before an alarm that of most evidence so far."""
        alarms = {test.alarm.at: test for test in reversed(self.tests) if test.alarm is not None}
        if alarms:
            return alarms[min(alarms)]
        return max(self.tests, key=lambda test: test.martingale.peak)


def write_state(path: Path | str, parameters: Mapping[str, Any], state: State) -> None:
    """Write a state, with digest, alpha, window, seed and notes as parameters, atomically."""
    path = checked_output(path)
    if not _are_notes(parameters["notes"]):
        raise QIPFInputError("notes must be a dict of strings to integers or strings.")
    header = {
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "kind": "monitor",
        **parameters,
        "seen": state.seen,
        "abstained": state.abstained,
        "tests": {test.score: _header_of(test) for test in state.tests},
    }
    arrays: Arrays = {
        "uncertainty": state.uncertainty,
        "refused": state.abstained_recent.astype(np.float64),
    }
    for test in state.tests:
        arrays |= {f"{test.score} {name}": array for name, array in _arrays_of(test).items()}
    with atomic_write(path) as file:
        file.write(encode(header, arrays))


def _header_of(test: ScoreTest) -> dict[str, Any]:
    alarm, trail = test.alarm, test.martingale.trail
    return {
        "alarm": None if alarm is None else [alarm.at, alarm.change_point],
        "start": None if test.start is None else asdict(test.start),
        "trail": [trail.start, trail.step],
    }


def _arrays_of(test: ScoreTest) -> Arrays:
    martingale = test.martingale
    return {
        "counts": test.p_values.counts.astype(np.float64),  # integers below 2⁵³: exact
        "gains": martingale.gains,
        "stakes": martingale.stakes,
        "best": martingale.best,
        "best_start": martingale.best_start.astype(np.float64),
        "evidence": np.array([martingale.log_evidence, martingale.peak]),
        "trail": martingale.trail.values,
        "recent": test.recent,
    }


def read_state(path: Path | str, digest: str) -> tuple[dict[str, Any], Arrays]:
    """Read header and arrays of a state; raise if it belongs to a model of another digest."""
    header, arrays = read_file(path)
    name, kind = str(path), header.get("kind")
    if kind != "monitor":
        what = KINDS.get(str(kind), f"something of the kind {kind!r:.80}")
        raise QIPFFileError(
            f"{name} holds {what}, where {KINDS['monitor']} is expected. Name a separate file for "
            "the state; it is created if it does not exist."
        )
    require_version(name, header, FORMAT_VERSION, "start a new monitor, in another file")
    require_keys(name, "header", header, _KEYS)
    require(header["score"] in tuple(TESTED), name, "score", header["score"])
    tested = TESTED[header["score"]]
    require_keys(name, "list of tests", header["tests"], tested)
    for score in tested:
        require_keys(name, f"test of the {score}", header["tests"][score], _OF_TEST)
    expected = [f"{score} {array}" for score in tested for array in _ARRAYS_OF_TEST]
    require_keys(name, "list of arrays", dict(arrays), {*expected, *_ARRAYS})
    if header["reference"] != digest:
        refuse(
            name,
            "it belongs to another model, or to another calibration of it. Use the model it was "
            "made with, or start a new state",
        )
    if not _are_notes(header["notes"]):
        refuse(name, "its notes are not integers and strings")
    return header, arrays


def restored_state(
    path: str, header: Mapping[str, Any], arrays: Arrays, tests: tuple[ScoreTest, ...]
) -> State:
    """The state of a file whose header passed `read_state`; `tests` are those of its start."""
    seen, abstained = header["seen"], header["abstained"]
    if not _is_count(seen) or not _is_count(abstained) or abstained > seen:
        refuse(path, f"it counts {abstained!r:.80} abstained of {seen!r:.80}")
    uncertainty = _array(path, arrays, "uncertainty", min(seen, header["window"]))
    flags = _array(path, arrays, "refused", len(uncertainty))
    valid = np.isin(flags, (0, 1)).all() and flags.sum() <= abstained
    if not valid or not flags[~np.isfinite(uncertainty)].all():
        refuse(path, "the abstained predictions of its window are impossible")
    restored = tuple(_restored(path, header, arrays, test) for test in tests)
    return State(restored, uncertainty, flags.astype(bool), abstained)


def _restored(path: str, header: Mapping[str, Any], arrays: Arrays, test: ScoreTest) -> ScoreTest:
    """The test of a file; `test` is that of its start."""
    seen, window = header["seen"], header["window"]
    own = {name: arrays[f"{test.score} {name}"] for name in _ARRAYS_OF_TEST}
    counts = _array(path, own, "counts", len(test.p_values.counts))
    if not _are_counts(counts) or int(counts.sum()) != seen:
        refuse(path, "its counts do not add up")
    p_values = test.p_values.copy()
    p_values.counts = counts.astype(np.int64)
    martingale, entry = _martingale(path, own, seen), header["tests"][test.score]
    martingale.trail = _trail(path, entry["trail"], own, seen)
    alarm = _alarm(path, entry["alarm"], seen)
    level = math.log(len(header["tests"])) - math.log(header["alpha"])
    if (alarm is not None) != (martingale.peak >= level):
        refuse(path, "its alarm does not agree with its evidence")
    return replace(
        test,
        p_values=p_values,
        martingale=martingale,
        recent=_array(path, own, "recent", min(seen, window)),
        alarm=alarm,
        start=_start(path, entry["start"], test.score, seen, window),
    )


def _martingale(path: str, arrays: Arrays, seen: int) -> Martingale:
    martingale, m = Martingale(), len(ALTERNATIVES)
    numbers = [_array(path, arrays, name, m) for name in ("gains", "stakes", "best")]
    start = _array(path, arrays, "best_start", m)
    evidence = _array(path, arrays, "evidence", 2)
    if seen == 0:  # no sum has begun: the best is -inf
        return martingale
    martingale.count = seen
    martingale.gains, martingale.stakes, martingale.best = numbers
    if not np.isfinite(np.concatenate([*numbers, evidence])).all():
        refuse(path, "its martingale holds NaN or inf")
    if not _are_counts(start) or start.max() >= seen or evidence[1] < max(evidence[0], 0.0):
        refuse(path, "its martingale is impossible")
    martingale.best_start = start.astype(np.int64)
    martingale.log_evidence, martingale.peak = map(float, evidence)
    return martingale


def _trail(path: str, trail: Any, arrays: Arrays, seen: int) -> Trail:
    if not isinstance(trail, list) or len(trail) != 2 or not all(map(_is_count, trail)):
        refuse(path, f"its trail is {trail!r:.80}")
    start, step = trail
    if not step > 0 or not start <= seen or (seen - start) // step > MOST:
        refuse(path, f"its trail is {trail!r:.80}, after {seen} predictions")
    values = _array(path, arrays, "trail", (seen - start) // step)
    if not np.isfinite(values).all():
        refuse(path, "its trail holds NaN or inf")
    return Trail(start, step, values)


def _alarm(path: str, alarm: Any, seen: int) -> Crossing | None:
    if alarm is None:
        return None
    if not isinstance(alarm, list) or len(alarm) != 2 or not all(map(_is_count, alarm)):
        refuse(path, f"its alarm is {alarm!r:.80}")
    at, change_point = alarm
    if not 1 <= change_point <= at <= seen:
        refuse(path, f"its alarm is {alarm!r:.80}, after {seen} predictions")
    return Crossing(at, change_point)


def _start(path: str, start: Any, score: str, seen: int, window: int) -> WindowStatistics | None:
    if start is None:
        return None
    require_keys(path, "first window", start, [field.name for field in fields(WindowStatistics)])
    shares = [start[name] for name in ("ks", "ks_p_value", "superiority", "mean_p")]
    valid = all(type(share) is float and 0 <= share <= 1 for share in shares)
    if not valid or start["score"] != score:
        refuse(path, f"its first window is {start!r:.80}")
    counts = (start["abstained"], start["count"])
    if not all(map(_is_count, counts)) or not counts[0] <= counts[1] == window <= seen:
        refuse(path, f"its first window counts {counts!r:.80}, after {seen} predictions")
    return WindowStatistics(**start)


def _array(path: str, arrays: Arrays, name: str, length: int) -> NDArray[np.float64]:
    array = arrays[name]
    if array.dtype != np.float64 or array.shape != (length,):
        refuse(path, f"its array {name!r} is {array.dtype} of shape {array.shape}")
    return array


def _are_counts(values: NDArray[np.float64]) -> bool:
    return bool(((values >= 0) & (values < 2**53) & (values == np.floor(values))).all())


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _are_notes(notes: Any) -> bool:
    return isinstance(notes, dict) and all(
        isinstance(name, str) and type(value) in (int, str) for name, value in notes.items()
    )
