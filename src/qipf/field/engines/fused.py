r"""What the fused engines share: the field as attention, in flat memory, with a check on rounding.

With :math:`q = (x-\bar c)/\sigma` and :math:`k_i = (c_i-\bar c)/\sigma` the scores
:math:`a_i = q\cdot k_i - \|k_i\|^2/2 + \log w_i` give :math:`\mathrm{softmax}(a) = \tilde w` and
:math:`\log\rho = \mathrm{logsumexp}(a) - \|q\|^2/2`. One softmax average of the values
:math:`(k_i, \|k_i\|^2)` then yields every moment:

.. math:: m_1/\sigma = \mathbb{E}k - q, \qquad
          m_2/\sigma^2 = \|m_1\|^2/\sigma^2 + \mathbb{E}\|k\|^2 - \|\mathbb{E}k\|^2 .

Expanding the square loses digits: about :math:`\epsilon(\|q\|+\|k\|)^2` of each result. Rows whose
loss could matter (queries far from everything, kernels far narrower than the data) are found after
the fast pass and computed once more in float64, and where that is not enough by the reference,
which takes differences before squares. Float64 input is computed in float64 from the start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qipf.field.engines.base import (
    Moments,
    blocks,
    checked_field,
    checked_queries,
    full_precision,
)
from qipf.field.engines.reference import (
    FARTHEST,
    ReferenceEngine,
    dense_moments,
    in_data_units,
    joined,
)

#: Bytes of one working array per block of queries, by kind of device; a dozen live at a time.
#: A GPU wants its whole launch filled, a CPU its caches.
BLOCK_BYTES = {"cpu": 2**23, "cuda": 2**27}

#: Bytes of one packed block of centres; fields that fit in one block keep it.
CENTER_BYTES = 3 * 2**23

#: Largest bound on the relative loss in log ρ and K that a pass may leave. The bound is
#: pessimistic: on logits the true loss was never seen above a tenth of it.
TOLERANCE = 5e-4


class Averages(NamedTuple):
    """Softmax averages of a block of queries over a block of centres."""

    logsumexp: Tensor  # (Q,)
    mean: Tensor  # (Q, d)   E k
    mean_square: Tensor  # (Q,)  E |k|²


def averaged_moments(
    q_i: Tensor,  # (Q, d) centred, in bandwidths
    averages: Averages,
    bandwidth: float,
) -> Moments:
    """Moments from the softmax averages over all centres, in the precision of `q_i`."""
    mean = averages.mean
    m1_i = mean - q_i
    m1_squared = torch.linalg.vecdot(m1_i, m1_i, dim=1)
    variance = averages.mean_square - torch.linalg.vecdot(mean, mean, dim=1)
    log_density = averages.logsumexp - torch.linalg.vecdot(q_i, q_i, dim=1) / 2
    return in_data_units(log_density, m1_squared, m1_squared + variance, bandwidth, q_i.shape[1])


class FusedEngine(ABC):
    """Centres, scales, streams and checks; a subclass computes the averages of one block."""

    def __init__(
        self, centers: Tensor, bandwidth: float, log_weights: Tensor | None = None
    ) -> None:
        self.centers, self.log_weights = checked_field(centers, bandwidth, log_weights)
        self.bandwidth = float(bandwidth)
        # centre first: expanding the square loses digits
        self.origin = self._mean_center()
        self._keys: dict[torch.dtype, tuple[Any, ...]] = {}
        self._reach: float | None = None

    @abstractmethod
    def pack(self, keys: Tensor, bias: Tensor) -> Any:
        """Keys (N, d) and their bias (N,), -|k|²/2 + log w, laid out for `average`."""

    @abstractmethod
    def average(self, queries: Tensor, packed: Any) -> Averages:
        """Softmax averages of scaled queries (Q, d) over one packed block of centres."""

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether `average` works in this precision; what it does not, the reference does."""
        return dtype == torch.float32

    def __call__(self, queries: Tensor) -> Moments:
        """Moments at each query (Q, d); gradients flow back to queries that ask for them."""
        queries = checked_queries(queries, self.centers)
        with full_precision(queries.device):
            if queries.requires_grad and torch.is_grad_enabled():
                outputs = _Differentiable.apply(queries, self)
                return Moments(*outputs, dimension=queries.shape[1])  # type: ignore[misc]
            return self._evaluate(queries.detach())

    def _evaluate(self, queries: Tensor) -> Moments:
        wide = torch.float64 in (queries.dtype, self.centers.dtype)
        dtype = torch.float64 if wide else torch.float32
        if not self.supports(dtype):
            return self._reference()(queries)
        budget = BLOCK_BYTES.get(queries.device.type, BLOCK_BYTES["cpu"])
        rows = max(1, budget // (8 * (queries.shape[1] + 2)))
        parts: list[Moments] = []
        start = 0
        while start < queries.shape[0]:
            try:
                parts.append(self._block(queries[start : start + rows], dtype))
            except torch.cuda.OutOfMemoryError:
                if rows == 1:
                    raise
                rows = min(rows, queries.shape[0] - start) // 2  # and go on with less at a time
                continue
            start += rows
        return joined(parts, queries)

    def _block(self, queries: Tensor, dtype: torch.dtype) -> Moments:
        q_i = self._scaled(queries)
        moments = self._moments(q_i, dtype)
        if self._harmless(q_i, moments, dtype):
            return moments
        doubtful = self._doubtful(q_i, moments, dtype)
        if doubtful.any():
            if dtype == torch.float32 and self.supports(torch.float64):
                exact = self._block(queries[doubtful], torch.float64)
            else:
                exact = self._reference()(queries[doubtful])
            for whole, part in zip(moments[:3], exact[:3], strict=True):
                whole[doubtful] = part
        return moments

    def _scaled(self, points: Tensor) -> Tensor:
        """Points (n, d) in bandwidths from the origin, in float64 as the origin is."""
        return (points - self.origin).div_(self.bandwidth).clamp_(-FARTHEST, FARTHEST)

    def _moments(self, q_i: Tensor, dtype: torch.dtype) -> Moments:
        return averaged_moments(q_i, self._averages(q_i.to(dtype), dtype), self.bandwidth)

    def _averages(self, q_i: Tensor, dtype: torch.dtype) -> Averages:
        """Averages over all centres, block by block, joined as an online softmax does."""
        total: Averages | None = None
        for packed in self._packed(dtype):
            part = self.average(q_i, packed)
            del packed  # before the next block is made
            lse, mean, square = (value.double() for value in part)
            if total is None:
                total = Averages(lse, mean, square)
                continue
            joint = torch.logaddexp(total.logsumexp, lse)
            old, new = torch.exp(total.logsumexp - joint), torch.exp(lse - joint)
            mean = total.mean * old[:, None] + mean * new[:, None]
            total = Averages(joint, mean, total.mean_square * old + square * new)
        assert total is not None  # checked_field leaves at least one centre
        return total

    def _packed(self, dtype: torch.dtype) -> Any:
        """Packed blocks of centres: kept when they fit one block, made on the way when many."""
        if dtype in self._keys:
            return self._keys[dtype]
        count, rows = self.centers.shape[0], self._rows_per_pack()
        if count > rows:
            return (self._pack_rows(part, dtype) for part in blocks(count, rows))
        self._keys[dtype] = (self._pack_rows(slice(None), dtype),)
        return self._keys[dtype]

    def _rows_per_pack(self) -> int:
        """Centres in one block: their columns may be filled up to a multiple of four, or to 16."""
        return max(1, CENTER_BYTES // (8 * max(self.centers.shape[1] + 5, 16)))

    def _pack_rows(self, rows: slice, dtype: torch.dtype) -> Any:
        k_j = self._scaled(self.centers[rows])
        bias = self.log_weights[rows] - torch.linalg.vecdot(k_j, k_j) / 2
        return self.pack(k_j.to(dtype), bias.to(dtype))

    def _harmless(self, q_i: Tensor, moments: Moments, dtype: torch.dtype) -> bool:
        """Whether no row lies far enough out to be looked at by itself."""
        farthest = float(torch.linalg.vector_norm(q_i, dim=1).max())
        reach = farthest + self._farthest_center()
        loss = torch.finfo(dtype).eps * reach * reach
        return loss <= TOLERANCE and math.isfinite(float(moments.m2.sum()))

    def _doubtful(self, q_i: Tensor, moments: Moments, dtype: torch.dtype) -> Tensor:
        """Rows where computing in `dtype` may have lost more than the tolerance."""
        reach = torch.linalg.vector_norm(q_i, dim=1) + self._farthest_center()
        loss = torch.finfo(dtype).eps * reach.square()
        bending = (moments.m2 / 4 - moments.m1_squared / 8) / self.bandwidth / self.bandwidth
        K = bending - q_i.shape[1] / 4
        smallest = torch.minimum(-moments.log_density, K.abs()).clamp(min=1.0)
        # written so that NaN counts as doubtful
        return ~(loss <= TOLERANCE * smallest)

    def _mean_center(self) -> Tensor:
        count, dimension = self.centers.shape
        total = self.centers.new_zeros(dimension, dtype=torch.float64)
        # in blocks, because torch turns all it adds up into float64 first
        for part in blocks(count, self._rows_per_pack()):
            total += self.centers[part].sum(0, dtype=torch.float64)
        return total / count

    def _farthest_center(self) -> float:
        if self._reach is None:
            self._reach = max(
                float(torch.linalg.vector_norm(self._scaled(self.centers[part]), dim=1).max())
                for part in blocks(self.centers.shape[0], self._rows_per_pack())
            )
        return self._reach

    def _reference(self) -> ReferenceEngine:
        return ReferenceEngine(self.centers, self.bandwidth, self.log_weights)


class _Differentiable(torch.autograd.Function):
    """Fast moments forwards; backwards, the dense formula block by block."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, engine: FusedEngine) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(queries)
        ctx.engine = engine
        return engine._evaluate(queries.detach())[:3]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (queries,) = ctx.saved_tensors
        engine: FusedEngine = ctx.engine
        rows = max(1, 2**21 // engine.centers.shape[0])
        gradient = torch.empty_like(queries)
        for part in blocks(queries.shape[0], rows):
            with torch.enable_grad():
                leaf = queries[part].detach().requires_grad_()
                moments = dense_moments(leaf, engine.centers, engine.bandwidth, engine.log_weights)
                upstream = [grad[part] for grad in grads]
                (gradient[part],) = torch.autograd.grad(moments[:3], leaf, upstream)
        return gradient, None
