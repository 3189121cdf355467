r"""The scores of predictions in a few CUDA kernels that never write the kernel matrix.

The first maps the rows of all layers to the unit sphere, and measures their residuals
(`qipf.layered.novelty`). The second sums the kernels by class, and
keeps their logarithms,

.. math:: \ell_c = \log \sum_{y_i = c} m_i\, e^{u \cdot u_i / \sigma^2},

as an online softmax over blocks of centres of one class, for all layers in one launch. The third
makes the posteriors :math:`q_c = e^{\ell_c} / \sum_b e^{\ell_b}`, their mixture and its log-odds
from them, in float64. Products are in float32 or, on the tensor cores, of three TF32 products with
21 bits together. Two more kernels measure the lengths of rows, and compute both scores.
"""

import math
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from qipf.errors import warn
from qipf.export.program import reason
from qipf.field.engines.online import LOG2_E
from qipf.field.engines.triton import MAX_DIMENSION, launching_on, no_triton, power_of_two
from qipf.layered.class_field import ClassField
from qipf.layered.error_model import ErrorModel, Evidence
from qipf.layered.evidence_kernels import (
    class_kernel,
    evidence_kernel,
    length_kernel,
    metric_kernel,
    score_kernel,
)
from qipf.layered.metric import Metric
from qipf.layered.novelty import NoveltyModel, PrincipalSubspace, RowLengths
from qipf.network.features import LayerSite, Rows

#: Most classes, whose posteriors a program holds in its registers.
MAX_CLASSES = 4096

#: Centres of a block: all of one class.
COLUMNS = 32

#: Fewest blocks of a program, and most programs of a layer: few rows need many programs to fill the
#: device, and each of them writes its own sums.
BLOCKS, ITEMS = 4, 128

#: Rows that a program takes: of few rows, and of more.
FEW, MORE = 16, 64

#: Precision of products: ``"ieee"`` float32, or ``"tf32x3"`` on the tensor cores.
PRECISION = "tf32x3"


def obstacle(
    fields: Mapping[LayerSite, ClassField], lengths: RowLengths, device: torch.device
) -> str | None:
    """Why the kernels cannot run for these fields; None if they can."""
    if reason := no_triton(device):
        return reason
    if not fields or next(iter(fields.values())).classes > MAX_CLASSES:
        return f"needs layers, and at most {MAX_CLASSES} classes"
    projections = [field.metric for field in fields.values()] + list(lengths.subspaces)
    if any(own.directions.shape[1] > MAX_DIMENSION for own in projections):
        return f"takes up to {MAX_DIMENSION} dimensions"
    if lengths.sites and list(lengths.metrics) != list(fields):
        return "measures the whitened rows of all fields"
    return None


def prepared(
    fields: Mapping[LayerSite, ClassField],
    weights: Tensor,  # (1 + layers,)
    lengths: RowLengths,
    models: tuple[ErrorModel, NoveltyModel],
    device: torch.device,
) -> "FusedEvidence | None":
    """The kernels, compiled; None where they cannot run.

    A warning names the reason if Triton is there and fails, for example without a C compiler.
    """
    if obstacle(fields, lengths, device) is not None:
        return None
    found = FusedEvidence(fields, weights, lengths, models)
    try:
        for count in (1, FEW + 1):
            empty = partial(torch.zeros, device=device)
            rows = {site: empty(count, width) for site, width in found.widths.items()}
            found.scores(empty(count, found.classes), rows)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # whatever Triton raises: PyTorch computes the same
        warn(f"Scores are computed by PyTorch, which is slower: Triton failed, {reason(error)}")
        return None
    return found


class _Blocks(NamedTuple):
    """Centres of a layer in blocks of one class each."""

    centers: Tensor  # (blocks · COLUMNS, d)
    bias: Tensor  # (blocks · COLUMNS,)
    blocks: Tensor  # (blocks, 3)
    items: Tensor  # (items, 2)
    slots: Tensor  # (classes, 2)


class Found(NamedTuple):
    """Output of the kernels."""

    probabilities: Tensor  # (n, classes) of the mixture
    evidence: Evidence
    checksum: Tensor  # () the sum of the logits


