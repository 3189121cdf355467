"""What `qipf` would have decided, had it been in charge: from the scores that a run kept.

One half of the clean test predictions, drawn with a seed, plays the held-out set: it sets the
thresholds, calibrates the monitor and the accuracy estimates. What they are tried on, clean or
spoilt, are images of the other half.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.calibration.accept_rule import accept_rule
from qipf.calibration.accuracy import AccuracyEstimate, AccuracyEstimator
from qipf.calibration.conformal import Calibration
from qipf.calibration.rule import AcceptRule
from qipf.errors import QIPFError
from qipf.monitor.monitor import ShiftMonitor
from qipf.report.run.run import IDENTITY, Run, unit_of

#: Error rates among accepted predictions that a rule is asked to keep to.
RISKS = (0.01, 0.05, 0.1)

#: Scores whose accuracy estimates are compared.
ESTIMATED = ("qipf", "softmax")

#: A test set smaller than this is not halved.
FEWEST = 20

#: The longest clean beginning of a stream, and the most predictions it spends on one level.
CLEAN_LENGTH, LEVEL_LENGTH = 1000, 100

#: Places of a stream at which the evidence is noted.
LOOKS = 200

Indices = NDArray[np.int64]


class Halves(NamedTuple):
    """Which predictions decide, and which they are tried on."""

    held_out: Indices
    other: Indices


def halves(count: int, seed: int = 0) -> Halves:
    """Two random halves of so many predictions.

    >>> sorted(np.concatenate(halves(5)).tolist())
    [0, 1, 2, 3, 4]
    """
    order = np.random.default_rng(seed).permutation(count)
    return Halves(order[: count // 2], order[count // 2 :])


@dataclass(frozen=True)
class Trial:
    """An accept rule, and what it does with predictions that it was not made from."""

    rule: AcceptRule
    count: int
    accepted: int
    errors: int

    @property
    def coverage(self) -> float:
        """The share that is accepted."""
        return self.accepted / self.count

    @property
    def risk(self) -> float:
        """The error rate among these; NaN where none is accepted."""
        return self.errors / self.accepted if self.accepted else math.nan


def tried(rule: AcceptRule, uncertainty: ArrayLike, wrong: ArrayLike) -> Trial:
    """What a rule does with predictions whose errors are known."""
    accept = rule(np.asarray(uncertainty))
    errors = np.asarray(wrong).astype(bool) & accept
    return Trial(rule, len(accept), int(accept.sum()), int(errors.sum()))


def halved_trial(
    uncertainty: NDArray,  # (n,)
    wrong: NDArray,  # (n,)
    max_risk: float,
    seed: int = 0,
) -> Trial:
    """A rule from one half of the predictions, tried on the other.

    >>> sure = np.linspace(0, 1, 1000)
    >>> halved_trial(sure, sure > 0.9, 0.05).errors
    12
    """
    held_out, other = halves(len(wrong), seed)
    rule = accept_rule(uncertainty[held_out], wrong[held_out], max_risk)
    return tried(rule, uncertainty[other], wrong[other])


@dataclass(frozen=True)
class Timeline:
    """A monitor's evidence along a stream that starts clean and is then spoilt more and more."""

    seen: list[int]
    evidence: list[float]  # log10 of the money won, after so many predictions
    starts: list[tuple[int, float]]  # how many predictions came before each level
    alpha: float
    alarm_at: int | None
    since: int | None

    @property
    def clean(self) -> int:
        """Predictions before the first level."""
        return self.starts[0][0]

    @property
    def delay(self) -> int | None:
        """Spoilt predictions until the alarm; none or less where it came before them."""
        return None if self.alarm_at is None else self.alarm_at - self.clean

    @property
    def alarm_level(self) -> float | None:
        """The level that was running when the alarm came."""
        if self.delay is None or self.delay <= 0:
            return None
        assert self.alarm_at is not None
        return [level for before, level in self.starts if before < self.alarm_at][-1]


def timeline(
    clean: NDArray,  # (n,)
    spoilt: Mapping[float, NDArray],  # level -> (n,), in the order they come
    alpha: float = 0.01,
    seed: int = 0,
) -> Timeline:
    """Watch a stream in which no image comes twice, nor was in the held-out half.

    Half of the other images (1,000 at most) come clean; the rest is dealt out to the levels, 100
    at most to each. Where there are fewer images than levels the last levels are left out.
    """
    held_out, other = halves(len(clean), seed)
    length = min(CLEAN_LENGTH, len(other) // 2)
    each = min(LEVEL_LENGTH, max(1, (len(other) - length) // len(spoilt)))
    pieces = [clean[other[:length]]]
    starts: list[tuple[int, float]] = []
    for start, level in zip(range(length, len(other), each), spoilt, strict=False):
        starts.append((start, level))
        pieces.append(spoilt[level][other[start : start + each]])
    stream = np.concatenate(pieces)
    monitor = ShiftMonitor(Calibration(clean[held_out]), alpha=alpha, random_state=seed)
    seen, evidence = [0], [0.0]
    for part in np.array_split(stream, min(LOOKS, len(stream))):
        verdict = monitor.update(part)
        seen.append(verdict.seen)
        evidence.append(verdict.log_evidence / math.log(10))
    said = monitor.verdict()
    return Timeline(seen, evidence, starts, alpha, said.alarm_at, said.change_point)


def by_severity(corruption: str, levels: Iterable[float]) -> list[float]:
    """Levels from the mildest to the strongest; half and double are equally strong.

    >>> by_severity("zoom", [0.4, 0.5, 0.8, 1.25, 2.5])
    [0.8, 1.25, 0.5, 0.4, 2.5]
    """
    if unit_of(corruption) == "factor":
        away = {level: abs(math.log(level)) if level > 0 else math.inf for level in levels}
        return sorted(away, key=lambda level: (round(away[level], 9), level))
    unmoved = IDENTITY.get(unit_of(corruption), 0.0)
    return sorted(levels, key=lambda level: (abs(level - unmoved), level))


@dataclass(frozen=True)
class Guess:
    """The accuracy at one level: the true one, and what each score makes of it."""

    corruption: str
    level: float
    truth: float
    assumed: float  # of the clean held-out half: what one believes who does not look
    told: dict[str, AccuracyEstimate]


def guesses(
    run: Run,
    network: str,
    method: str = "threshold",
    names: Sequence[str] = ESTIMATED,
    seed: int | None = None,
) -> Iterator[Guess]:
    """Estimated and true accuracy, clean and at every level, on images of the other half."""
    scores, wrong = run.scores(network, CLEAN, seed)[CLEAN_LEVEL]
    held_out, other = halves(len(wrong))
    estimators = {
        name: AccuracyEstimator(scores[name][held_out], wrong[held_out], method)
        for name in names
        if name in scores
    }
    assumed = 1 - float(wrong[held_out].mean())
    for corruption in (CLEAN, *run.corruptions(network)):
        for level, (spoilt, errors) in _kept(run, network, corruption, seed).items():
            told = {
                name: estimator.estimate(spoilt[name][other])
                for name, estimator in estimators.items()
                if name in spoilt
            }
            yield Guess(corruption, level, 1 - float(errors[other].mean()), assumed, told)


def _kept(
    run: Run, network: str, corruption: str, seed: int | None
) -> dict[float, tuple[dict[str, NDArray], NDArray]]:
    try:
        return run.scores(network, corruption, seed)
    except QIPFError:
        return {}  # not measured yet
