"""Betting against "nothing has changed": evidence that may be looked at after every prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Beta densities that are bet on. Towards p = 0 (unusually high uncertainty), from steep to flat:
_UP = ((0.1, 1.0), (0.4, 1.0), (0.75, 1.0), (1.0, 1.4), (1.0, 3.0))
#: towards p = 1 (unusually low), and towards both ends or the middle.
_DOWN = tuple((b, a) for a, b in _UP)
_BOTH = ((0.6, 0.6), (2.0, 2.0))

BETS = np.array(_UP + _DOWN + _BOTH)  # (m, 2)

_POWERS = BETS - 1.0
_LOG_NORMS = np.array(
    [math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b) for a, b in BETS.tolist()]
)
_LOG_SHARE = -math.log(len(BETS))


@dataclass(frozen=True)
class Crossing:
    """The evidence reached the level: with which prediction, and since which it has grown."""

    at: int
    since: int


class Betting:
    r"""A game against the hypothesis that p-values are independent and uniform.

    One unit of money is spread over bets and starting times. The bet :math:`f_i`, a Beta density,
    started before prediction :math:`\tau + 1` with its share :math:`w_\tau/m`, multiplies its stake
    by :math:`f_i(p_t)` at every prediction; what has not started yet is kept as cash:

    .. math:: M_t = g(t) + \frac{1}{m} \sum_{i=1}^m \sum_{\tau < t} w_\tau
              \prod_{s=\tau+1}^{t} f_i(p_s), \qquad
              w_\tau = g(\tau) - g(\tau + 1), \quad g(t) = \frac{1}{1 + \log(1 + t)}

    Densities integrate to one, so :math:`M` is a martingale with :math:`M_0 = 1` while the
    hypothesis holds, and by Ville's inequality :math:`P(\sup_t M_t \ge 1/\alpha) \le \alpha`: over
    the whole, endless stream, however often it is looked at. No stake is ever added, so nothing
    has to be corrected for restarts.

    With :math:`S_t = \sum_{s \le t} \log f_i(p_s)` the inner sum is
    :math:`e^{S_t} \sum_\tau w_\tau e^{-S_\tau}`, so one running number per bet stands for all
    starting times. Small steps cost a change at time :math:`\tau` about :math:`\log\tau` of
    evidence.
    """

    def __init__(self) -> None:
        m = len(BETS)
        self.count = 0
        self.gains = np.zeros(m)  # S_t
        self.stakes = np.full(m, -np.inf)  # log Σ_τ w_τ exp(-S_τ)
        self.best = np.full(m, -np.inf)  # the largest log w_τ - S_τ, and its τ
        self.best_start = np.zeros(m, np.int64)
        self.log_evidence = 0.0
        self.peak = 0.0

    def add(
        self,
        p: NDArray[np.float64],  # (n,)
        q: NDArray[np.float64],  # (n,)
        level: float,
    ) -> Crossing | None:
        """Play the next p-values (q = 1 - p); tells where log evidence first reaches `level`.

        The same numbers come out, to the last bit, however the p-values are cut into calls.
        """
        n = len(p)
        if n == 0:
            return None
        times = self.count + np.arange(n)
        steps = _POWERS[:, 0] * np.log(p)[:, None] + _POWERS[:, 1] * np.log(q)[:, None] - _LOG_NORMS
        gains = np.cumsum(np.vstack([self.gains, steps]), axis=0)  # (n + 1, m)
        starts = _log_start_weight(times)[:, None] - gains[:-1]
        stakes = np.logaddexp.accumulate(np.vstack([self.stakes, starts]), axis=0)[1:]
        invested = _log_sum(gains[1:] + stakes) + _LOG_SHARE
        evidence = np.logaddexp(np.log(_cash(times + 1)), invested)  # (n,)
        crossing = self._crossing(level, evidence, gains, starts)
        self.best, self.best_start = self._best(starts)
        self.gains, self.stakes = gains[-1].copy(), stakes[-1].copy()
        self.count += n
        self.log_evidence = float(evidence[-1])
        self.peak = max(self.peak, float(evidence.max()))
        return crossing

    def _crossing(
        self,
        level: float,
        evidence: NDArray[np.float64],
        gains: NDArray[np.float64],
        starts: NDArray[np.float64],
    ) -> Crossing | None:
        reached = np.flatnonzero(evidence >= level)
        if self.peak >= level or len(reached) == 0:
            return None
        at = int(reached[0])
        best, best_start = self._best(starts[: at + 1])
        richest = int(np.argmax(best + gains[at + 1]))
        return Crossing(at=self.count + at + 1, since=int(best_start[richest]) + 1)

    def _best(self, starts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The start that pays most, by bet, once these are known too."""
        at = starts.argmax(axis=0)
        values = starts[at, np.arange(starts.shape[1])]
        better = values > self.best
        return np.where(better, values, self.best), np.where(
            better, self.count + at, self.best_start
        )


def _log_sum(terms: NDArray[np.float64]) -> NDArray[np.float64]:  # (n, m) -> (n,)
    """log Σ_i exp(term_i), added one by one: numpy's own sums depend on the array's shape."""
    top = terms.max(axis=1)
    shares = np.exp(terms - top[:, None])
    total = shares[:, 0]
    for i in range(1, shares.shape[1]):
        total = total + shares[:, i]
    return top + np.log(total)


def _cash(times: NDArray[np.int64]) -> NDArray[np.float64]:
    """g(t): what has not been staked before prediction t + 1."""
    return 1.0 / (1.0 + np.log1p(times))


def _log_start_weight(times: NDArray[np.int64]) -> NDArray[np.float64]:
    """log (g(t) - g(t+1)), without the cancellation of the difference."""
    return np.log(np.log1p(1.0 / (1.0 + times)) * _cash(times) * _cash(times + 1))
