"""ShiftMonitor: does a stream of predictions still look like the data it was calibrated on?"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.calibration.accuracy import AccuracyEstimate, AccuracyEstimator
from qipf.calibration.conformal import Calibration, calibration_of
from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.monitor.martingale import Betting, Crossing
from qipf.monitor.online_p_values import StreamRanks
from qipf.monitor.two_sample import WindowStatistics, window_statistics
from qipf.validation.scores import checked_scores, checked_share, real_numbers

#: The longest window: what is kept of the stream itself.
LONGEST_WINDOW = 2**20

#: Predictions that are bet on at a time.
BLOCK = 1024

#: What a caller may keep with the state: where it stands in its input, say.
Notes = dict[str, int | str]


@dataclass(frozen=True)
class Verdict:
    """What a monitor has to say after so many predictions."""

    seen: int  # predictions so far
    abstained: int  # of them not to be acted on: uncertainty NaN or inf, or refused by the rule
    log_evidence: float  # log of the money won by betting against "nothing has changed"
    p_value: float  # 1/(the most that was ever won): valid at any time, for any number of looks
    alarm: bool  # whether it ever reached 1/alpha; once raised, it stays
    alarm_at: int | None  # the prediction, counted from 1, that raised it
    since: int | None  # the prediction from which on the stream seems to differ
    window: WindowStatistics  # the last predictions beside the held-out ones
    accuracy: AccuracyEstimate | None  # of the window; None without labelled held-out predictions

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class State:
    """All that changes while a stream is watched."""

    ranks: StreamRanks
    betting: Betting
    recent: NDArray[np.float64]  # the window's scores, oldest first
    refused: NDArray[np.bool_]  # which of these must not be acted on
    abstained: int = 0
    alarm: Crossing | None = None


class ShiftMonitor:
    r"""An anytime-valid test of whether a stream is still like the held-out data.

    Every prediction is ranked among the held-out uncertainties and the stream's own past, which
    gives exactly independent and uniform p-values while stream and held-out data are exchangeable
    (`qipf.monitor.online_p_values`), for any size of the held-out set. The monitor bets against that
    (`qipf.monitor.martingale`). Its money is a martingale, so the probability that it ever reaches
    :math:`1/\alpha`, over a stream without end and looked at after every prediction, is at most
    :math:`\alpha`; when it does, the alarm is raised. It bets on uncertainties that are unusually
    high, unusually low, spread out or drawn together, since any time.

    What it takes for granted: held-out predictions that the field was not fitted on and the
    network was not trained on, and a stream without memory. Frames of one film, or a stream sorted
    by class, are not exchangeable with shuffled data, and raise the alarm rightly.

    Memory does not grow with the stream: counts in at most 1024 bins, a few numbers a bet, and the
    window. Fed the same uncertainties one by one or in batches, it says the same to the last bit;
    fed logits, it does so as far as the field's uncertainty of a row does not depend on the rows
    beside it. What that differs by is rounded off before ranks are taken (`qipf.calibration.quantization`), but for
    the rare score at a limit between two steps.

    Parameters
    ----------
    reference : a calibrated field (``field.calibrate(held_out_logits, labels)``) or a
        `qipf.calibration.conformal.Calibration`.
    alpha : the probability of ever raising a false alarm.
    window : so many last predictions are compared with the held-out ones.
    rule : which predictions are acted on, as `accept_rule` returns it: uncertainties in, accept
        mask out; if not given, the field's own, where it has one. The others are counted as
        abstained, and so is NaN, rule or not.
    random_state : seed of the random numbers that break ties.

    Attributes
    ----------
    notes : whole numbers and texts of your own, saved with the state in one piece.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> monitor = ShiftMonitor(Calibration(rng.normal(size=500)))
    >>> monitor.update(rng.normal(size=2000)).alarm
    False
    >>> verdict = monitor.update(rng.normal(loc=1.0, size=200))
    >>> verdict.alarm, verdict.alarm_at, verdict.since
    (True, 2050, 2004)
    """

    def __init__(
        self,
        reference: QIPF | Calibration,
        alpha: float = 0.01,
        window: int = 1000,
        rule: Callable[[Any], Any] | None = None,
        random_state: int = 0,
    ) -> None:
        self.calibration = calibration_of(reference)
        self.field = None if isinstance(reference, Calibration) else reference
        self.alpha, self.window, self.random_state = _checked(alpha, window, random_state)
        self.rule = getattr(self.field, "rule_", None) if rule is None else rule
        self.notes: Notes = {}
        self._accuracy = (
            None if self.calibration.wrong is None else AccuracyEstimator.of(self.calibration)
        )
        self._named: tuple[tuple[Any, ...], str] = (
            (),
            "",
        )  # what the field held when it got its name
        self._level = -math.log(self.alpha)
        self._state = State(
            StreamRanks(self.calibration, self.random_state),
            Betting(),
            recent=np.empty(0),
            refused=np.empty(0, bool),
        )

    @property
    def seen(self) -> int:
        """Predictions so far."""
        return self._state.betting.count

    def update(self, uncertainty: Any) -> Verdict:
        """Watch the next predictions, one or many, by their uncertainties; NaN ranks highest.

        Every call makes a whole verdict, whose window statistics take longer than a prediction:
        where many predictions come, feed them in batches.
        """
        scores = checked_scores(uncertainty, "uncertainty")
        # worked out on the side and put in place at once: an interrupt leaves nothing half-counted
        old = self._state
        ranks, betting, alarm = old.ranks.copied(), copy.copy(old.betting), old.alarm
        for start in range(0, len(scores), BLOCK):
            p, q = ranks.add(scores[start : start + BLOCK])
            crossing = betting.add(p, q, self._level)
            alarm = alarm or crossing
        refused = self._refused(scores)
        abstained = old.abstained + int(refused.sum())
        # copies: a view would keep all that came with it
        recent = np.concatenate([old.recent, scores])[-self.window :].copy()
        refused = np.concatenate([old.refused, refused])[-self.window :].copy()
        self._state = State(ranks, betting, recent, refused, abstained, alarm)
        return self.verdict()

    def update_logits(self, logits: Any) -> Verdict:
        """Watch the next predictions by their logits, one row or many.

        A row with NaN or inf cannot be judged: it ranks highest and is counted as abstained.
        """
        return self.update(self.uncertainty(logits))

    def uncertainty(self, logits: Any) -> NDArray[np.float64]:  # (n, d) or (d,) -> (n,)
        """The field's uncertainty of each row, NaN for rows with NaN or inf."""
        if self.field is None:
            raise QIPFInputError(
                "This monitor was made from a Calibration and cannot judge logits. Make it from "
                "the field, or call update(uncertainty)."
            )
        rows = np.atleast_2d(real_numbers(logits, "logits"))
        width = self.field.n_features_in_
        if rows.ndim != 2 or rows.shape[1] != width:
            raise QIPFInputError(
                f"logits must be rows of {width} numbers, as the field was fitted with, got shape "
                f"{rows.shape}."
            )
        sound = np.isfinite(rows).all(axis=1)
        values = np.full(len(rows), np.nan)
        if sound.all():
            values[:] = self.field.uncertainty(rows)
        elif sound.any():
            values[sound] = self.field.uncertainty(rows[sound])
        return values

    def verdict(self) -> Verdict:
        """What there is to say now."""
        state = self._state
        known = self._accuracy is not None and len(state.recent) > 0
        return Verdict(
            seen=self.seen,
            abstained=state.abstained,
            log_evidence=state.betting.log_evidence,
            p_value=math.exp(-state.betting.peak),
            alarm=state.alarm is not None,
            alarm_at=None if state.alarm is None else state.alarm.at,
            since=None if state.alarm is None else state.alarm.since,
            window=window_statistics(
                self.calibration, state.recent, abstained=int(state.refused.sum())
            ),
            accuracy=self._accuracy.estimate(state.recent) if known else None,  # type: ignore[union-attr]
        )

    def _refused(self, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        refused = ~np.isfinite(scores)
        if self.rule is not None and not refused.all():
            refused[~refused] = ~np.asarray(self.rule(scores[~refused]), bool)
        return refused

    # ------------------------------------------------------------------ on disk

    @property
    def reference(self) -> str:
        """A short name for the field, as it is now, and the calibration that it compares with."""
        from qipf.monitor.state import learned, reference_digest

        now = learned(self.field)
        known, name = self._named
        # a digest takes a while; what a field learns anew are other objects
        if not name or any(a is not b for a, b in zip(now, known, strict=True)):
            name = reference_digest(self.calibration, self.field)
            self._named = now, name
        return name

    def save(self, path: Path | str) -> None:
        """Write the state to a file, which is replaced whole or not at all."""
        from qipf.monitor.state import save_state

        save_state(self, path)

    @classmethod
    def load(
        cls,
        path: Path | str,
        reference: QIPF | Calibration,
        rule: Callable[[Any], Any] | None = None,
    ) -> ShiftMonitor:
        """The monitor that `save` wrote, to go on exactly where it stood.

        Parameters
        ----------
        path : the file.
        reference : the field or Calibration it was made from; another is refused.
        rule : as in the constructor, for what comes; a file does not hold it, but holds what was
            abstained from before.
        """
        from qipf.monitor.state import load_state

        return load_state(cls, path, reference, rule)


def _checked(alpha: Any, window: Any, seed: Any) -> tuple[float, int, int]:
    try:
        alpha = checked_share(alpha, "alpha", 0.01)
    except OverflowError:  # a whole number that no float reaches
        raise QIPFInputError(f"alpha must lie between 0 and 1, got {alpha!r:.80}.") from None
    if not _whole(window) or not 1 <= window <= LONGEST_WINDOW:
        raise QIPFInputError(
            f"window must be a whole number from 1 to {LONGEST_WINDOW}, got {window!r}."
        )
    if not _whole(seed) or not 0 <= seed < 2**63:
        raise QIPFInputError(f"random_state must be a whole number ≥ 0, got {seed!r}.")
    return alpha, int(window), int(seed)


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
