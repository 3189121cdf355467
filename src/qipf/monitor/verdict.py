"""The result of a monitor."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from qipf.calibration.accuracy import AccuracyEstimate
from qipf.display import Shown, counted
from qipf.monitor.two_sample import WindowStatistics


@dataclass(frozen=True, repr=False)
class Verdict:
    """Result of a monitor after a number of predictions; `str` formats it as text."""

    seen: int  # predictions so far
    abstained: int  # predictions not accepted: uncertainty NaN or inf, or rejected by the rule
    log_evidence: float  # log of the test martingale of `score` over the number of tests
    p_value: float  # 1/(maximum of any test so far): valid at any time, for any number of looks
    alarm: bool  # whether it ever reached 1/alpha; an alarm is never withdrawn
    alarm_at: int | None  # the prediction, counted from 1, that raised the alarm
    change_point: int | None  # estimate of the first prediction after the change
    window: WindowStatistics  # the last predictions compared with the held-out ones
    start: WindowStatistics | None  # the first window, likewise; None until it is complete
    accuracy: AccuracyEstimate | None  # of the window; None without labelled held-out predictions
    score: str  # novelty or uncertainty: what raised the alarm first or has most evidence

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"Verdict({self._finding()})"

    def __str__(self) -> str:
        return self._shown().text()

    def _repr_html_(self) -> str:
        return self._shown().html()

    def _finding(self) -> str:
        found = "no shift found"
        if self.alarm:
            found = f"shift, alarm at {self.alarm_at:,}, change point about {self.change_point:,}"
        return f"{found}, {counted(self.seen, 'prediction')}, p-value {self.p_value:.3g}"

    def _shown(self) -> Shown:
        power = self.log_evidence / math.log(10)
        facts = {
            "evidence": f"10 to the power of {power:.3g}, by the {self.score}",
            "abstained": f"{self.abstained:,} of {self.seen:,}",
            f"last {self.window.count:,}": str(self.window),
        }
        if self.start is not None:
            facts[f"first {self.start.count:,}"] = str(self.start)
        if self.accuracy is not None:
            unsafe = "; may be far off after this shift" if self.alarm else ""
            facts["accuracy"] = f"estimated {self.accuracy}{unsafe}"
        return Shown(self._finding(), facts)
