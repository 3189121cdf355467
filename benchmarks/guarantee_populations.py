"""Populations of predictions that are chosen to break a guarantee."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qipf.calibration.fixed_sequence import FORGIVEN, fewest

Array = NDArray[np.float64]

#: Predictions of a population; held-out sets are drawn from them with replacement.
SIZE = 200_000

#: Places of the predictions in the order of their uncertainty, from 0 to 1.
PLACES = (np.arange(SIZE) + 0.5) / SIZE

#: Just above: error rates that break a bound exceed it by this share.
ABOVE = 1e-6


@dataclass(frozen=True)
class Population:
    """Uncertainties in rising order, and the probability that each prediction is wrong."""

    scores: Array  # (SIZE,)
    rates: Array  # (SIZE,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_errors", self.rates.cumsum())

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.bool_]]:
        """Uncertainties and errors of independent predictions."""
        chosen = rng.integers(SIZE, size=count)
        return self.scores[chosen], rng.random(count) < self.rates[chosen]

    def coverage(self, threshold: float) -> float:
        """Share of the population up to the threshold."""
        return float(np.searchsorted(self.scores, threshold, side="right")) / SIZE

    def risk(self, threshold: float) -> float:
        """Error rate up to the threshold, exact; 0 where there is nothing."""
        count = int(np.searchsorted(self.scores, threshold, side="right"))
        return float(self._errors[count - 1]) / count if count else 0.0  # type: ignore[attr-defined]


def populations(risk: float, count: int, level: float) -> dict[str, Population]:
    """Populations whose error rate keeps close to `risk`.

    Those of the starts depend on the size of the held-out set and the level of the test.
    """
    above = np.full(SIZE, risk * (1 + ABOVE))
    rising = risk * (0.2 + 2.4 * PLACES)
    confident = np.where(PLACES < 0.5, 0.5 * risk > PLACES, above)
    starts = [fewest(errors, risk, level / len(FORGIVEN)) / count for errors in FORGIVEN]
    starts = [start for start in starts if start < 1] or [0.5]
    ends = np.array([0.0, *starts])
    shares = (1 + ABOVE) * risk * np.diff(ends)  # so many errors up to each start are too many
    before, after, wrong = np.zeros(SIZE), np.zeros(SIZE), 0.0
    for end, share in zip(ends[1:], shares, strict=True):
        before[(end - share - 1 / SIZE <= PLACES) & (end > PLACES)] = 1
        more = (risk * (1 + ABOVE) * end - wrong) / (1 - risk * (1 + ABOVE))
        after[(end < PLACES) & (end + more + 1 / SIZE >= PLACES)] = 1
        wrong += more
    levels = 10.0 ** np.linspace(-320, 307, SIZE)
    return {
        "flat": Population(PLACES, above),
        "rising": Population(PLACES, rising),
        "falling": Population(PLACES, risk * np.maximum(0, 2.5 - 4 * PLACES)),
        "waves": Population(PLACES, risk * (1 + np.cos(20 * np.pi * PLACES))),
        "finest waves": Population(PLACES, 2 * above * (np.arange(SIZE) % 2 == 0)),
        "cliff": Population(PLACES, (PLACES > 0.5).astype(float)),
        "certain and wrong": Population(PLACES, confident),
        "errors before the starts": Population(PLACES, before),
        "errors after the starts": Population(PLACES, after),
        "five values": Population(np.ceil(5 * PLACES), above),
        "two values": Population(np.ceil(2 * PLACES), np.where(PLACES < 0.5, above, 0.0)),
        "one value": Population(np.ones(SIZE), above),
        "within rounding": Population(1 + PLACES * 2.0**-12, rising),
        "all magnitudes": Population(np.sort(np.concatenate([-levels[::2], levels[::2]])), above),
    }


def shapes(rng: np.random.Generator, count: int) -> dict[str, Callable[[], Array]]:
    """Exchangeable sequences of scores; those of the last two are not independent."""
    normal = rng.normal
    return {
        "normal": lambda: normal(size=count),
        "heavy tails": lambda: rng.standard_cauchy(count) ** 7,
        "five values": lambda: rng.integers(5, size=count).astype(float),
        "two values": lambda: (rng.random(count) < 0.5).astype(float),
        "one value": lambda: np.ones(count),
        "rare high value": lambda: (rng.random(count) < 0.02).astype(float),
        "rare low value": lambda: (rng.random(count) > 0.02).astype(float),
        "half of them equal": lambda: np.maximum(normal(size=count), 0),
        "within rounding": lambda: 1 + rng.random(count) * 2.0**-12,
        "all magnitudes": lambda: (
            10.0 ** rng.uniform(-320, 307, count) * rng.choice([-1, 1], count)
        ),
        "counts": lambda: rng.geometric(0.3, count).astype(float),
        "same unknown mean": lambda: 10 * normal() + normal(size=count),
        "without replacement": lambda: rng.permutation(count // 2 + np.arange(count) // 3.0),
    }
