r"""The potential of the field and its Hermite modes, in closed form.

All are functions of the moments of `qipf.field.engines`; no derivative is numerical. The wave
function is :math:`\psi = \sqrt{c\rho}`, where :math:`c` is the kernel's constant
(`log_kernel_constant`). In bandwidth units its curvature :math:`K` and slope :math:`S`, which do
not depend on :math:`c`, determine the potential and, by the chain rule, every mode.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.field.engines.base import CEILING, Moments

#: Half the width of a pole of an exact mode, in units of h_p: within it the mode is smoothed.
POLE = 1e-8

#: Constants of the kernel: in units of the bandwidth, of the logits, or 1 at its peak.
NORMALIZATIONS = ("standard", "density", "peak")

#: Highest order of a mode: a mode of order p takes p steps for every prediction.
HIGHEST_ORDER = 64

#: Largest softening whose square and modes stay in floating-point range.
LARGEST_SOFTENING = 1e100


def curvature(moments: Moments, bandwidth: float) -> Tensor:  # (Q,)
    r"""Relative curvature of the wave function.

    .. math:: K = \frac{\sigma^2}{2}\frac{\nabla^2\psi}{\psi}
              = \frac{m_2}{4\sigma^2} - \frac{\|m_1\|^2}{8\sigma^2} - \frac{d}{4}

    Bounded below by :math:`S - d/4`. Up to the ground energy it is the potential, the QIPF.
    """
    # divided twice: the square of a width may leave the floating-point range
    bending = (moments.m2 - moments.m1_squared / 2) / (4 * bandwidth) / bandwidth
    return (bending - moments.dimension / 4).clip(max=CEILING)


def slope(moments: Moments, bandwidth: float) -> Tensor:  # (Q,)
    r"""Relative squared slope of the wave function.

    .. math:: S = \frac{\sigma^2}{2}\frac{\|\nabla\psi\|^2}{\psi^2} = \frac{\|m_1\|^2}{8\sigma^2}
    """
    return (moments.m1_squared / (8 * bandwidth) / bandwidth).clip(max=CEILING)


def log_kernel_constant(normalization: str, bandwidth: float, dimension: int) -> float:
    r"""Logarithm of the kernel's constant :math:`c` in :math:`\psi^2 = c\rho`.

    =============  =========================  ====================================================
    ``standard``   :math:`(2\pi)^{-d/2}`      ψ² is a density with the bandwidth as unit of length
    ``density``    :math:`(2\pi\sigma^2)^{-d/2}`  ψ² is a density in the units of the logits
    ``peak``       1                          ψ² is 1 at the peak of a single kernel
    =============  =========================  ====================================================

    Only the modes of order 2 and higher depend on it. Under ``density`` they depend on the unit
    of the logits: dividing all logits by a temperature changes ψ, and thus the order of the
    uncertainties.

    >>> round(log_kernel_constant("density", 2.0, 10), 4)
    -16.1209
    """
    if normalization == "peak":
        return 0.0
    units = math.log(bandwidth) if normalization == "density" else 0.0
    return -dimension * (math.log(2 * math.pi) / 2 + units)


def bare_modes(
    moments: Moments,
    bandwidth: float,
    orders: Sequence[int],
    softening: float = 0.0,
    normalization: str = "peak",
    *,
    in_numpy: bool = False,
) -> Tensor:  # (Q, len(orders))
    r"""Modes without their ground energies, :math:`V_p - E_p`.

    With :math:`\psi_p = h_p(\psi)`, :math:`h_p = H_p/\sqrt{2^p p!}`,

    .. math::
        L_p &= \tfrac{\sigma^2}{2}\nabla^2\psi_p = h_p'(\psi)\psi K + h_p''(\psi)\psi^2 S \\
        G_p &= \tfrac{\sigma^2}{2}\|\nabla\psi_p\|^2 = h_p'(\psi)^2\psi^2 S \\
        V_p - E_p &= \frac{\psi_p L_p}{\psi_p^2+\epsilon^2}
                     + \frac{\epsilon^2 G_p}{(\psi_p^2+\epsilon^2)^2}

    and :math:`L_p/\psi_p` for :math:`\epsilon = 0`, with a pole wherever :math:`h_p(\psi) = 0`.
    Where :math:`\psi \le 1`, numerator and denominator of odd orders share a factor :math:`\psi`,
    which is cancelled before evaluation; where :math:`\psi > 1`, all are divided by
    :math:`\psi^p`. So the modes stay exact where :math:`\psi` leaves the floating-point range.
    Within 1e-8 of a pole the mode passes through zero instead of diverging, and values are
    clamped to ±1e300: finite moments give finite modes.

    `in_numpy` is for a few rows on the CPU without gradients: the same arithmetic in numpy, whose
    calls take a fraction of the time of torch's.
    """
    softening = float(softening)  # torch has no fractions
    if not len(orders):
        return moments.log_density.new_zeros(moments.log_density.shape[0], 0)
    constant = log_kernel_constant(normalization, bandwidth, moments.dimension)
    log_density = moments.log_density + constant if constant else moments.log_density
    up_to_one = log_density.clamp(max=0.0) if constant > 0 else log_density
    given: tuple[Any, ...] = (torch.exp(up_to_one),)
    if constant > 0:  # ψ can exceed 1
        given = (*given, torch.exp(-log_density.clamp(min=0.0)), log_density > 0)
    if in_numpy:
        log_density, m1_squared, m2 = (cast(Any, value.numpy()) for value in moments[:3])
        moments = Moments(log_density, m1_squared, m2, moments.dimension)
        given = tuple(value.numpy() for value in given)
    with np.errstate(all="ignore"):
        K, S = curvature(moments, bandwidth), slope(moments, bandwidth)
        columns = _columns_up_to_one(given[0], K, S, orders, softening)
        if constant > 0:
            above = _columns_from_one(given[1], K, S, orders, softening)
            where: Any = np.where if in_numpy else torch.where
            columns = [where(given[2], *pair) for pair in zip(above, columns, strict=True)]
        modes = torch.from_numpy(np.stack(columns, 1)) if in_numpy else torch.stack(columns, 1)
    return torch.nan_to_num(modes, 0.0, CEILING, -CEILING).clamp_(-CEILING, CEILING)


def _columns_up_to_one(
    density: Any, K: Any, S: Any, orders: Sequence[int], softening: float
) -> list[Any]:
    r"""Bare modes where ψ² = `density` ≤ 1, from ``h_p`` for even p and ``h_p/ψ`` for odd p.

    Both are polynomials in ψ², from
    :math:`h_{p+1} = \sqrt{2/(p+1)}\,t\,h_p - \sqrt{p/(p+1)}\,h_{p-1}`. The first two are
    plain numbers, so products with them cost little.
    """
    h: list[Any] = [1.0, math.sqrt(2)]
    for p in range(1, max(orders)):
        step = math.sqrt(2 / (p + 1)) * h[p]
        h.append((step * density if p % 2 else step) - math.sqrt(p / (p + 1)) * h[p - 1])
    K_even, S = density * K, density * S

    def column(p: int) -> Any:
        odd = p % 2 == 1
        top = math.sqrt(2 * p) * h[p - 1] * (K if odd else K_even)
        if p >= 2:
            top = top + 2 * math.sqrt(p * (p - 1)) * h[p - 2] * S
        if softening == 0.0:
            return top * (h[p] / (h[p] * h[p] + POLE**2))
        cancelled = density if odd else 1.0  # ψ² between ψ_p² and h[p]²
        softened = h[p] * h[p] * cancelled + softening**2
        energy = 2 * p * h[p - 1] * h[p - 1] * S
        if not odd:
            energy = energy * density
        return top * h[p] * cancelled / softened + softening**2 * energy / (softened * softened)

    return [column(p) for p in orders]


def _columns_from_one(
    inverse: Any, K: Any, S: Any, orders: Sequence[int], softening: float
) -> list[Any]:
    """Bare modes where ψ⁻² = `inverse` ≤ 1, from ``g_p = h_p/ψ^p``, polynomials in ψ⁻²."""
    g: list[Any] = [1.0, math.sqrt(2)]
    for p in range(1, max(orders)):
        g.append(math.sqrt(2 / (p + 1)) * g[p] - math.sqrt(p / (p + 1)) * g[p - 1] * inverse)

    def column(p: int) -> Any:
        top = math.sqrt(2 * p) * g[p - 1] * K
        if p >= 2:
            top = top + 2 * math.sqrt(p * (p - 1)) * g[p - 2] * S
        square = softening**2 * inverse**p
        softened = g[p] * g[p] + (square if softening else POLE**2)
        return top * g[p] / softened + square * (2 * p) * g[p - 1] ** 2 * S / softened**2

    return [column(p) for p in orders]


def ground_energies(bare: Tensor) -> Tensor:  # (Q, P) -> (P,)
    r"""Energies :math:`E_p` that shift the minimum of each mode over the given rows to zero.

    >>> ground_energies(torch.tensor([[0.5, -2.0], [1.0, 3.0]]))
    tensor([-0.5000,  2.0000])
    """
    return -bare.amin(dim=0)


def checked_orders(orders: object) -> tuple[int, ...]:
    """Mode orders as a tuple of integers from 1 to `HIGHEST_ORDER`.

    >>> checked_orders([1, 2])
    (1, 2)
    """
    listed = isinstance(orders, Sequence | np.ndarray) and not isinstance(orders, str)
    given: tuple[Any, ...] = tuple(orders) if listed else ()  # type: ignore[arg-type]
    in_range = (isinstance(p, Integral) and 1 <= int(p) <= HIGHEST_ORDER for p in given)
    if not given or not all(in_range):
        raise QIPFInputError(
            f"orders must be integers from 1 to {HIGHEST_ORDER}, such as (1, 2, 3, 4), got "
            f"{repr(orders).splitlines()[0]:.80}."
        )
    if len(set(given)) < len(given):
        raise QIPFInputError(
            f"orders must differ from each other, got {orders!r}: a mode counts once in the mean."
        )
    return tuple(int(p) for p in given)


def checked_softening(softening: object) -> float:
    """Softening ε ≥ 0 as a float; zero gives the exact modes with their poles."""
    try:
        value = float(softening) if isinstance(softening, Real) else math.nan
    except OverflowError:  # integers and fractions beyond floats
        value = math.inf
    if not 0.0 <= value <= LARGEST_SOFTENING:
        raise QIPFInputError(
            f"softening must be a number from 0 to {LARGEST_SOFTENING:g}, got {softening!r:.80}. "
            "0 gives the exact modes."
        )
    return value
