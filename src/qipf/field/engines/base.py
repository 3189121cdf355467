r"""What every engine promises.

For centres :math:`c_1..c_N` with weights :math:`w_i` (all :math:`1/N` unless told otherwise, always
normalised to sum to one) and a query :math:`x`,

.. math::
    \rho(x) = \sum_i w_i\, e^{-\|x-c_i\|^2/2\sigma^2}, \quad
    \tilde w_i = \frac{w_i\, e^{-\|x-c_i\|^2/2\sigma^2}}{\rho(x)}, \quad
    m_1 = \sum_i \tilde w_i (c_i - x), \quad
    m_2 = \sum_i \tilde w_i \|c_i - x\|^2 .

Everything else in the library follows from :math:`\log\rho`, :math:`\|m_1\|^2` and :math:`m_2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from qipf.errors import QIPFInputError

#: Largest finite number an engine or a mode returns; sums of many of them stay finite.
CEILING = 1e300


class Moments(NamedTuple):
    """The field at each query, and the first two moments of the centres that matter there."""

    log_density: Tensor  # (Q,) float64, log ρ ≤ 0
    m1_squared: Tensor  # (Q,) float64, |m1|²
    m2: Tensor  # (Q,) float64, ≥ |m1|²
    dimension: int


class Engine(Protocol):
    """A field made ready on one device: called with queries, it returns their moments."""

    def __init__(
        self, centers: Tensor, bandwidth: float, log_weights: Tensor | None = None
    ) -> None: ...

    def __call__(self, queries: Tensor) -> Moments:
        """Moments at each query (Q, d)."""
        ...


def checked_field(
    centers: Tensor,  # (N, d)
    bandwidth: float,
    log_weights: Tensor | None,  # (N,)
) -> tuple[Tensor, Tensor]:
    """Centres that carry weight, and their normalised log-weights in float64."""
    if centers.ndim != 2 or centers.shape[0] == 0 or centers.shape[1] == 0:
        raise QIPFInputError(
            f"centers must have shape (N, d) with N, d ≥ 1, got {tuple(centers.shape)}."
        )
    if not 0 < bandwidth < float("inf"):
        raise QIPFInputError(f"bandwidth must be a positive finite number, got {bandwidth!r}.")
    count = centers.shape[0]
    if log_weights is None:
        uniform = -torch.log(torch.tensor(float(count), dtype=torch.float64))
        return centers, uniform.to(centers.device).expand(count)
    if log_weights.shape != (count,):
        raise QIPFInputError(
            f"log_weights must have shape ({count},), one per centre, got "
            f"{tuple(log_weights.shape)}."
        )
    if log_weights.device != centers.device:
        raise QIPFInputError(
            f"log_weights are on {log_weights.device}, centers on {centers.device}. "
            "Move them to one device."
        )
    log_weights = log_weights.double()
    if torch.isnan(log_weights).any() or (log_weights == float("inf")).any():
        raise QIPFInputError(
            "log_weights contain NaN or +infinity: weights must be finite and ≥ 0."
        )
    carrying = log_weights > -float("inf")
    if not carrying.any():
        raise QIPFInputError("All weights are zero: at least one centre must carry weight.")
    if not carrying.all():
        centers, log_weights = centers[carrying], log_weights[carrying]
    return centers, log_weights - torch.logsumexp(log_weights, dim=0)


def checked_queries(queries: Tensor, centers: Tensor) -> Tensor:
    """Queries of the field's dimension, on the field's device."""
    if queries.ndim != 2 or queries.shape[1] != centers.shape[1]:
        raise QIPFInputError(
            f"queries must have shape (Q, {centers.shape[1]}), got {tuple(queries.shape)}."
        )
    if queries.device != centers.device:
        raise QIPFInputError(
            f"queries are on {queries.device}, centers on {centers.device}. "
            "Move them to one device."
        )
    return queries


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Out of autocast, where a user has turned it on: fields need all their digits."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def blocks(rows: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows.

    >>> list(blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
