"""Moments of the field: one contract, several ways to compute it."""

from __future__ import annotations

from torch import Tensor

from qipf.errors import unknown_name
from qipf.field.engines.attention import AttentionEngine
from qipf.field.engines.base import Engine, Moments
from qipf.field.engines.reference import ReferenceEngine
from qipf.field.engines.triton import TritonEngine, obstacle

__all__ = ["ENGINES", "Engine", "Moments", "create", "moments"]

ENGINES: dict[str, type[Engine]] = {
    "reference": ReferenceEngine,
    "attention": AttentionEngine,
    "triton": TritonEngine,
}


def create(
    name: str,
    centers: Tensor,  # (N, d)
    bandwidth: float,
    log_weights: Tensor | None = None,  # (N,)
) -> Engine:
    """The engine of that name over these centres.

    ``"auto"`` picks the fastest that fits: the Triton kernel on an NVIDIA GPU up to 128
    dimensions, PyTorch's fused attention everywhere else.
    """
    if name == "auto":
        name = "attention" if obstacle(centers) else "triton"
    if name not in ENGINES:
        raise unknown_name("engine", name, [*ENGINES, "auto"])
    return ENGINES[name](centers, bandwidth, log_weights)


def moments(
    queries: Tensor,  # (Q, d)
    centers: Tensor,  # (N, d)
    bandwidth: float,
    log_weights: Tensor | None = None,  # (N,)
    engine: str = "auto",
) -> Moments:
    """Moments of the field of `centers` at `queries`, in one call.

    >>> import torch
    >>> at_center = moments(torch.zeros(1, 2), torch.zeros(1, 2), bandwidth=1.0)
    >>> [float(value) for value in at_center[:3]]
    [0.0, 0.0, 0.0]
    """
    return create(engine, centers, bandwidth, log_weights)(queries)
