r"""Weighted centres that stand for many rows, and their field.

A cluster of rows becomes one centre with their number as its weight. The means alone would make
the field too narrow, so the standard deviation of the rows about their centres, :math:`\tau`, is
kept too, and each centre stands for a round Gaussian of that deviation:

.. math:: \rho(x) = \sum_i w_i\,\mathbb{E}_{z\sim N(c_i,\tau^2)}\,e^{-\|x-z\|^2/2\sigma^2}
          = \sum_i w_i \left(\frac{\sigma}{\sigma'}\right)^{\!d} e^{-\|x-c_i\|^2/2\sigma'^2},
          \qquad \sigma'^2 = \sigma^2+\tau^2 .
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qipf.field import engines
from qipf.field.engines import Engine, Moments
from qipf.field.engines.base import CEILING


@dataclass(frozen=True)
class Coreset:
    """Weighted centres, and the spread of the rows they stand for."""

    centers: Any  # (m, d) numpy array or tensor, as the points came
    weights: Any  # (m,) float64: number of rows that each centre stands for
    spread: float = 0.0  # τ, root mean square distance of rows to their centres, per dimension

    @classmethod
    def of_rows(cls, rows: Tensor) -> "Coreset":  # (n, d)
        """The rows themselves as centres, each with weight one."""
        return cls(rows, torch.ones(rows.shape[0], dtype=torch.float64, device=rows.device))

    @property
    def count(self) -> float:
        """Number of rows that the centres stand for together."""
        return float(self.weights.sum())

    @property
    def log_weights(self) -> Any:  # (m,)
        """Logarithms of the weights, normalised to sum to one."""
        log = torch.log if isinstance(self.weights, Tensor) else np.log
        return log(self.weights / self.weights.sum())

    def to(self, device: torch.device) -> "Coreset":
        """The same coreset with its tensors on `device`."""
        return Coreset(self.centers.to(device), self.weights.to(device), self.spread)


def field_of(
    engine: str,
    centers: Tensor,  # (N, d)
    bandwidth: float,
    log_weights: Tensor | None = None,  # (N,)
    spread: float = 0.0,
) -> Engine:
    """Field of weighted centres with a common spread, computed by the engine of that name.

    >>> field = field_of("auto", torch.zeros(1, 2), 1.0, spread=1.0)
    >>> round(float(field(torch.zeros(1, 2)).log_density.exp()), 6)  # (σ/σ')^d = 1/2
    0.5
    """
    if spread == 0.0:
        return engines.create(engine, centers, bandwidth, log_weights)
    wide = engines.create(engine, centers, math.hypot(bandwidth, spread), log_weights)
    return lambda queries: with_spread(wide(queries), bandwidth, spread)


def with_spread(
    wide: Moments,  # of the kernel of width σ'
    bandwidth: float,
    spread: float,
) -> Moments:
    r"""Moments of centres with a spread, from those of the centres alone under the wider kernel.

    With :math:`a = \sigma^2/\sigma'^2` the Gaussian of each centre, weighted by the kernel at x,
    is a Gaussian about :math:`x + a(c - x)` of variance :math:`a\tau^2`. Hence
    :math:`m_1 = a\,m_1'` and :math:`m_2 = a^2 m_2' + d\,a\,\tau^2`.
    """
    ratio, d = (bandwidth / math.hypot(bandwidth, spread)) ** 2, wide.dimension
    lowered = wide.log_density + d / 2 * math.log(ratio)
    m1_squared = wide.m1_squared * ratio**2
    m2 = wide.m2 * ratio**2 + d * (spread * spread * ratio)
    return Moments(lowered.clamp(min=-CEILING), m1_squared, m2, d)
