r"""The field as a module of plain tensor operations, for export.

Engines choose kernels and recompute imprecise rows, which an exported graph cannot do. So here the
field is two matrix products and a softmax in float64, which is precise enough for all rows:

.. math:: a_i = q\cdot k_i - \tfrac12\|k_i\|^2 + \log w_i, \qquad
          q = (x-\bar c)/\sigma, \quad k_i = (c_i-\bar c)/\sigma .

Moments, potential and modes follow from these averages as everywhere in the library.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qipf.calibration.detection import entropy_of
from qipf.calibration.rule import within
from qipf.errors import QIPFInputError
from qipf.export.program import ExactConstants
from qipf.field.engines.base import checked_centers
from qipf.field.engines.fused import Averages, averaged_moments
from qipf.field.engines.reference import FARTHEST
from qipf.field.kernel import with_spread
from qipf.field.potential import bare_modes

if TYPE_CHECKING:
    from qipf.field.fitted import FittedField

#: Largest distance of a centre from the mean, in bandwidths: expanding the square loses about
#: (2·reach)² · 2e-16 of K, here 1e-5.
FARTHEST_CENTER = 1e5


class FieldGraph(nn.Module):
    """A fitted field: rows to uncertainty, novelty, modes and, with a threshold, accepted.

    A row with NaN or infinity gets NaN as its scores and is not accepted. A batch needs memory
    for a float64 matrix of its rows times the centres.
    """

    def __init__(
        self, field: "FittedField", threshold: float | None = None, max_novelty: float | None = None
    ) -> None:
        super().__init__()
        self.bandwidth, self.spread = float(field.bandwidth_), float(field.spread_)
        self.orders, self.softening = tuple(field.orders), float(field.softening)
        self.normalization = str(field.normalization)
        self.score, self.probabilities = field.score_, field.probabilities_
        self.threshold, self.max_novelty = threshold, max_novelty
        self.width = math.hypot(self.bandwidth, self.spread)
        log_weights = None if field.log_weights_ is None else torch.from_numpy(field.log_weights_)
        centers, log_weights = checked_centers(torch.from_numpy(field.centers_), log_weights)
        origin = centers.mean(0, dtype=torch.float64)
        square = ((centers.double() - origin) / self.width).square().sum(1)
        reach = float(square.max()) ** 0.5
        if not reach <= FARTHEST_CENTER:
            raise QIPFInputError(
                f"The field's centres lie up to {reach:.3g} bandwidths from their mean; beyond "
                f"{FARTHEST_CENTER:.0e} an exported graph loses digits. Fit with a wider bandwidth."
            )
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
        """Scores (n,) and modes (n, len(orders)) in float64; accepted (n,) as booleans."""
        with ExactConstants():
            moments = averaged_moments(*self._averages(rows), self.width)
            if self.spread > 0:
                moments = with_spread(moments, self.bandwidth, self.spread)
            modes = self.energies + bare_modes(
                moments, self.bandwidth, self.orders, self.softening, self.normalization
            )
            finite = torch.isfinite(rows).all(1, keepdim=True)
            modes = torch.where(finite, modes, torch.full_like(modes, math.nan))
            novelty = torch.where(finite[:, 0], -moments.log_density.double(), math.nan)
            results = {"uncertainty": modes.mean(1), "modes": modes, "novelty": novelty}
            if self.score == "entropy":
                entropy = entropy_of(rows, self.probabilities)
                results["uncertainty"] = torch.where(finite[:, 0], entropy, math.nan)
            if self.threshold is not None:
                results["accepted"] = within(
                    results["uncertainty"], novelty, self.threshold, self.max_novelty
                )
        return results

    def metadata(self, field: "FittedField") -> dict[str, Any]:
        """What an exported file says about the field."""
        facts = {
            "orders": self.orders,
            "softening": self.softening,
            "normalization": self.normalization,
            "bandwidth": self.bandwidth,
            "centers": len(self.centers),
            "dimension": int(field.n_features_in_),
            "samples": int(field.n_samples_seen_),
        }
        limits = {"threshold": self.threshold, "max_novelty": self.max_novelty}
        return facts | {name: limit for name, limit in limits.items() if limit is not None}

    def _averages(self, rows: Tensor) -> tuple[Tensor, Averages]:
        """Scaled queries (n, d), and their softmax averages over the centres."""
        q_i = ((rows.double() - self.origin) / self.width).clamp(-FARTHEST, FARTHEST)
        # centres are stored as they were fitted: in float32 they take half the file
        k_j = (self.centers.double() - self.origin) / self.width
        score_ij = nn.functional.linear(q_i, k_j, self.bias)
        top = score_ij.amax(1, keepdim=True)
        kernel_ij = torch.exp(score_ij - top)
        total = kernel_ij.sum(1, keepdim=True)
        logsumexp = (top + torch.log(total)).squeeze(1)
        mean_square = (kernel_ij @ self.square / total).squeeze(1)
        return q_i, Averages(logsumexp, kernel_ij @ k_j / total, mean_square)
