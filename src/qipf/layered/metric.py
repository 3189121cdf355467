r"""The metric of a layer: rows whitened within the classes and projected to the unit sphere.

.. math:: u = \frac{A^\top (z - \bar z)}{\|A^\top (z - \bar z)\|}, \qquad
          A = V \Lambda^{-1/2} D, \qquad V \Lambda V^\top = (1-r) S + r \frac{\mathrm{tr} S}{d} I

:math:`S`: covariance of the layer's rows about their class means; :math:`r`: shrinkage;
:math:`D`: the directions in which the whitened rows spread most, where classes lie apart, or a
projection that was learned (`qipf.layered.distillation`). With `gain_free` the rows are scaled to
unit length first, so that the brightness of an input does not matter. The scale of :math:`A`
cancels; its largest number is one.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.field.engines.products import product

#: Share of the largest variance below which a direction carries rounding, not data.
NEGLIGIBLE = 1e-10

#: Length of the shortest rows in float32 that are not zero.
SHORTEST = 2.0**-149


class Units(NamedTuple):
    """Rows as directions and lengths."""

    vectors: Tensor  # (..., d) of length one; zero for rows of zeros
    lengths: Tensor  # (...,) float64


def units_of(rows: Tensor) -> Units:  # (..., d)
    """Rows scaled to length one, and their lengths, without overflow.

    >>> units_of(torch.tensor([[3e30, 4e30], [0.0, 0.0]])).vectors
    tensor([[0.6000, 0.8000], [0.0000, 0.0000]])
    """
    lengths = lengths_of(rows)
    # divided twice by its root, which is a normal float32 where a length is not
    root = lengths.clamp(min=SHORTEST).sqrt().to(rows.dtype)[..., None]
    return Units((rows / root).div_(root), lengths)


def lengths_of(rows: Tensor) -> Tensor:  # (..., d) -> (...,)
    """Lengths of rows, in float64, where squares stay in range."""
    # not dim=-1: ONNX Runtime fails for no rows
    return torch.linalg.vector_norm(rows, dim=rows.ndim - 1, dtype=torch.float64)


def unit_length(rows: Tensor) -> Tensor:  # (..., d)
    """Rows scaled to length one; rows of zeros stay zero."""
    return units_of(rows).vectors


@dataclass(frozen=True)
class Metric:
    """Maps a layer's rows to unit vectors."""

    mean: Tensor  # (D,) float32
    directions: Tensor  # (D, d) float32
    gain_free: bool

    def __call__(self, rows: Tensor) -> Tensor:  # (n, D) -> (n, d)
        """Unit vectors; a row equal to the mean maps to the origin."""
        return self.units(rows).vectors

    def units(self, rows: Tensor) -> Units:  # (n, D)
        """Unit vectors (n, d), and the lengths of the whitened rows."""
        return units_of(self.whitened(rows))

    def whitened(self, rows: Tensor) -> Tensor:  # (n, D) -> (n, d)
        """The rows before they are scaled to unit length."""
        rows = rows.float()
        if self.gain_free:
            rows = unit_length(rows)
        return product(rows - self.mean, self.directions.T)

    def projected(self, projection: Tensor) -> "Metric":  # (d, e)
        """The metric with its whitened rows multiplied by a matrix, at the usual scale."""
        directions = self.directions @ projection
        return Metric(self.mean, directions / directions.abs().max(), self.gain_free)

    def to(self, device: torch.device) -> "Metric":
        """The same metric on another device."""
        return Metric(self.mean.to(device), self.directions.to(device), self.gain_free)


class Scatter:
    """Scatter of a layer's rows within their classes, from which metrics are made."""

    def __init__(self, rows: Tensor, labels: Tensor, gain_free: bool) -> None:  # (n, D), (n,)
        self.gain_free = gain_free
        rows = unit_length(rows.double()) if gain_free else rows.double()
        self._mean = rows.mean(0)
        rows = rows - self._mean
        self._products = rows.T @ rows
        present, classes = labels.unique(return_inverse=True)
        means = rows.new_zeros(len(present), rows.shape[1]).index_add_(0, classes, rows)
        means /= torch.bincount(classes)[:, None]
        offsets = rows.sub_(means[classes])
        variances, self._vectors = torch.linalg.eigh(offsets.T @ offsets / len(rows))
        variances = variances.clamp(min=0)
        # without whitening if all rows of each class are equal
        self._variances = variances if bool(variances.max() > 0) else torch.ones_like(variances)

    def metric(self, shrinkage: float, dimension: int) -> Metric:
        """The metric with this shrinkage, projected to at most this dimension.

        Its directions are sorted by how far the whitened rows spread in them, furthest last.
        """
        variances = (1 - shrinkage) * self._variances + shrinkage * self._variances.mean()
        whiten = self._vectors / variances.clamp(min=NEGLIGIBLE * variances.max()).sqrt()
        whiten = whiten / whiten.abs().max()
        _, spread = torch.linalg.eigh(whiten.T @ self._products @ whiten)  # ascending
        whiten = whiten @ spread[:, -min(dimension, len(spread)) :]
        whiten = whiten / whiten.abs().max()
        return Metric(self._mean.float(), whiten.float().contiguous(), self.gain_free)
