"""A monitor's state on disk: what it has seen, bit by bit, and of which field.

A safetensors file (see `qipf.io.container`) of the kind ``monitor``. The header holds the monitor's
parameters, its counts, the alarm, the caller's notes and a digest of the field and its calibration;
the arrays are the stream's counts by bin, the bets, and the window with what was abstained from
in it. Nothing a file says is believed before it is checked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qipf.calibration.conformal import Calibration, calibration_of
from qipf.errors import QIPFFileError, QIPFInputError
from qipf.io.atomic import atomic_write, checked_output
from qipf.io.container import Arrays, encode, read_file
from qipf.io.schema import KINDS, refuse, require_version
from qipf.monitor.martingale import BETS, Betting, Crossing
from qipf.monitor.monitor import ShiftMonitor, State
from qipf.monitor.online_p_values import StreamRanks

if TYPE_CHECKING:
    from qipf.field.estimator import QIPF

FORMAT_VERSION = 1

_KEYS = {
    "format_version",
    "library_version",
    "kind",
    "reference",
    "alpha",
    "window",
    "random_state",
    "seen",
    "abstained",
    "alarm",
    "notes",
}
_ARRAYS = {"counts", "gains", "stakes", "best", "best_start", "evidence", "recent", "refused"}


def save_state(monitor: ShiftMonitor, path: Path | str) -> None:
    """Write a monitor's state; the file appears whole, or the one before it stays."""
    from qipf._version import __version__

    path = checked_output(Path(path))
    if not _sound_notes(monitor.notes):
        raise QIPFInputError("notes may hold whole numbers and texts, under names, and no more.")
    state = monitor._state
    betting = state.betting
    header = {
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "kind": "monitor",
        "reference": monitor.reference,
        "alpha": monitor.alpha,
        "window": monitor.window,
        "random_state": monitor.random_state,
        "seen": monitor.seen,
        "abstained": state.abstained,
        "alarm": None if state.alarm is None else [state.alarm.at, state.alarm.since],
        "notes": dict(monitor.notes),
    }
    arrays: Arrays = {
        "counts": state.ranks.counts.astype(np.float64),  # whole numbers below 2⁵³: exact
        "gains": betting.gains,
        "stakes": betting.stakes,
        "best": betting.best,
        "best_start": betting.best_start.astype(np.float64),
        "evidence": np.array([betting.log_evidence, betting.peak]),
        "recent": state.recent,
        "refused": state.refused.astype(np.float64),
    }
    with atomic_write(path) as file:
        file.write(encode(header, arrays))


def load_state(
    kind: type[ShiftMonitor],
    path: Path | str,
    reference: QIPF | Calibration,
    rule: Callable[[Any], Any] | None,
) -> ShiftMonitor:
    """The monitor whose state is in a file, if it is sound and of this field."""
    calibration = calibration_of(reference)  # bad arguments are told apart from bad files
    field = None if isinstance(reference, Calibration) else reference
    header, arrays = read_file(path)
    name = str(path)
    held = header.get("kind")
    if held != "monitor":
        what = KINDS.get(str(held), f"something of the kind {held!r:.80}")
        raise QIPFFileError(
            f"{name} holds {what}, where {KINDS['monitor']} is expected. Name a file of its own for "
            "the state; one that is not there yet is begun."
        )
    require_version(name, header, FORMAT_VERSION)
    if set(header) != _KEYS or set(arrays) != _ARRAYS:
        refuse(name, "it does not hold what a monitor's state holds")
    if header["reference"] != reference_digest(calibration, field):
        refuse(
            name,
            "it belongs to another field, or to another calibration of it. Use the field it was "
            "made with, or start a new state",
        )
    try:
        monitor = kind(reference, header["alpha"], header["window"], rule, header["random_state"])
    except QIPFInputError as error:
        raise QIPFFileError(f"{name} cannot be used: {error}") from error
    if not _sound_notes(header["notes"]):
        refuse(name, "its notes are not plain values")
    monitor.notes = header["notes"]
    monitor._state = _state(name, header, arrays, monitor)
    return monitor


