"""A test martingale against "nothing has changed", valid after every prediction."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qipf.monitor.trail import Trail

#: Beta densities of the alternatives. Mass at p = 0 (high uncertainty), from steep to flat:
_HIGH = ((0.1, 1.0), (0.4, 1.0), (0.75, 1.0), (1.0, 1.4), (1.0, 3.0))
#: mass at p = 1 (low uncertainty), at both ends, in the middle.
_LOW = tuple((b, a) for a, b in _HIGH)
_SPREAD = ((0.6, 0.6), (2.0, 2.0))

ALTERNATIVES = np.array(_HIGH + _LOW + _SPREAD)  # (m, 2) parameters a, b

_POWERS = ALTERNATIVES - 1.0
_LOG_NORMS = np.array(
    [math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b) for a, b in ALTERNATIVES.tolist()]
)
_LOG_SHARE = -math.log(len(ALTERNATIVES))


@dataclass(frozen=True)
class Crossing:
    """The prediction, counted from 1, at which the level was reached, and the change point."""

    at: int
    change_point: int


class Martingale:
    r"""Test martingale of the hypothesis that p-values are independent and uniform.

    One unit of capital is divided among :math:`m` alternatives and all starting times. Alternative
    :math:`i`, a Beta density :math:`f_i`, started before prediction :math:`\tau + 1` with the share
    :math:`w_\tau/m`, multiplies its capital by :math:`f_i(p_t)` at every prediction; shares that
    have not started yet do not change:

    .. math:: M_t = g(t) + \frac{1}{m} \sum_{i=1}^m \sum_{\tau < t} w_\tau
              \prod_{s=\tau+1}^{t} f_i(p_s), \qquad
              w_\tau = g(\tau) - g(\tau + 1), \quad g(t) = \frac{1}{1 + \log(1 + t)}

    Densities integrate to one, so :math:`M` is a martingale with :math:`M_0 = 1` under the
    hypothesis, and by Ville's inequality :math:`P(\sup_t M_t \ge 1/\alpha) \le \alpha`: over the
    whole, unbounded stream, however often it is inspected. No capital is ever added, so restarts
    need no correction.

    With :math:`S_t = \sum_{s \le t} \log f_i(p_s)` the inner sum is
    :math:`e^{S_t} \sum_\tau w_\tau e^{-S_\tau}`, so one running number per alternative represents
    all starting times. Because :math:`w_\tau` decreases slowly, a change at time :math:`\tau` costs
    only about :math:`\log\tau` of log evidence.

    Attributes
    ----------
    count : number of p-values so far.
    log_evidence, peak : :math:`\log M_t`, and its maximum so far.
    trail : :math:`\log M_t` at evenly spaced predictions.
    """

    def __init__(self) -> None:
        m = len(ALTERNATIVES)
        self.count = 0
        self.gains = np.zeros(m)  # S_t
        self.stakes = np.full(m, -np.inf)  # log Σ_τ w_τ exp(-S_τ)
        self.best = np.full(m, -np.inf)  # the largest log w_τ - S_τ, and its τ
        self.best_start = np.zeros(m, np.int64)
        self.log_evidence = 0.0
        self.peak = 0.0
        self.trail = Trail()

    def add(
        self,
        p: NDArray[np.float64],  # (n,)
        q: NDArray[np.float64],  # (n,)
        level: float,
    ) -> Crossing | None:
        """Add p-values (q = 1 - p); return where the log evidence first reaches `level`, if here.

        The results are the same, bit for bit, however the p-values are divided into calls.
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
        evidence = np.logaddexp(np.log(_unstarted(times + 1)), invested)  # (n,)
        crossing = self._crossing(level, evidence, gains, starts)
        self.best, self.best_start = self._best(starts)
        self.gains, self.stakes = gains[-1].copy(), stakes[-1].copy()
        self.trail = self.trail.added(evidence, self.count)
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
        largest = int(np.argmax(best + gains[at + 1]))
        return Crossing(at=self.count + at + 1, change_point=int(best_start[largest]) + 1)

    def _best(self, starts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The best start of each alternative so far, these included."""
        at = starts.argmax(axis=0)
        values = starts[at, np.arange(starts.shape[1])]
        better = values > self.best
        best_start = np.where(better, self.count + at, self.best_start)
        return np.where(better, values, self.best), best_start


def _log_sum(terms: NDArray[np.float64]) -> NDArray[np.float64]:  # (n, m) -> (n,)
    """log Σ_i exp(term_i), added in order: numpy's own sums depend on the array's shape."""
    top = terms.max(axis=1)
    shares = np.exp(terms - top[:, None])
    total = shares[:, 0]
    for i in range(1, shares.shape[1]):
        total = total + shares[:, i]
    return top + np.log(total)


def _unstarted(times: NDArray[np.int64]) -> NDArray[np.float64]:
    """g(t): capital that has not started before prediction t + 1."""
    return 1.0 / (1.0 + np.log1p(times))


def _log_start_weight(times: NDArray[np.int64]) -> NDArray[np.float64]:
    """log (g(t) - g(t+1)), without the cancellation of the difference."""
    return np.log(np.log1p(1.0 / (1.0 + times)) * _unstarted(times) * _unstarted(times + 1))
