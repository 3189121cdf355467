r"""The field, and a network with its field, as modules of plain tensor operations.

Engines choose kernels and recompute doubtful rows; a graph that runs elsewhere can do neither. So
here the field is two matrix products and a softmax, all in float64, which needs no second look:

.. math:: a_i = q\cdot k_i - \tfrac12\|k_i\|^2 + \log w_i, \qquad
          q = (x-\bar c)/\sigma, \quad k_i = (c_i-\bar c)/\sigma .

What follows from the averages (moments, potential, modes) is the library's own code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qipf.errors import QIPFInputError
from qipf.field.engines.base import checked_centers
from qipf.field.engines.fused import Averages, averaged_moments
from qipf.field.engines.reference import FARTHEST
from qipf.field.estimator import QIPF
from qipf.field.kernel import with_spread
from qipf.field.potential import bare_modes
from qipf.network.wrapped import WrappedModel

#: Bandwidths from the centres' mean to the farthest of them, at most: expanding the square loses
#: about (2·reach)² · 2e-16 of K, here 1e-5.
FARTHEST_CENTER = 1e5


class FieldGraph(nn.Module):
    """A fitted field; rows in; uncertainty, modes and, with a threshold, accepted out.

    A row with NaN or infinity, which `QIPF` would refuse, has NaN as its uncertainty and is not
    accepted. One batch holds a float64 matrix of its rows times the centres.
    """

    def __init__(self, field: QIPF, threshold: float | None = None) -> None:
        super().__init__()
        self.bandwidth, self.spread = float(field.bandwidth_), float(field.spread_)
        self.orders, self.softening = tuple(field.orders), float(field.softening)
        self.threshold = threshold
        self.width = math.hypot(self.bandwidth, self.spread)
        log_weights = None if field.log_weights_ is None else torch.from_numpy(field.log_weights_)
        centers, log_weights = checked_centers(torch.from_numpy(field.centers_), log_weights)
        origin = centers.mean(0, dtype=torch.float64)
        square = ((centers.double() - origin) / self.width).square().sum(1)
        _check_reach(float(square.max()) ** 0.5)
        self.centers: Tensor
        self.origin: Tensor
        self.bias: Tensor
        self.square: Tensor
        self.energies: Tensor
        self.register_buffer("centers", centers.clone())
        self.register_buffer("origin", origin)
        self.register_buffer("bias", log_weights - square / 2)
        # a column, not a vector: ONNX Runtime cannot multiply an empty batch with the latter
        self.register_buffer("square", square[:, None])
        self.register_buffer("energies", torch.from_numpy(field.energies_).clone())

    def forward(self, rows: Tensor) -> dict[str, Tensor]:  # (n, d)
        """Uncertainty (n,) and modes (n, len(orders)) in float64; accepted (n,) as booleans."""
        with ExactConstants():
            moments = averaged_moments(*self._averages(rows), self.width)
            if self.spread > 0:
                moments = with_spread(moments, self.bandwidth, self.spread)
            modes = bare_modes(moments, self.bandwidth, self.orders, self.softening) + self.energies
            finite = torch.isfinite(rows).all(1, keepdim=True)
            modes = torch.where(finite, modes, torch.full_like(modes, math.nan))
            judged = {"uncertainty": modes.mean(1), "modes": modes}
            if self.threshold is not None:
                judged["accepted"] = judged["uncertainty"] <= self.threshold
        return judged

    def _averages(self, rows: Tensor) -> tuple[Tensor, Averages]:
        """Scaled queries (n, d), and their softmax averages over the centres."""
        q_i = ((rows.double() - self.origin) / self.width).clamp(-FARTHEST, FARTHEST)
        # from the centres as they were fitted: in float32 they take half the file
        k_j = (self.centers.double() - self.origin) / self.width
        score_ij = nn.functional.linear(q_i, k_j, self.bias)
        top = score_ij.amax(1, keepdim=True)
        kernel_ij = torch.exp(score_ij - top)
        total = kernel_ij.sum(1, keepdim=True)
        logsumexp = (top + torch.log(total)).squeeze(1)
        mean_square = (kernel_ij @ self.square / total).squeeze(1)
        return q_i, Averages(logsumexp, kernel_ij @ k_j / total, mean_square)


class ModelGraph(nn.Module):
    """A network and its field; the network's inputs in, logits and the field's judgement out.

    `inputs` and `options` are an example of what the network takes. Their tensors stand for the
    graph's inputs, in that order; whatever else they hold is the same in every run.
    """

    def __init__(
        self,
        model: WrappedModel,
        field: FieldGraph,
        inputs: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.net, self.field = model.net, field
        self._run = model._run
        self._inputs, self._options = inputs, dict(options)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Logits (n, classes), and what the field says of them or of the layer's output."""
        given = iter(tensors)
        inputs = tuple(_filled(self._inputs, given))
        values = _filled(self._options.values(), given)
        logits, rows = self._run(inputs, dict(zip(self._options, values, strict=True)), None)
        return {"logits": logits, **self.field(rows)}


def _filled(template: Iterable[Any], given: Iterator[Tensor]) -> list[Any]:
    return [next(given) if isinstance(part, Tensor) else part for part in template]


def _check_reach(reach: float) -> None:
    if not reach <= FARTHEST_CENTER:
        raise QIPFInputError(
            f"The field's centres lie up to {reach:.3g} bandwidths from their mean; beyond "
            f"{FARTHEST_CENTER:.0e} an exported graph loses digits. Fit with a wider bandwidth."
        )


class ExactConstants(TorchFunctionMode):
    """Numbers enter the graph as float64 tensors.

    The ONNX exporter writes a plain Python number as float32: π loses half its digits, and 1e300
    becomes infinity.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = next((value.device for value in args if isinstance(value, Tensor)), None)

        def exact(value: Any) -> Any:
            if not isinstance(value, float):
                return value
            return torch.tensor(value, dtype=torch.float64, device=device)

        given = [exact(value) for value in args]
        if func is torch.full_like:
            like, value = given
            return torch.zeros_like(like) + value
        if func is torch.nan_to_num:
            values, nan, highest, lowest = given
            return torch.where(torch.isnan(values), nan, values.clamp(lowest, highest))
        return func(*given, **{name: exact(value) for name, value in (kwargs or {}).items()})
