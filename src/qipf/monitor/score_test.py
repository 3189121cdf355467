"""The test of one score of a stream against the calibration set."""

import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qipf.calibration.conformal import Calibration
from qipf.monitor.martingale import Crossing, Martingale
from qipf.monitor.online_p_values import OnlinePValues
from qipf.monitor.two_sample import WindowStatistics, window_statistics

#: Predictions added to the martingale at a time.
BLOCK = 1024


@dataclass(frozen=True)
class ScoreTest:
    """Evidence, window and alarm of one score."""

    score: str
    reference: Calibration  # held-out predictions, ranked by this score
    p_values: OnlinePValues
    martingale: Martingale
    recent: NDArray[np.float64]  # scores of the window, oldest first
    alarm: Crossing | None = None
    start: WindowStatistics | None = None  # the first window, once it is complete

    @classmethod
    def begun(cls, score: str, calibration: Calibration, seed: int) -> "ScoreTest":
        """The test before the first prediction."""
        reference = calibration.ranked_by(score)
        p_values = OnlinePValues(reference, seed)
        return cls(score, reference, p_values, Martingale(), np.empty(0))

    def added(
        self,
        scores: NDArray[np.float64],  # (n,)
        abstained: NDArray[np.bool_],  # of the window before them and of them
        window: int,
        level: float,
    ) -> "ScoreTest":
        """The test after more scores, made of copies; the alarm is at the log evidence `level`."""
        p_values, martingale, alarm = self.p_values.copy(), copy.copy(self.martingale), self.alarm
        for start in range(0, len(scores), BLOCK):
            p, q = p_values.add(scores[start : start + BLOCK])
            crossing = martingale.add(p, q, level)
            alarm = alarm or crossing
        recent, first = np.concatenate([self.recent, scores]), self.start
        if self.martingale.count < window <= martingale.count:
            first = self._compared(recent[:window], abstained[:window])
        return replace(
            self,
            p_values=p_values,
            martingale=martingale,
            recent=recent[-window:].copy(),  # a view would keep the whole batch in memory
            alarm=alarm,
            start=first,
        )

    def window(self, abstained: NDArray[np.bool_]) -> WindowStatistics:
        """The window compared with the held-out scores."""
        return self._compared(self.recent, abstained)

    def _compared(
        self, scores: NDArray[np.float64], abstained: NDArray[np.bool_]
    ) -> WindowStatistics:
        return window_statistics(self.reference, scores, int(abstained.sum()), self.score)
