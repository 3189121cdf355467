r"""Base class of the fused engines: the field as attention, in bounded memory, with error control.

With :math:`q = (x-\bar c)/\sigma` and :math:`k_i = (c_i-\bar c)/\sigma` the scores
:math:`a_i = q\cdot k_i - \|k_i\|^2/2 + \log w_i` give :math:`\mathrm{softmax}(a) = \tilde w` and
:math:`\log\rho = \mathrm{logsumexp}(a) - \|q\|^2/2`. One softmax average of the values
:math:`(k_i, \|k_i\|^2)` then yields every moment:

.. math:: m_1/\sigma = \mathbb{E}k - q, \qquad
          m_2/\sigma^2 = \|m_1\|^2/\sigma^2 + \mathbb{E}\|k\|^2 - \|\mathbb{E}k\|^2 .

Expanding the square loses digits: about :math:`\delta = \epsilon(\|q\|+\|k\|)^2` of each score, and
so of :math:`\log\rho`. The weights are then wrong by factors between :math:`e^{-2\delta}` and
:math:`e^{2\delta}`, and so is their variance :math:`\mathbb{E}\|k-\mathbb{E}k\|^2`, an eighth of
which is part of K: far out, between distant centres of about the same distance, most of K. Rows
whose error could matter (queries far from all centres, kernels far narrower than the data) are
found after the fast pass and recomputed in float64. Where that is not enough, the reference engine,
which takes differences before squares, computes them. Float64 input is computed in float64 from the
start.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qipf.field.engines.base import (
    Moments,
    blocks,
    by_device,
    check_queries,
    concatenate,
    full_precision,
)
from qipf.field.engines.reference import FARTHEST, ReferenceEngine, dense_moments, in_data_units

#: Bytes of one working array per block of queries, by kind of device; about twelve exist at a time.
#: A block should fill a whole launch of a GPU, and fit the caches of a CPU.
BLOCK_BYTES = {"cpu": 2**23, "cuda": 2**27}

#: Bytes of one packed block of centres; a field that fits in one block keeps it.
CENTER_BYTES = 3 * 2**23

#: Largest accepted bound on the relative error of log ρ and K. The bound is pessimistic: on
#: logits the measured error was always below a tenth of it.
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


class FusedEngine(ReferenceEngine, ABC):
    """Scaling, blocks and error control; a subclass computes the averages of one block."""

    def __init__(
        self, centers: Tensor, bandwidth: float, log_weights: Tensor | None = None
    ) -> None:
        super().__init__(centers, bandwidth, log_weights)
        # subtract the mean first: expanding the square loses digits. In blocks, because torch
        # converts all that it sums to float64 first.
        sums: Any = sum(self.centers[part].sum(0, dtype=torch.float64) for part in self._blocks())
        self.origin: Tensor = sums / self.centers.shape[0]
        self._packed: dict[torch.dtype, list[Any]] = {}

    @abstractmethod
    def pack(self, keys: Tensor, bias: Tensor) -> Any:
        """Keys (N, d) and their bias (N,), -|k|²/2 + log w, laid out for `average`."""

    @abstractmethod
    def average(self, queries: Tensor, packed: Any) -> Averages:
        """Softmax averages of scaled queries (Q, d) over one packed block of centres."""

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether `average` works in this precision; if not, the reference engine is used."""
        return dtype == torch.float32

    def __call__(self, queries: Tensor) -> Moments:
        """Moments at each query (Q, d), differentiable in the queries."""
        check_queries(queries, self.centers)
        with full_precision(queries.device):
            if queries.requires_grad and torch.is_grad_enabled():
                log_density, m1_squared, m2 = _Differentiable.apply(queries, self)
                return Moments(log_density, m1_squared, m2, queries.shape[1])
            return self.evaluate(queries.detach())

    def evaluate(self, queries: Tensor) -> Moments:
        """Moments without gradients, in blocks that shrink when the GPU runs out of memory."""
        wide = torch.float64 in (queries.dtype, self.centers.dtype)
        dtype = torch.float64 if wide else torch.float32
        if not self.supports(dtype):
            return self._reference(queries)
        rows = max(1, by_device(BLOCK_BYTES, queries) // (8 * (queries.shape[1] + 2)))
        parts: list[Moments] = []
        start = 0
        while start < queries.shape[0]:
            try:
                parts.append(self._block(queries[start : start + rows], dtype))
            except torch.cuda.OutOfMemoryError:
                if rows == 1:
                    raise
                rows = min(rows, queries.shape[0] - start) // 2
                continue
            start += rows
        return concatenate(parts, queries)

    def _block(self, queries: Tensor, dtype: torch.dtype) -> Moments:
        q_i = self._scaled(queries)
        moments = averaged_moments(q_i, self.averages(q_i.to(dtype)), self.bandwidth)
        inexact = self._inexact(q_i, moments, dtype)
        if inexact is not None and inexact.any():
            if dtype == torch.float32 and self.supports(torch.float64):
                exact = self._block(queries[inexact], torch.float64)
            else:
                exact = self._reference(queries[inexact])
            for whole, part in zip(moments[:3], exact[:3], strict=True):
                whole[inexact] = part
        return moments

    def _scaled(self, points: Tensor) -> Tensor:
        """Points (n, d) in bandwidths from the origin, in float64 as the origin is."""
        return (points - self.origin).div_(self.bandwidth).clamp_(-FARTHEST, FARTHEST)

    def averages(self, q_i: Tensor) -> Averages:
        """Averages of scaled queries (Q, d) over all centres, joined as in an online softmax."""
        total: Averages | None = None
        for packed in self.packed_blocks(q_i.dtype):
            lse, mean, square = (value.double() for value in self.average(q_i, packed))
            del packed  # before the next block is made
            if total is None:
                total = Averages(lse, mean, square)
                continue
            joint = torch.logaddexp(total.logsumexp, lse)
            old, new = torch.exp(total.logsumexp - joint), torch.exp(lse - joint)
            mean = total.mean * old[:, None] + mean * new[:, None]
            total = Averages(joint, mean, total.mean_square * old + square * new)
        assert total is not None  # checked_centers leaves at least one centre
        return total

    def _blocks(self) -> Iterator[slice]:
        """Blocks of centres; the columns of one are padded to a multiple of four, or to 16."""
        rows = CENTER_BYTES // (8 * max(self.centers.shape[1] + 5, 16))
        return blocks(self.centers.shape[0], max(1, rows))

    def packed_blocks(self, dtype: torch.dtype) -> Iterable[Any]:
        """Packed blocks of centres: a single one is kept, several are made one at a time."""
        if dtype not in self._packed:
            parts = list(self._blocks())
            if len(parts) > 1:
                return (self._pack_rows(part, dtype) for part in parts)
            self._packed[dtype] = [self._pack_rows(parts[0], dtype)]
        return self._packed[dtype]

    def _pack_rows(self, rows: slice, dtype: torch.dtype) -> Any:
        k_j = self._scaled(self.centers[rows])
        bias = self.log_weights[rows] - torch.linalg.vecdot(k_j, k_j) / 2
        return self.pack(k_j.to(dtype), bias.to(dtype))

    def _inexact(self, q_i: Tensor, moments: Moments, dtype: torch.dtype) -> Tensor | None:
        """Rows whose error in `dtype` may exceed the tolerance; None if the bound excludes all."""
        norms, eps = torch.linalg.vector_norm(q_i, dim=1), torch.finfo(dtype).eps
        variance = (moments.m2 - moments.m1_squared) / self.bandwidth / self.bandwidth
        largest = eps * (float(norms.max()) + self._farthest_center) ** 2
        # expm1(2 x) < 3 x for small x; NaN and infinity of any row fail the comparison
        if largest * (1 + (float(variance.max()) + largest) * 3 / 8) <= TOLERANCE:
            return None
        loss = eps * (norms + self._farthest_center).square()
        bending = (moments.m2 / 4 - moments.m1_squared / 8) / self.bandwidth / self.bandwidth
        K = bending - q_i.shape[1] / 4
        smallest = torch.minimum(-moments.log_density, K.abs()).clamp(min=1.0)
        error = loss + torch.expm1(2 * loss) * (variance + loss) / 8
        # written so that NaN counts as inexact
        return ~(error <= TOLERANCE * smallest)

    @cached_property
    def _farthest_center(self) -> float:
        return max(
            float(torch.linalg.vector_norm(self._scaled(self.centers[part]), dim=1).max())
            for part in self._blocks()
        )

    def _reference(self, queries: Tensor) -> Moments:
        return ReferenceEngine(self.centers, self.bandwidth, self.log_weights)(queries)


class _Differentiable(torch.autograd.Function):
    """Fused moments in the forward pass; the dense formula, in blocks, in the backward pass."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, engine: FusedEngine) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(queries)
        ctx.engine = engine
        return engine.evaluate(queries.detach())[:3]

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
