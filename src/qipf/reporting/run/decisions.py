"""Decisions made from the scores of a run: shift alarms and accuracy estimates.

A random half of the clean test predictions is the held-out set: it calibrates the monitor and the
accuracy estimators, and accept rules (`qipf.reporting.rule_evaluation`). They are evaluated on
images of the other half, clean and corrupted.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qipf.bench.suites import CLEAN, CLEAN_LEVEL
from qipf.calibration.accuracy import AccuracyEstimate, AccuracyEstimator
from qipf.calibration.conformal import Calibration
from qipf.monitor.monitor import ShiftMonitor
from qipf.reporting.rule_evaluation import random_halves
from qipf.reporting.run.results import Run

#: Limits on the error rate among accepted predictions.
RISKS = (0.01, 0.05, 0.1)

#: Scores whose accuracy estimates are compared.
ESTIMATED = ("qipf_plus", "qipf", "softmax")

#: Scores that decisions are shown for, and that shifts are detected by: the first that was kept.
DECIDING = ("qipf_plus", "qipf")
WATCHED = ("qipf_plus_novelty", *DECIDING)

#: Largest number of clean predictions at the start of a stream, and of predictions per level.
CLEAN_LENGTH, LEVEL_LENGTH = 1000, 100

#: Points of a timeline.
TIMELINE_POINTS = 200


def first_kept(names: Sequence[str], scores: Container[str]) -> str | None:
    """The first of the names that there are scores of."""
    return next((name for name in names if name in scores), None)


@dataclass(frozen=True)
class Timeline:
    """A monitor's evidence along a stream that starts clean and is then corrupted."""

    seen: list[int]
    evidence: list[float]  # log10 of the test martingale after so many predictions
    starts: list[tuple[int, float]]  # predictions before each level, and the level
    alpha: float
    alarm_at: int | None
    change_point: int | None
    score: str = "score"  # the method whose scores were tested

    @property
    def clean(self) -> int:
        """Predictions before the first level."""
        return self.starts[0][0]

    @property
    def delay(self) -> int | None:
        """Corrupted predictions until the alarm; zero or negative for a false alarm."""
        return None if self.alarm_at is None else self.alarm_at - self.clean

    @property
    def false_alarm(self) -> bool:
        """Whether the alarm came before the first corrupted prediction."""
        return self.delay is not None and self.delay <= 0

    @property
    def alarm_level(self) -> float | None:
        """The level at which the alarm came."""
        if self.alarm_at is None or self.false_alarm:
            return None
        return [level for before, level in self.starts if before < self.alarm_at][-1]

    @property
    def outcome(self) -> str:
        """The alarm in words."""
        if self.delay is None:
            return "no alarm"
        if self.false_alarm:
            return f"false alarm at prediction {self.alarm_at:,}"
        return f"alarm after {self.delay:,} corrupted prediction{'s' * (self.delay > 1)}"


def monitor_stream(
    clean: NDArray,  # (n,)
    corrupted: Mapping[float, NDArray],  # level -> (n,), in the order of the stream
    alpha: float = 0.01,
    seed: int = 0,
    score: str = "score",
) -> Timeline:
    """Monitor a stream in which every image occurs once and none is in the held-out half.

    Half of the other images (at most 1,000) come clean; the rest is divided among the levels, at
    most 100 each. With fewer images than levels the last levels are left out.
    """
    held_out, other = random_halves(len(clean), seed)
    length = min(CLEAN_LENGTH, len(other) // 2)
    each = min(LEVEL_LENGTH, max(1, (len(other) - length) // len(corrupted)))
    pieces = [clean[other[:length]]]
    starts: list[tuple[int, float]] = []
    for start, level in zip(range(length, len(other), each), corrupted, strict=False):
        starts.append((start, level))
        pieces.append(corrupted[level][other[start : start + each]])
    stream = np.concatenate(pieces)
    monitor = ShiftMonitor(Calibration(clean[held_out]), alpha=alpha, random_state=seed)
    seen, evidence = [0], [0.0]
    for part in np.array_split(stream, min(TIMELINE_POINTS, len(stream))):
        verdict = monitor.update_scores(part)
        seen.append(verdict.seen)
        evidence.append(verdict.log_evidence / math.log(10))
    verdict = monitor.verdict()
    return Timeline(seen, evidence, starts, alpha, verdict.alarm_at, verdict.change_point, score)


@dataclass(frozen=True)
class AccuracyComparison:
    """The true accuracy at one level, and the estimate from each score."""

    corruption: str
    level: float
    truth: float
    clean_accuracy: float  # of the held-out half: the estimate that ignores the shift
    estimates: dict[str, AccuracyEstimate]

    def accuracy(self, name: str) -> float:
        """The estimate from a score; NaN if there is none."""
        return self.estimates[name].accuracy if name in self.estimates else math.nan

    def error(self, name: str | None) -> float:
        """Absolute error of the estimate from a score, or of the clean accuracy for None."""
        return abs((self.clean_accuracy if name is None else self.accuracy(name)) - self.truth)


def accuracy_comparisons(
    run: Run, network: str, method: str = "threshold", seed: int | None = None
) -> Iterator[AccuracyComparison]:
    """Estimated and true accuracy on the other half, clean and at every level."""
    scores, wrong = run.scores(network, CLEAN, seed)[CLEAN_LEVEL]
    held_out, other = random_halves(len(wrong))
    estimators = {
        name: AccuracyEstimator(scores[name][held_out], wrong[held_out], method)
        for name in ESTIMATED
        if name in scores
    }
    clean_accuracy = 1 - float(wrong[held_out].mean())
    for corruption in (CLEAN, *run.corruptions(network)):
        for level, (values, errors) in run.scores(network, corruption, seed).items():
            estimates = {
                name: estimator.estimate(values[name][other])
                for name, estimator in estimators.items()
                if name in values
            }
            truth = 1 - float(errors[other].mean())
            yield AccuracyComparison(corruption, level, truth, clean_accuracy, estimates)
