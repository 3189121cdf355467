"""Every way to evaluate the field that we compare, behind one signature.

Each maker takes centres (N, d) and a bandwidth and returns a function from queries (Q, d) to the
log density and, where the peer can give it, the curvature K. Peers that offer only a density are
asked only for that: they are timed on less work than ours. Whole predictions, from logits to
uncertainty, are timed through the estimator, on their way through the same engine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from qipf import QIPF
from qipf.field import engines
from qipf.field.engines.attention import AttentionEngine
from qipf.field.potential import curvature

Values = Tensor | np.ndarray  # as the peer gives them, where it gives them
Answer = tuple[Values | None, Values | None]  # log ρ, K
Evaluate = Callable[[Tensor], Answer]
Maker = Callable[[Tensor, float], Evaluate]


def ours(engine: str) -> Maker:
    """One of our engines, with all its moments."""

    def make(centers: Tensor, bandwidth: float) -> Evaluate:
        field = engines.create(engine, centers, bandwidth)

        def evaluate(queries: Tensor) -> Answer:
            moments = field(queries)
            return moments.log_density, curvature(moments, bandwidth)

        return evaluate

    return make


def bare_attention(centers: Tensor, bandwidth: float) -> Evaluate:
    """One call of PyTorch's fused attention on our arrays: the floor under our engine."""
    engine = AttentionEngine(centers, bandwidth)
    dtype = torch.float32
    origin, (packed,) = engine.origin, engine.packed_blocks(dtype)

    def evaluate(queries: Tensor) -> Answer:
        scaled = ((queries - origin.to(dtype)) / bandwidth).to(dtype)
        averages = engine.average(scaled, packed)
        return averages.logsumexp - scaled.square().sum(1) / 2, None

    return evaluate


def estimator(as_array: bool) -> Maker:
    """`QIPF.uncertainty`, which judges one prediction at a time in many uses."""

    def make(centers: Tensor, bandwidth: float) -> Evaluate:
        field = QIPF(bandwidth=bandwidth, max_centers=len(centers), device="cpu").fit(centers)

        def evaluate(queries: Tensor) -> Answer:
            field.uncertainty(queries.numpy() if as_array else queries)
            return None, None

        return evaluate

    return make


def tiles(centers: Tensor, bandwidth: float) -> Evaluate:
    """Plain PyTorch: matrix product and exponentials, a tile of pairs at a time."""
    rows = max(1, 2**24 // centers.shape[0])
    origin = centers.mean(0)
    k_j = (centers - origin) / bandwidth
    half_j = k_j.square().sum(1) / 2

    def evaluate(queries: Tensor) -> Answer:
        densities, bends = [], []
        for part in queries.split(rows):
            q_i = (part - origin) / bandwidth
            score_ij = q_i @ k_j.T - half_j
            top = score_ij.amax(1, keepdim=True)
            kernel_ij = torch.exp(score_ij - top)
            total = kernel_ij.sum(1)
            square = q_i.square().sum(1)
            mean = kernel_ij @ k_j / total[:, None]
            mean_square = kernel_ij @ (2 * half_j) / total
            m1 = (mean - q_i).square().sum(1)
            m2 = mean_square - 2 * (q_i * mean).sum(1) + square
            densities.append(top[:, 0] + total.log() - square / 2 - np.log(len(k_j)))
            bends.append(m2 / 4 - m1 / 8 - q_i.shape[1] / 4)
        return torch.cat(densities), torch.cat(bends)

    return evaluate


def keops(centers: Tensor, bandwidth: float) -> Evaluate:
    """KeOps' lazy tensors, log density only."""
    import pykeops

    pykeops.set_verbose(False)
    from pykeops.torch import LazyTensor

    y_j = LazyTensor((centers / bandwidth)[None, :, :].contiguous())

    def evaluate(queries: Tensor) -> Answer:
        x_i = LazyTensor((queries / bandwidth)[:, None, :].contiguous())
        log_sum = (-((x_i - y_j) ** 2).sum(-1) / 2).logsumexp(dim=1).flatten()
        return log_sum - np.log(len(centers)), None

    return evaluate


def scipy_kde(centers: Tensor, bandwidth: float) -> Evaluate:
    """SciPy's gaussian_kde on scaled data, so that its kernel is ours; log density only."""
    from scipy.stats import gaussian_kde

    scaled = centers.double().numpy().T / bandwidth
    dimension = scaled.shape[0]
    kde = gaussian_kde(scaled, bw_method=1.0)
    # its kernel has the data's covariance: give it the identity instead, as our kernel has
    kde._data_covariance = np.eye(dimension)
    kde._data_cho_cov = np.eye(dimension)
    kde.set_bandwidth(1.0)
    constant = dimension / 2 * np.log(2 * np.pi)

    def evaluate(queries: Tensor) -> Answer:
        return kde.logpdf(queries.double().numpy().T / bandwidth) + constant, None

    return evaluate


def sklearn_kde(centers: Tensor, bandwidth: float) -> Evaluate:
    """scikit-learn's KernelDensity; log density only."""
    from sklearn.neighbors import KernelDensity

    kde = KernelDensity(bandwidth=bandwidth).fit(centers.double().numpy())
    constant = centers.shape[1] * (np.log(2 * np.pi) / 2 + np.log(bandwidth))

    def evaluate(queries: Tensor) -> Answer:
        return kde.score_samples(queries.double().numpy()) + constant, None

    return evaluate


CPU: dict[str, Maker] = {
    "qipf attention": ours("attention"),
    "qipf reference": ours("reference"),
    "bare attention": bare_attention,
    "PyTorch tiles": tiles,
    "KeOps": keops,
    "SciPy gaussian_kde": scipy_kde,
    "scikit-learn KernelDensity": sklearn_kde,
}

CPU_ESTIMATOR: dict[str, Maker] = {
    "QIPF.uncertainty (array)": estimator(as_array=True),
    "QIPF.uncertainty (tensor)": estimator(as_array=False),
}

CUDA: dict[str, Maker] = {
    "qipf triton": ours("triton"),
    "qipf attention": ours("attention"),
    "bare attention": bare_attention,
    "PyTorch tiles": tiles,
}
