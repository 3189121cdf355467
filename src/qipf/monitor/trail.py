"""The evidence so far, at evenly spaced predictions."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Self

#: Most values that are kept; beyond it every second one is dropped.
MOST = 512


@dataclass(frozen=True)
class Trail:
    """Log evidence after every `step`-th prediction since `start`.

    Memory is bounded: the step doubles whenever there are more than 512 values. The values do not
    depend on how the predictions were divided into calls.

    >>> trail = Trail().added(np.arange(1.0, 1001), 0)
    >>> trail.step, trail.seen[:3].tolist(), trail.values[:3].tolist()
    (2, [2, 4, 6], [2.0, 4.0, 6.0])
    """

    start: int = 0  # predictions before the first value; above 0 in states that had no trail
    step: int = 1
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # (k,)

    @property
    def seen(self) -> NDArray[np.int64]:  # (k,)
        """Number of predictions at each value."""
        return self.start + self.step * np.arange(1, len(self.values) + 1)

    def added(self, evidence: NDArray[np.float64], count: int) -> "Self":  # (n,)
        """The trail after more predictions; `count` were seen before them."""
        first = -(count + 1 - self.start) % self.step
        values, step = np.concatenate([self.values, evidence[first :: self.step]]), self.step
        while len(values) > MOST:
            values, step = values[1::2].copy(), 2 * step
        return replace(self, values=values, step=step)
