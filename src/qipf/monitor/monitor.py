"""ShiftMonitor: test whether a stream of predictions still looks like the calibration set."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.calibration.accuracy import AccuracyEstimator
from qipf.calibration.conformal import Calibration, calibration_of
from qipf.calibration.mixin import CalibrationMixin
from qipf.calibration.one_per_input import one_per_input
from qipf.calibration.prediction import Prediction, require_same_model
from qipf.errors import QIPFInputError, unknown_name
from qipf.field.estimator import QIPF
from qipf.io.schema import refuse
from qipf.locks import Lock
from qipf.monitor.batches import logit_scores, network_scores
from qipf.monitor.score_test import ScoreTest
from qipf.monitor.state import TESTED, State, read_state, restored_state, write_state
from qipf.monitor.two_sample import WindowStatistics
from qipf.monitor.verdict import Verdict
from qipf.plots.evidence import draw_evidence
from qipf.validation.parameters import is_integer
from qipf.validation.scores import checked_scores, checked_share

#: Longest allowed window; its scores are the only part of the stream that is stored.
LONGEST_WINDOW = 2**20


class ShiftMonitor:
    r"""Anytime-valid test of whether a stream is still like the held-out data.

    Every prediction is ranked among the held-out scores and the stream's own past, which
    gives independent and uniform p-values while stream and held-out data are exchangeable, for any
    size of the held-out set (`qipf.monitor.online_p_values`). A test martingale measures the
    evidence against that (`qipf.monitor.martingale`). The probability that it ever reaches
    :math:`1/\alpha`, over an unbounded stream and checked after every prediction, is at most
    :math:`\alpha`; when it does, the alarm is raised. It detects scores that are unusually
    high, unusually low, spread out or concentrated, starting at any time.

    By default novelty and uncertainty are both tested, each at :math:`\alpha/2`, so that the
    probability of any false alarm is at most :math:`\alpha` (Bonferroni's inequality): the novelty
    tells unusual inputs, right or wrong, the uncertainty notices inputs between the classes.
    docs/monitor.md compares them. Abstentions and the estimated accuracy are by the uncertainty in
    every case.

    Assumptions: the held-out predictions were used neither to fit the model nor to train the
    network, and the stream is exchangeable. Frames of one film, or a stream sorted by class, are
    not exchangeable with shuffled data and correctly raise the alarm.

    Because every prediction is ranked among those before it, a shift that is there from the first
    prediction on soon looks usual: with few held-out predictions the alarm may never come.
    `Verdict.start` compares the first window with the held-out predictions alone. Its p-value is
    that of one test, so calling it a shift at :math:`p \le \alpha` is wrong with probability
    :math:`\alpha` at most, beside the alarm.

    Several threads may add predictions at once: each batch is added whole.

    Memory does not grow with the stream: counts in at most 1024 bins, the martingale, the window.
    The same scores give the same verdict, bit for bit, one by one or in batches. So do the
    same logits, unless the last bits of a row's score depend on the batch: quantization
    (`qipf.calibration.quantization`) removes such differences, except for the rare score at the
    boundary between two steps.

    Parameters
    ----------
    model : a calibrated model, that is an object with ``uncertainty(batch)`` and ``calibration_``
        (after ``calibrate``), and with ``both_scores(batch)`` if its calibration set has
        novelties; or a `qipf.calibration.conformal.Calibration`.
    alpha : upper bound of the probability of any false alarm.
    window : number of last predictions that are compared with the held-out ones.
    rule : accept rule as returned by `accept_rule`, or a function of uncertainties that returns a
        boolean mask; by default the model's own, if it has one. Predictions that it rejects are
        counted as abstained. NaN and inf always are.
    random_state : seed of the random numbers that break ties.
    score : what is tested: ``"both"``, ``"novelty"``, ``"uncertainty"``, or ``"auto"``: both if the
        calibration set has novelties, as that of every model has.

    Attributes
    ----------
    score : ``"both"``, ``"novelty"`` or ``"uncertainty"``.
    model_digest : identifies the model and its calibration.
    notes : integers and strings of your own, saved with the state.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> monitor = ShiftMonitor(Calibration(rng.normal(size=500)))
    >>> monitor.update_scores(rng.normal(size=2000)).alarm
    False
    >>> verdict = monitor.update_scores(rng.normal(loc=1.0, size=200))
    >>> verdict.alarm, verdict.alarm_at, verdict.change_point
    (True, 2050, 2004)
    """

    def __init__(
        self,
        model: Any,
        alpha: float = 0.01,
        window: int = 1000,
        rule: Callable[[Any], Any] | None = None,
        random_state: int = 0,
        score: str = "auto",
    ) -> None:
        self.calibration = calibration_of(model)
        self.score = _chosen(score, self.calibration)
        self.model = None if isinstance(model, Calibration) else model
        self.alpha, self.window, self.random_state = _checked(alpha, window, random_state)
        self.rule = getattr(self.model, "rule_", None) if rule is None else rule
        self.notes: dict[str, int | str] = {}
        self.model_digest = _digest(model)  # as the model is now
        self._accuracy = (
            None if self.calibration.wrong is None else AccuracyEstimator.of(self.calibration)
        )
        self._lock = Lock()
        self._state = State(
            tuple(
                ScoreTest.begun(name, self.calibration, self.random_state)
                for name in TESTED[self.score]
            ),
            uncertainty=np.empty(0),
            abstained_recent=np.empty(0, bool),
        )

    def __repr__(self) -> str:
        verdict = self.verdict()
        return f"ShiftMonitor(alpha={self.alpha:g}, {self.score}: {verdict._finding()})"

    def _repr_html_(self) -> str:
        return self.verdict()._shown()._replace(title=repr(self)).html()

    @property
    def seen(self) -> int:
        """Number of predictions so far."""
        return self._state.seen

    def update_scores(self, uncertainty: Any, novelty: Any = None) -> Verdict:
        """Add predictions, one or many, by their scores; NaN ranks highest.

        A monitor that tests the novelty needs both, ``*model.both_scores(inputs)``; one of the
        uncertainty alone ignores a novelty. Every call computes the whole verdict, which takes
        longer than adding a prediction: where there are many predictions, pass them in batches.
        """
        uncertainty = checked_scores(uncertainty, "uncertainty")
        if self._reads_novelty:
            if novelty is None:
                what = "rule" if self.score == "uncertainty" else "test"
                raise QIPFInputError(
                    f"This monitor's {what} needs the novelty: call "
                    "update_scores(*model.both_scores(inputs)), or make it with "
                    "score='uncertainty' and a rule of the uncertainty."
                )
            novelty = checked_scores(novelty, "novelty")
            if novelty.shape != uncertainty.shape:
                raise QIPFInputError(
                    f"novelty must have the shape of uncertainty, {uncertainty.shape}; got "
                    f"{novelty.shape}."
                )
        mask = self._abstained(uncertainty, novelty)
        with self._lock:
            self._state = self._added(self._state, uncertainty, novelty, mask)
            return self.verdict()

    def _added(
        self, old: State, uncertainty: NDArray[np.float64], novelty: Any, mask: NDArray[np.bool_]
    ) -> State:
        """The state after more scores, made of copies: an interrupt leaves the old one."""
        abstained, level = np.concatenate([old.abstained_recent, mask]), self._level()
        tests = tuple(
            test.added(
                novelty if test.score == "novelty" else uncertainty, abstained, self.window, level
            )
            for test in old.tests
        )
        return State(
            tests,
            # copies: a view would keep the whole batch in memory
            uncertainty=np.concatenate([old.uncertainty, uncertainty])[-self.window :].copy(),
            abstained_recent=abstained[-self.window :].copy(),
            abstained=old.abstained + int(mask.sum()),
        )

    def _level(self) -> float:
        """Log evidence of each test at which the alarm is raised."""
        return math.log(len(TESTED[self.score])) - math.log(self.alpha)

    def update(self, *batch: Any, **options: Any) -> Verdict:
        """Add the predictions of a batch, which is passed to the model.

        A `QIPF` takes logits, one row or many; a model with a network takes the network's inputs.
        A prediction with NaN or inf in its logits ranks highest and is counted as abstained. Of an
        input with several predictions (pixels, labels) one is drawn; there, NaN and inf raise.
        A `Prediction` of this model can be passed instead of the inputs.
        """
        if self.model is None:
            raise QIPFInputError(
                "This monitor was made from a Calibration and cannot score inputs. Make it from "
                "the model, or call update_scores(uncertainty, novelty)."
            )
        if getattr(self.model, "calibration_", None) is not self.calibration:
            raise QIPFInputError(
                "The model was fitted or calibrated again after this monitor was made, so its "
                "scores do not compare with the monitor's calibration set. Make a new monitor."
            )
        scores: tuple[Any, ...]
        if len(batch) == 1 and isinstance(batch[0], Prediction):
            if options:
                raise QIPFInputError(
                    "A Prediction was made already: update takes no "
                    f"{', '.join(options)} beside it."
                )
            require_same_model(batch[0], self.calibration, "the monitor's")
            both = (batch[0].uncertainty, batch[0].novelty)
            scores = tuple(score for score in both if score is not None)
        elif isinstance(self.model, QIPF):
            if len(batch) != 1 or options:
                raise QIPFInputError(
                    f"update takes one batch of logits for a QIPF, got {len(batch) + len(options)} "
                    "arguments."
                )
            return self.update_scores(*logit_scores(self.model, self._scores, *batch))
        else:
            scores = network_scores(self._scores, batch, options)
        with self._lock:
            shape, device = np.shape(scores[0]), getattr(scores[0], "device", None)
            if len(shape) > 1 and device is not None:
                # pixels or labels of an input depend on each other
                drawn = one_per_input(shape, self.seen).to(device)
                scores = tuple(score.flatten()[drawn] for score in scores)
            return self.update_scores(*scores)

    @property
    def _reads_novelty(self) -> bool:
        return "novelty" in TESTED[self.score] or _limits_novelty(self.rule)

    def _scores(self, *batch: Any, **options: Any) -> tuple[Any, ...]:
        """The uncertainty of a batch, and the novelty if it is needed."""
        assert self.model is not None
        if self._reads_novelty:
            return tuple(self.model.both_scores(*batch, **options))
        return (self.model.uncertainty(*batch, **options),)

    def verdict(self) -> Verdict:
        """The result so far."""
        state = self._state
        accuracy = None
        if self._accuracy is not None and len(state.uncertainty):
            accuracy = self._accuracy.estimate(state.uncertainty)
        leading, peak = state.leading, max(test.martingale.peak for test in state.tests)
        count = len(state.tests)
        windows = [test.window(state.abstained_recent) for test in state.tests]
        starts = [test.start for test in state.tests if test.start is not None]
        return Verdict(
            seen=state.seen,
            abstained=state.abstained,
            log_evidence=leading.martingale.log_evidence - math.log(count),
            p_value=min(1.0, count * math.exp(-peak)),
            alarm=leading.alarm is not None,
            alarm_at=None if leading.alarm is None else leading.alarm.at,
            change_point=None if leading.alarm is None else leading.alarm.change_point,
            window=_most_different(windows),
            start=_most_different(starts) if starts else None,
            accuracy=accuracy,
            score=leading.score,
        )

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """Draw the evidence of a shift over the stream, the alarm and the change point.

        Of two tests, the one that the verdict names is drawn. The evidence is kept at 512 evenly
        spaced predictions at most. It needs matplotlib.

        Parameters
        ----------
        ax : matplotlib axes to draw on; by default those of a new figure.
        style : further arguments of matplotlib's `plot` for the line.

        Returns the axes.
        """
        test, count = self._state.leading, len(self._state.tests)
        martingale, trail = test.martingale, test.martingale.trail
        seen, evidence = trail.seen, trail.values
        if not trail.start:
            seen, evidence = np.append(0, seen), np.append(0.0, evidence)  # one unit at the start
        if martingale.count > seen[-1:].sum():
            seen = np.append(seen, martingale.count)
            evidence = np.append(evidence, martingale.log_evidence)
        alarm = None if test.alarm is None else (test.alarm.at, test.alarm.change_point)
        return draw_evidence(seen, evidence - math.log(count), self.alpha, alarm, ax, **style)

    def _abstained(
        self, uncertainty: NDArray[np.float64], novelty: NDArray[np.float64] | None
    ) -> NDArray[np.bool_]:
        given = [uncertainty]
        if _limits_novelty(self.rule):
            assert novelty is not None
            given.append(novelty)
        abstained = ~np.isfinite(uncertainty)
        abstained |= ~np.isfinite(given[-1])
        if self.rule is not None and not abstained.all():
            usable = [scores[~abstained] for scores in given]
            abstained[~abstained] = ~np.asarray(self.rule(*usable), bool)
        return abstained

    def save(self, path: Path | str) -> None:
        """Write the state to a file, atomically."""
        parameters = {
            "reference": self.model_digest,
            "alpha": self.alpha,
            "window": self.window,
            "random_state": self.random_state,
            "score": self.score,
            "notes": self.notes,
        }
        write_state(path, parameters, self._state)

    @classmethod
    def load(
        cls, path: Path | str, model: Any, rule: Callable[[Any], Any] | None = None
    ) -> "ShiftMonitor":
        """Load a monitor written by `save`; it continues exactly where it was.

        Parameters
        ----------
        path : the file.
        model : the model or Calibration it was made from; any other raises `QIPFFileError`.
        rule : as in the constructor, for new predictions; it is not part of the file.
        """
        calibration_of(model)  # a model that is not calibrated raises before the file is read
        header, arrays = read_state(path, _digest(model))
        try:
            names = ("alpha", "window", "random_state", "score")
            monitor = cls(model, rule=rule, **{name: header[name] for name in names})
        except QIPFInputError as error:
            refuse(str(path), str(error).rstrip("."))
        monitor.notes = header["notes"]
        monitor._state = restored_state(str(path), header, arrays, monitor._state.tests)
        return monitor


def _limits_novelty(rule: Any) -> bool:
    """Whether a rule looks at the novelty too."""
    return getattr(rule, "max_novelty", None) is not None


def _chosen(score: Any, calibration: Calibration) -> str:
    """The score to test."""
    if not isinstance(score, str) or score not in ("auto", *TESTED):
        raise unknown_name("score", score, ("auto", *TESTED))
    if score == "auto":
        return "uncertainty" if calibration.novelty is None else "both"
    return score


def _most_different(windows: list[WindowStatistics]) -> WindowStatistics:
    """The window of the score that differs most, its p-value multiplied by their number."""
    largest = max(windows, key=lambda window: window.ks)
    return replace(largest, ks_p_value=min(1.0, len(windows) * largest.ks_p_value))


def _digest(model: Any) -> str:
    """Digest of a model with its calibration set, or of the calibration set alone."""
    return model.digest() if isinstance(model, CalibrationMixin) else calibration_of(model).digest


def _checked(alpha: Any, window: Any, seed: Any) -> tuple[float, int, int]:
    alpha = checked_share(alpha, "alpha", 0.01)
    if not is_integer(window) or not 1 <= window <= LONGEST_WINDOW:
        raise QIPFInputError(
            f"window must be an integer from 1 to {LONGEST_WINDOW}, got {window!r}."
        )
    if not is_integer(seed) or not 0 <= seed < 2**63:
        raise QIPFInputError(f"random_state must be an integer ≥ 0, got {seed!r}.")
    return alpha, int(window), int(seed)
