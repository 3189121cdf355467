"""The definitions, computed in float64: what every other engine is tested against."""

import torch
from torch import Tensor

from qipf.field.engines.base import (
    CEILING,
    Moments,
    blocks,
    check_queries,
    checked_bandwidth,
    checked_centers,
    concatenate,
)

#: Pairs held at a time: three float64 matrices of this many entries are 96 MB.
PAIRS_PER_BLOCK = 2**22

#: Offsets are clamped to this many bandwidths, so that their squares stay finite.
FARTHEST = 1e140


def dense_moments(
    queries: Tensor,  # (Q, d)
    centers: Tensor,  # (N, d)
    bandwidth: float,
    log_weights: Tensor,  # (N,) normalised
) -> Moments:
    """Moments from all pairs at once, differences before squares; differentiable in the queries."""
    origin = centers.double().mean(0)
    k_j = ((centers.double() - origin) / bandwidth).clamp(-FARTHEST, FARTHEST)
    q_i = ((queries.double() - origin) / bandwidth).clamp(-FARTHEST, FARTHEST)
    distance_ij = torch.cdist(q_i, k_j, compute_mode="donot_use_mm_for_euclid_dist")
    squared_ij = distance_ij.square()
    score_ij = log_weights - squared_ij / 2
    log_density = torch.logsumexp(score_ij, dim=1)
    weight_ij = torch.softmax(score_ij, dim=1)
    m1_i = weight_ij @ k_j - q_i
    m2 = (weight_ij * squared_ij).sum(1)
    return in_data_units(log_density, m1_i.square().sum(1), m2, bandwidth, centers.shape[1])


def in_data_units(
    log_density: Tensor, m1_squared: Tensor, m2: Tensor, bandwidth: float, dimension: int
) -> Moments:
    """Convert moments in bandwidths to the data's units.

    Also enforces Jensen's inequality, ``m2 ≥ |m1|²``, which rounding can violate.
    """
    variance = bandwidth * bandwidth
    m1_squared = (m1_squared * variance).clamp(max=CEILING)
    m2 = torch.maximum((m2 * variance).clamp(max=CEILING), m1_squared)
    return Moments(log_density.clamp(-CEILING, 0.0), m1_squared, m2, dimension)


class ReferenceEngine:
    """Float64, in blocks of queries, on the device of the centres."""

    def __init__(
        self, centers: Tensor, bandwidth: float, log_weights: Tensor | None = None
    ) -> None:
        self.bandwidth = checked_bandwidth(bandwidth)
        self.centers, self.log_weights = checked_centers(centers, log_weights)

    def __call__(self, queries: Tensor) -> Moments:
        """Moments at each query (Q, d), differentiable."""
        check_queries(queries, self.centers)
        rows = max(1, PAIRS_PER_BLOCK // self.centers.shape[0])
        parts = [
            dense_moments(queries[block], self.centers, self.bandwidth, self.log_weights)
            for block in blocks(queries.shape[0], rows)
        ]
        return concatenate(parts, queries)