class FusedEvidence:
    """Evidence and scores of predictions, as `qipf.layered.scorer` gives them in PyTorch."""

    def __init__(
        self,
        fields: Mapping[LayerSite, ClassField],
        weights: Tensor,  # (1 + layers,)
        lengths: RowLengths,
        models: tuple[ErrorModel, NoveltyModel],
    ) -> None:
        self.fields = tuple(fields.values())
        first = self.fields[0]
        self.classes, self.device = first.classes, first.embeddings.device
        projected = [field.embeddings.shape[1] for field in self.fields]
        projected += [own.directions.shape[1] for own in lengths.subspaces]
        self.dimension = max(16, power_of_two(max(projected)))
        self.sites = lengths.read_beside(fields)
        self._measured = bool(lengths.sites)
        self.columns = 1 + len(self.fields) + lengths.count
        self.widths = {site: len(field.metric.mean) for site, field in fields.items()}
        self.widths |= lengths.widths
        *starts, _ = accumulate(self.widths.values(), initial=self.classes)
        start = dict(zip(self.sites, starts, strict=True))  # of each site's rows in a joint row
        # columns of the lengths: of the rows, of the whitened rows, of the residuals
        of_rows = 1 + len(self.fields)
        of_whitened = of_rows + len(lengths.sites)
        of_residuals = of_whitened + len(self.fields)
        # where they are measured, all fields have whitened rows (`obstacle`)
        projections: list[tuple[LayerSite, Metric | PrincipalSubspace, int, int, int]] = [
            (site, f.metric, int(f.metric.gain_free), of_whitened + i if self._measured else -1, 0)
            for i, (site, f) in enumerate(fields.items())
        ]
        projections += [
            (site, subspace, 0, of_residuals + i, 1)
            for i, (site, subspace) in enumerate(zip(lengths.sites, lengths.subspaces, strict=True))
        ]
        layers, place = [], 0
        for site, _, gain_free, column, residual in projections:
            layers.append([start[site], self.widths[site], gain_free, place, column, residual])
            place += self.widths[site]
        self._layers = self._table(layers)
        self._means = torch.cat([own.mean.to(self.device) for _, own, *_ in projections])
        self._directions = torch.cat(
            [
                pad(own.directions.to(self.device), (0, self.dimension - own.directions.shape[1]))
                for _, own, *_ in projections
            ]
        ).contiguous()
        self._parts = self._table(
            [[start[s], self.widths[s], column] for column, s in enumerate(lengths.sites, of_rows)]
        )
        centers, bias, blocks, items, slots = [], [], [], [], []
        blocks_before = slots_before = 0
        for number, field in enumerate(self.fields):
            found = _blocks(field, self.dimension)
            centers.append(found.centers)
            bias.append(found.bias)
            blocks.append(found.blocks + torch.tensor([slots_before, 0, 0]))
            items.append(pad(found.items + blocks_before, (0, 1), value=number))
            slots.append(found.slots + torch.tensor([slots_before, 0]))
            blocks_before += len(found.blocks)
            slots_before += int(found.slots[:, 1].sum())
        self._centers, self._bias = torch.cat(centers).contiguous(), torch.cat(bias)
        self._blocks, self._items = self._table(torch.cat(blocks)), self._table(torch.cat(items))
        self._slots = self._table(torch.stack(slots))
        self._slot_count = slots_before
        self._most_slots = int(self._slots[..., 1].max())
        self._known = torch.stack([field.known for field in self.fields]).int().contiguous()
        self._weights = weights.double().to(self.device)
        self._constants = torch.tensor(
            [[1 / (f.bandwidth * f.bandwidth), f._log_count] for f in self.fields],
            dtype=torch.float64,
            device=self.device,
        )
        shortest = pad(lengths.shortest.double(), (1 + len(self.fields), 0))
        self._shortest = shortest.to(self.device)
        self._error, self._novelty = (
            torch.tensor(model.parameters(), dtype=torch.float64, device=self.device)
            for model in models
        )

    def _table(self, values: Tensor | list[list[int]]) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int32).contiguous().to(self.device)

    def __call__(self, logits: Tensor, rows: Rows) -> Found:  # (n, classes)
        """The mixture's probabilities, and the evidence with the lengths."""
        joint = torch.cat([logits, *(rows[site] for site in self.sites)], 1).float()
        count, layers, doubles = len(joint), len(self.fields), self._doubles
        probabilities, odds = doubles(count, self.classes), doubles(count, 2 + layers)
        unusual, checksum = doubles(count, self.columns), doubles().zero_()
        if not self._measured:
            unusual[:, -1] = 0
        if count:
            with launching_on(joint.device):
                log_sums = self.log_sums(self.units(joint, unusual))
                evidence_kernel[(count,)](
                    joint, log_sums, self._slots, self._known, self._weights, self._constants,
                    probabilities, odds, unusual, checksum, count, joint.shape[1], self.columns,
                    self.classes, layers, self._most_slots, CLASSES=power_of_two(self.classes),
                    num_warps=_warps(self.classes),
                )  # fmt: skip
                if self._measured:
                    length_kernel[(-(-count // 4), len(self._parts))](
                        joint, self._parts, self._shortest, unusual, count, joint.shape[1],
                        self.columns, ROWS=4, STEP=512, num_warps=4,
                    )  # fmt: skip
        return Found(probabilities, Evidence(odds, unusual), checksum)

    def scores(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Uncertainty, novelty and p_error (3, n), the mixture's probabilities, the checksum."""
        found = self(logits, rows)
        odds, unusual = found.evidence
        count, layers = len(odds), len(self.fields)
        scores = self._doubles(3, count)
        if count:
            with launching_on(odds.device):
                score_kernel[(-(-count // FEW),)](
                    odds, unusual, self._error, self._novelty, scores, found.checksum, count,
                    self.columns, layers, ROWS=FEW, ODDS=power_of_two(2 + layers),
                    COLUMNS=power_of_two(self.columns), num_warps=4,
                )  # fmt: skip
        return scores, found.probabilities, found.checksum

    def _doubles(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float64, device=self.device)

    def units(self, joint: Tensor, unusual: Tensor) -> Tensor:  # -> (layers, n, dimension)
        """The rows of all layers on the unit sphere.

        Lengths before that, and of residuals, go to `unusual`.
        """
        count = len(joint)
        units = joint.new_empty(len(self.fields), count, self.dimension)
        metric_kernel[(-(-count // FEW), len(self._layers))](
            joint, self._means, self._directions, self._layers, self._shortest, units, unusual,
            count, joint.shape[1], self.columns, ROWS=FEW, STEP=32, DIMENSION=self.dimension,
            PRECISION=PRECISION, num_warps=4,
        )  # fmt: skip
        return units

    def log_sums(self, units: Tensor) -> Tensor:  # (layers, n, dimension) -> (slots, n)
        """Logarithms, to base 2, of the kernels summed over each slot."""
        count = units.shape[1]
        rows = FEW if count <= FEW else MORE
        log_sums = units.new_empty(self._slot_count, count)
        class_kernel[(-(-count // rows), len(self._items))](
            units, self._centers, self._bias, self._blocks, self._items, log_sums, count,
            ROWS=rows, COLUMNS=COLUMNS, DIMENSION=self.dimension, PRECISION=PRECISION,
            num_warps=4, num_stages=2,
        )  # fmt: skip
        return log_sums


def _warps(classes: int) -> int:
    return min(8, max(1, power_of_two(classes) // 128))


def _blocks(field: ClassField, dimension: int) -> _Blocks:
    """The centres of a field, sorted by class, every class padded to whole blocks.

    A slot is the part of a class that one item, that is one program, sums up.
    """
    kept = (field.counts > 0).nonzero()[:, 0]
    labels = field.labels.long()[kept]
    order = kept[labels.argsort(stable=True)]
    labels = field.labels.long()[order].cpu()
    counts = labels.bincount(minlength=field.classes)  # (classes,)
    blocks_of = -(-counts // COLUMNS)
    total = int(blocks_of.sum())
    owner = torch.arange(field.classes).repeat_interleave(blocks_of)  # (blocks,) their class
    # where each centre goes: its place in its class, after the blocks of the classes before
    inside = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels]
    places = ((blocks_of.cumsum(0) - blocks_of) * COLUMNS)[labels] + inside
    places = places.to(order.device)
    own = field.embeddings.shape[1]
    scale = LOG2_E / (field.bandwidth * field.bandwidth)
    centers = field.embeddings.new_zeros(total * COLUMNS, dimension)
    centers[places, :own] = (field.embeddings[order].double() * scale).to(centers)
    bias = centers.new_full((total * COLUMNS,), -math.inf)
    bias[places] = field.counts[order].log2().to(bias)
    size = max(BLOCKS, -(-total // ITEMS))
    starts = torch.arange(0, total, size)
    items = torch.stack([starts, (starts + size).clamp(max=total)], 1)
    number = torch.arange(total)
    first = (number % size == 0) | (owner != owner.roll(1))
    last = first.roll(-1)
    last[-1] = True
    slot = first.cumsum(0) - 1
    slots_of = owner[first].bincount(minlength=field.classes)
    blocks = torch.stack([slot, first.long(), last.long()], 1)
    return _Blocks(
        centers, bias, blocks, items, torch.stack([slots_of.cumsum(0) - slots_of, slots_of], 1)
    )
