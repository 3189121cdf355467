r"""Weighted round clouds in the place of many rows, and the field they make.

A cell of rows becomes one centre with their number as its weight. The mean alone would make the
field too narrow, so the rows' spread about their centres, :math:`\tau`, is remembered too, and the
field is that of round clouds of that spread:

.. math:: \rho(x) = \sum_i w_i\,\mathbb{E}_{z\sim N(c_i,\tau^2)}\,e^{-\|x-z\|^2/2\sigma^2}
          = \sum_i w_i \left(\frac{\sigma}{\sigma'}\right)^{\!d} e^{-\|x-c_i\|^2/2\sigma'^2},
          \qquad \sigma'^2 = \sigma^2+\tau^2 .
"""

from __future__ import annotations

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
    """Weighted centres, and how far the rows they stand for lie from them."""

    centers: Any  # (m, d) numpy array or tensor, as the points came
    weights: Any  # (m,) float64: how many rows each centre stands for
    spread: float = 0.0  # τ, root mean square distance of rows to their centres, per dimension

    @property
    def count(self) -> float:
        """How many rows the centres stand for together."""
        return float(self.weights.sum())

    @property
    def log_weights(self) -> Any:  # (m,)
        """Logarithms of the weights as shares of one."""
        log = torch.log if isinstance(self.weights, Tensor) else np.log
        return log(self.weights / self.weights.sum())

    def on(self, device: torch.device) -> Coreset:
        """The same tensors on that device."""
        return Coreset(self.centers.to(device), self.weights.to(device), self.spread)


def field_of(
    engine: str,
    centers: Tensor,  # (N, d)
    bandwidth: float,
    log_weights: Tensor | None = None,  # (N,)
    spread: float = 0.0,
) -> Engine:
    """The engine of that name over round clouds of this spread about the centres.

    >>> cloud = field_of("auto", torch.zeros(1, 2), 1.0, spread=1.0)
    >>> round(float(cloud(torch.zeros(1, 2)).log_density.exp()), 6)  # (σ/σ')^d = 1/2
    0.5
    """
    if spread == 0.0:
        return engines.create(engine, centers, bandwidth, log_weights)
    return _Clouds(engine, centers, bandwidth, log_weights, spread)


class _Clouds:
    """A field of wider kernels, read as that of narrow ones over clouds."""

    def __init__(
        self,
        engine: str,
        centers: Tensor,
        bandwidth: float,
        log_weights: Tensor | None,
        spread: float,
    ) -> None:
        wide = math.hypot(bandwidth, spread)
        self._wide = engines.create(engine, centers, wide, log_weights)
        self._bandwidth, self._spread = bandwidth, spread

    def __call__(self, queries: Tensor) -> Moments:
        return as_clouds(self._wide(queries), self._bandwidth, self._spread)


def as_clouds(
    wide: Moments,  # of the kernel whose width is the hypotenuse of bandwidth and spread
    bandwidth: float,
    spread: float,
) -> Moments:
    r"""Moments of clouds under the narrow kernel, from those of their centres under the wide one.

    With :math:`a = \sigma^2/\sigma'^2` each cloud, weighted by the kernel at x, is a Gaussian
    about :math:`x + a(c - x)` of variance :math:`a\tau^2`. Hence
    :math:`m_1 = a\,m_1'` and :math:`m_2 = a^2 m_2' + d\,a\,\tau^2`.
    """
    ratio, d = (bandwidth / math.hypot(bandwidth, spread)) ** 2, wide.dimension
    lowered = wide.log_density + d / 2 * math.log(ratio)
    m1_squared = wide.m1_squared * ratio**2
    m2 = wide.m2 * ratio**2 + d * (spread * spread * ratio)
    return Moments(lowered.clamp(min=-CEILING), m1_squared, m2, d)