def reference_digest(calibration: Calibration, field: QIPF | None = None) -> str:
    """A short name for exactly this calibration, and the field whose scores it holds."""
    if field is None:
        return calibration.digest
    digest = hashlib.blake2b(calibration.digest.encode(), digest_size=16)
    *arrays, bandwidth, softening, spread, orders = learned(field)
    for array in arrays:
        digest.update(b"" if array is None else f"{array.dtype} {array.shape}".encode())
        digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    numbers = (bandwidth, softening, spread)
    digest.update(repr([*map(float, numbers), *map(int, orders)]).encode())
    return digest.hexdigest()


def learned(field: QIPF | None) -> tuple[Any, ...]:
    """All that a field's uncertainties come from: three arrays, or None, three numbers, orders."""
    if field is None:
        return ()
    arrays = (field.centers_, field.energies_, field.log_weights_)
    return *arrays, field.bandwidth_, field.softening, field.spread_, field.orders


def _state(path: str, header: dict[str, Any], arrays: Arrays, monitor: ShiftMonitor) -> State:
    seen, abstained = header["seen"], header["abstained"]
    if not _count(seen) or not _count(abstained) or abstained > seen:
        refuse(path, f"it counts {abstained!r:.80} abstained of {seen!r:.80}")
    ranks = StreamRanks(monitor.calibration, monitor.random_state)
    counts = _array(path, arrays, "counts", len(ranks.counts))
    if not _naturals(counts) or int(counts.sum()) != seen:
        refuse(path, "its counts do not add up")
    ranks.counts = counts.astype(np.int64)
    recent = _array(path, arrays, "recent", min(seen, monitor.window))
    refused = _array(path, arrays, "refused", len(recent))
    sound = _naturals(refused) and refused.max(initial=0.0) <= 1.0 and refused.sum() <= abstained
    if not sound or not refused[~np.isfinite(recent)].all():
        refuse(path, "what it abstained from in the window is impossible")
    betting = _betting(path, arrays, seen)
    alarm = _alarm(path, header["alarm"], seen)
    if (alarm is not None) != (betting.peak >= -math.log(monitor.alpha)):
        refuse(path, "its alarm does not agree with its evidence")
    return State(ranks, betting, recent, refused.astype(bool), abstained, alarm)


def _betting(path: str, arrays: Arrays, seen: int) -> Betting:
    betting = Betting()
    if seen == 0:
        return betting
    betting.count = seen
    betting.gains = _array(path, arrays, "gains", len(BETS))
    betting.stakes = _array(path, arrays, "stakes", len(BETS))
    betting.best = _array(path, arrays, "best", len(BETS))
    start = _array(path, arrays, "best_start", len(BETS))
    evidence = _array(path, arrays, "evidence", 2)
    numbers = (betting.gains, betting.stakes, betting.best, evidence)
    if not all(np.isfinite(array).all() for array in numbers):
        refuse(path, "its bets hold NaN or inf")
    if not _naturals(start) or start.max() >= seen or evidence[1] < max(evidence[0], 0.0):
        refuse(path, "its bets are impossible")
    betting.best_start = start.astype(np.int64)
    betting.log_evidence, betting.peak = map(float, evidence)
    return betting


def _alarm(path: str, told: Any, seen: int) -> Crossing | None:
    if told is None:
        return None
    if not isinstance(told, list) or len(told) != 2 or not all(map(_count, told)):
        refuse(path, f"its alarm is {told!r:.80}")
    at, since = told
    if not 1 <= since <= at <= seen:
        refuse(path, f"its alarm is {told!r:.80}, after {seen} predictions")
    return Crossing(at, since)


def _array(path: str, arrays: Arrays, name: str, length: int) -> NDArray[np.float64]:
    array = arrays[name]
    if array.dtype != np.float64 or array.shape != (length,):
        refuse(path, f"its array {name!r} is {array.dtype} of shape {array.shape}")
    return array


def _naturals(values: NDArray[np.float64]) -> bool:
    return bool(((values >= 0) & (values < 2**53) & (values == np.floor(values))).all())


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _sound_notes(notes: Any) -> bool:
    return isinstance(notes, dict) and all(
        isinstance(name, str) and type(value) in (int, str) for name, value in notes.items()
    )
