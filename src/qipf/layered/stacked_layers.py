"""What the fields and lengths of all layers tell about rows, in few operations on a CPU.

An operation on a small array takes longer to start than to run. The rows of a layer are whitened
and projected to their principal subspace by one product, and what is small is computed for all
layers at once.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from qipf.field.engines.online import LOG2_E
from qipf.field.engines.products import product
from qipf.layered.class_field import FEWEST_TILED, SMALLEST, ClassField
from qipf.layered.metric import Metric
from qipf.layered.novelty import SHORTEST, PrincipalSubspace, RowLengths
from qipf.network.features import LayerSite, Rows

#: Range of `RowLengths.shortest` in which squares of rows are far from the limits of float32.
USUAL = 1e-12, 1e12

#: Least length by which a row is divided; squares of shorter ones are beyond float32.
LEAST = 1e-18

#: Most times that the mean of rows of length one may be as long as their whitened rows. Of more,
#: products lose digits that are kept if the mean is subtracted first.
MOST_MEAN = 10.0


class StackedValues(NamedTuple):
    """Values of the fields of all layers, and the lengths of the rows."""

    posterior: Tensor  # (layers, n, classes) in float64
    log_density: Tensor  # (layers, n)
    lengths: Tensor  # (n, lengths) logarithms


class _Joined(NamedTuple):
    """Directions A of a layer's metric and P of its principal subspace, side by side.

    With the means m and s of both, one product with rows x gives :math:`(x - s) A + (s - m) A` and
    :math:`(x - s) P`. A gain-free metric divides rows by their length first. There it gives
    :math:`x A` and :math:`x P - s P`, and the whitened rows are :math:`x A / |x| - m A`.
    """

    directions: Tensor  # (d + r, D)
    shift: Tensor  # (d + r,)
    sizes: list[int]  # d, r
    mean: Tensor | None  # (d,) m A, if rows are divided by their length

    @classmethod
    def of(cls, metric: Metric, subspace: PrincipalSubspace) -> "_Joined":
        """From both, in float64."""
        own, inside = metric.directions.double(), subspace.directions.double()
        mean, center, sizes = metric.mean.double(), subspace.mean.double(), [own.shape[1]]
        sizes.append(inside.shape[1])
        if metric.gain_free:
            shift = torch.cat([own.new_zeros(sizes[0]), -center @ inside])
        else:
            shift = torch.cat([(center - mean) @ own, own.new_zeros(sizes[1])])
        both = torch.cat([metric.directions.T, subspace.directions.T])
        return cls(both, shift.float(), sizes, (mean @ own).float() if metric.gain_free else None)

    def __call__(
        self,
        rows: Tensor,  # (n, D)
        offsets: Tensor,  # (n, D)
        lengths: Tensor,  # (n,)
    ) -> tuple[Tensor, Tensor]:  # (n, d), (n, r)
        """Whitened rows, and what is inside the subspace."""
        given = offsets if self.mean is None else rows
        own, inside = product(given, self.directions, self.shift).split(self.sizes, 1)
        if self.mean is not None:
            own = (own / lengths.clamp(min=LEAST)[:, None]).sub_(self.mean)
        return own, inside


class StackedLayers:
    """Values of several fields and lengths, as each of them gives alone.

    `fields` and `lengths` equal those that it is made of; their directions are parts of the joined
    ones, so that none is held twice.
    """

    def __init__(self, fields: Mapping[LayerSite, ClassField], lengths: RowLengths) -> None:
        self.fields, subspaces = dict(fields), list(lengths.subspaces)
        self._joined: list[_Joined | None] = [None] * len(subspaces)
        # lengths of whitened rows, of which `SHORTEST` is a share
        whitened = lengths.shortest[len(subspaces) :][: len(lengths.metrics)] / SHORTEST
        typical = dict(zip(lengths.metrics, whitened.tolist(), strict=True))
        for number, (site, subspace) in enumerate(zip(lengths.sites, subspaces, strict=True)):
            if site not in fields:
                continue
            metric = fields[site].metric
            joined = _Joined.of(metric, subspace)
            if joined.mean is not None and joined.mean.norm() > MOST_MEAN * typical[site]:
                continue
            self._joined[number] = joined
            own, inside = (part.T for part in joined.directions.split(joined.sizes))
            self.fields[site] = fields[site].changed(metric=replace(metric, directions=own))
            subspaces[number] = subspace._replace(directions=inside)
        metrics = {site: self.fields[site].metric for site in lengths.metrics}
        self.lengths = replace(lengths, metrics=metrics, subspaces=tuple(subspaces))
        exponents = torch.tensor([field.exponent for field in fields.values()], device="cpu")
        self._exponents = exponents.float()[:, None]
        offsets = [field.exponent / LOG2_E + field._log_count for field in fields.values()]
        self._offsets = torch.tensor(offsets, device="cpu").float()[:, None]

    @classmethod
    def of(
        cls, fields: Mapping[LayerSite, ClassField], lengths: RowLengths
    ) -> "StackedLayers | None":
        """None where the layers are better evaluated one by one."""
        own = fields.values()
        if not own or not set(fields) <= set(lengths.sites):
            return None
        here = all(field.embeddings.device.type == "cpu" for field in own)
        small = all(len(f.embeddings) < FEWEST_TILED and f._few_classes for f in own)
        least, most = USUAL
        usual = bool(((lengths.shortest > least) & (lengths.shortest < most)).all())
        return cls(fields, lengths) if here and small and usual else None

    def __call__(self, rows: Rows) -> StackedValues | None:  # (n, D) of each layer
        """Values of all layers at their rows; None if squares of one are beyond float32."""
        whitened, plain, residuals = {}, [], []
        parts = zip(self.lengths.sites, self.lengths.subspaces, self._joined, strict=True)
        for site, subspace, joined in parts:
            own = rows[site].float()
            offsets, length = own - subspace.mean, _length(own)
            if joined is None:
                inside = product(offsets, subspace.directions.T)
                if site in self.fields:
                    whitened[site] = self.fields[site].metric.whitened(own)
            else:
                whitened[site], inside = joined(own, offsets, length)
            plain.append(length)
            residuals.append(_length(offsets - product(inside, subspace.directions)))
        within = {site: _length(part) for site, part in whitened.items()}
        every = [*plain, *(within[site] for site in self.lengths.metrics), *residuals]
        lengths = (torch.stack(every, 1).double() + self.lengths.shortest).log()
        if not math.isfinite(float(lengths.sum())):
            return None
        return StackedValues(*self._fields_at(whitened, within), lengths)

    def _fields_at(
        self, whitened: Rows, within: Rows
    ) -> tuple[Tensor, Tensor]:  # (layers, n, classes), (layers, n)
        """Posteriors and log densities at whitened rows (n, d) of given lengths (n,)."""
        lengths = torch.stack([within[site] for site in self.fields])
        factors, count = self._exponents / lengths.clamp(min=LEAST), lengths.shape[1]
        if count == 1:  # a product with one row reads the centres on one core, and takes longer
            factors = factors.expand(-1, 2)
        pairs = zip(self.fields.items(), factors[..., None], strict=True)
        found = [field.sums(whitened[site] * factor) for (site, field), factor in pairs]
        by_class = torch.stack([sums for sums, _ in found])[..., :count]  # (layers, classes, n)
        total = by_class.sum(1, keepdim=True)
        densities = total[:, 0].log() - self._offsets
        for own, (_, top) in zip(densities, found, strict=True):
            if top is not None:
                own += top[:count] / LOG2_E
        return (by_class / total).clamp_(min=SMALLEST).double().transpose(1, 2), densities


def _length(rows: Tensor) -> Tensor:  # (n, d) -> (n,)
    return torch.linalg.vector_norm(rows, dim=1)  # several times as fast as in float64
