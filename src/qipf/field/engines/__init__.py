"""Engines: several ways to compute the moments of a field, under one contract."""

from collections.abc import Callable

from torch import Tensor

from qipf.errors import unknown_name
from qipf.field.engines.attention import AttentionEngine
from qipf.field.engines.base import Engine, Moments
from qipf.field.engines.reference import ReferenceEngine
from qipf.field.engines.triton import TritonEngine, obstacle

__all__ = ["ENGINES", "Engine", "Moments", "create"]

ENGINES: dict[str, Callable[[Tensor, float, Tensor | None], Engine]] = {
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
    """Engine of that name over these centres; called with queries, it returns their moments.

    ``"auto"`` takes the fastest available: the Triton kernel on an NVIDIA GPU up to 128
    dimensions, PyTorch's fused attention everywhere else.

    >>> import torch
    >>> field = create("auto", torch.zeros(1, 2), bandwidth=1.0)
    >>> [float(value) for value in field(torch.zeros(1, 2))[:3]]
    [0.0, 0.0, 0.0]
    """
    if name == "auto":
        name = "attention" if obstacle(centers) else "triton"
    if name not in ENGINES:
        raise unknown_name("engine", name, [*ENGINES, "auto"])
    return ENGINES[name](centers, bandwidth, log_weights)
