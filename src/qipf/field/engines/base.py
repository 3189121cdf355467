r"""The contract of every engine.

For centres :math:`c_1..c_N` with weights :math:`w_i` (:math:`1/N` by default, always
normalised to sum to one) and a query :math:`x`,

.. math::
    \rho(x) = \sum_i w_i\, e^{-\|x-c_i\|^2/2\sigma^2}, \quad
    \tilde w_i = \frac{w_i\, e^{-\|x-c_i\|^2/2\sigma^2}}{\rho(x)}, \quad
    m_1 = \sum_i \tilde w_i (c_i - x), \quad
    m_2 = \sum_i \tilde w_i \|c_i - x\|^2 .

Everything else in the library follows from :math:`\log\rho`, :math:`\|m_1\|^2` and :math:`m_2`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf, nan
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.errors import QIPFInputError

#: Largest finite number an engine or a mode returns; sums of many of them stay finite.
CEILING = 1e300


class Moments(NamedTuple):
    """Log-density and the first two moments of the kernel-weighted offsets at each query."""

    log_density: Tensor  # (Q,) float64, log ρ ≤ 0
    m1_squared: Tensor  # (Q,) float64, |m1|²
    m2: Tensor  # (Q,) float64, ≥ |m1|²
    dimension: int


#: A field prepared on one device: called with queries (Q, d), it returns their moments.
Engine = Callable[[Tensor], Moments]


def checked_bandwidth(bandwidth: object) -> float:
    """Bandwidth as a positive finite float."""
    width = float(bandwidth) if isinstance(bandwidth, Real) else nan
    if isinstance(bandwidth, bool) or not 0 < width < inf:
        raise QIPFInputError(f"bandwidth must be a positive finite number, got {bandwidth!r}.")
    return width


def checked_centers(
    centers: Tensor,  # (N, d)
    log_weights: Tensor | None,  # (N,)
) -> tuple[Tensor, Tensor]:
    """Centres of positive weight, and their normalised log-weights in float64."""
    if centers.ndim != 2 or 0 in centers.shape:
        raise QIPFInputError(
            f"centers must have shape (N, d) with N, d ≥ 1, got {tuple(centers.shape)}."
        )
    count = centers.shape[0]
    if log_weights is None:
        uniform = -torch.log(torch.tensor(float(count), dtype=torch.float64))
        return centers, uniform.to(centers.device).expand(count)
    if log_weights.shape != (count,):
        raise QIPFInputError(
            f"log_weights must have shape ({count},), one per centre, got "
            f"{tuple(log_weights.shape)}."
        )
    _check_device(log_weights, "log_weights", centers)
    log_weights = log_weights.double()
    if torch.isnan(log_weights).any() or (log_weights == inf).any():
        raise QIPFInputError(
            "log_weights contain NaN or +infinity: weights must be finite and ≥ 0."
        )
    positive = log_weights > -inf
    if not positive.any():
        raise QIPFInputError("All weights are zero: at least one centre must carry weight.")
    if not positive.all():
        centers, log_weights = centers[positive], log_weights[positive]
    return centers, log_weights - torch.logsumexp(log_weights, dim=0)


def check_queries(queries: Tensor, centers: Tensor) -> None:
    """Raise if queries differ from the centres in dimension or device."""
    if queries.ndim != 2 or queries.shape[1] != centers.shape[1]:
        raise QIPFInputError(
            f"queries must have shape (Q, {centers.shape[1]}), got {tuple(queries.shape)}."
        )
    _check_device(queries, "queries", centers)


def _check_device(values: Tensor, name: str, centers: Tensor) -> None:
    if values.device != centers.device:
        raise QIPFInputError(
            f"{name} are on {values.device}, centers on {centers.device}. Move them to one device."
        )


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Context without autocast, which would compute the field in half precision."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def by_device(sizes: dict[str, int], rows: Tensor) -> int:
    """The size for the rows' kind of device; an unknown one is treated as a CPU."""
    return sizes.get(rows.device.type, sizes["cpu"])


def blocks(rows: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows.

    >>> list(blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def concatenate(parts: Sequence[Moments], queries: Tensor) -> Moments:
    """Moments of consecutive blocks of `queries` as one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        empty = queries.new_zeros(0, dtype=torch.float64)
        return Moments(empty, empty, empty, queries.shape[1])
    log_density, m1_squared, m2 = map(torch.cat, zip(*(part[:3] for part in parts), strict=True))
    return Moments(log_density, m1_squared, m2, queries.shape[1])
