r"""The evidence of predictions in three CUDA kernels that never write the kernel matrix.

The first maps the rows of all layers to the unit sphere. The second sums the kernels by class, and
keeps their logarithms,

.. math:: \ell_c = \log \sum_{y_i = c} m_i\, e^{u \cdot u_i / \sigma^2},

as an online softmax over blocks of centres of one class, for all layers in one launch. The third
makes the posteriors :math:`q_c = e^{\ell_c} / \sum_b e^{\ell_b}`, their mixture and its log-odds
from them, in float64. Products are in float32 or, on the tensor cores, of three TF32 products with
21 bits together.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from qipf.field.engines.triton import INTERPRETED, MAX_DIMENSION
from qipf.field.engines.triton_kernels import INSTALLED
from qipf.layered.class_field import ClassField
from qipf.layered.error_model import Evidence
from qipf.layered.evidence_kernels import class_kernel, evidence_kernel, metric_kernel

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


def obstacle(fields: Sequence[ClassField], device: torch.device) -> str | None:
    """Why the kernels cannot run for these fields; None if they can."""
    if not INSTALLED:
        return "needs the package triton"
    if not INTERPRETED and (device.type != "cuda" or torch.version.cuda is None):
        return "needs an NVIDIA GPU"
    if not fields or fields[0].classes > MAX_CLASSES:
        return f"needs layers, and at most {MAX_CLASSES} classes"
    if any(field.embeddings.shape[1] > MAX_DIMENSION for field in fields):
        return f"takes up to {MAX_DIMENSION} dimensions"
    return None


def prepared(
    fields: Sequence[ClassField],
    weights: Tensor,  # (1 + layers,)
    device: torch.device,
) -> "FusedEvidence | None":
    """The kernels, compiled; None where they cannot run, for example without a C compiler."""
    if obstacle(fields, device) is not None:
        return None
    found = FusedEvidence(fields, weights)
    try:
        for count in (1, FEW + 1):
            found(torch.zeros(count, found.width, device=device))
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # whatever Triton raises: PyTorch computes the same
        return None
    return found


class _Blocks(NamedTuple):
    """Centres of a layer in blocks of one class each."""

    centers: Tensor  # (blocks · COLUMNS, d)
    bias: Tensor  # (blocks · COLUMNS,)
    blocks: Tensor  # (blocks, 3)
    items: Tensor  # (items, 2)
    slots: Tensor  # (classes, 2)


class FusedEvidence:
    """The mixture's probabilities and the evidence of predictions, as `evidence_of` gives them."""

    def __init__(self, fields: Sequence[ClassField], weights: Tensor) -> None:
        self.fields = tuple(fields)
        first = self.fields[0]
        self.classes, self.device = first.classes, first.embeddings.device
        self.dimension = max(16, *(_power_of_two(f.embeddings.shape[1]) for f in self.fields))
        layers, means, directions = [], [], []
        place = 0
        for field in self.fields:
            width, own = field.metric.directions.shape
            layers.append([self.classes + place, width, int(field.metric.gain_free), place])
            means.append(field.metric.mean)
            directions.append(pad(field.metric.directions, (0, self.dimension - own)))
            place += width
        self.width = self.classes + place
        self._means, self._directions = torch.cat(means), torch.cat(directions).contiguous()
        self._layers = self._table(layers)
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

    def _table(self, values: Tensor | list[list[int]]) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int32).contiguous().to(self.device)

    def joined(self, logits: Tensor, rows: Iterable[Tensor]) -> Tensor:  # (n, width)
        """Logits and the rows of all layers side by side, in float32."""
        return torch.cat([logits, *rows], 1).float()

    def __call__(self, joint: Tensor) -> tuple[Tensor, Evidence]:  # (n, width)
        """The mixture's probabilities (n, classes), and the evidence."""
        count, layers = len(joint), len(self.fields)
        doubles = {"dtype": torch.float64, "device": joint.device}
        probabilities = torch.empty(count, self.classes, **doubles)  # type: ignore[call-overload]
        odds = torch.empty(count, 2 + layers, **doubles)  # type: ignore[call-overload]
        unusual = torch.empty(count, 1 + layers, **doubles)  # type: ignore[call-overload]
        if count:
            with torch.cuda.device(joint.device) if joint.is_cuda else nullcontext():
                log_sums = self.log_sums(self.units(joint))
                evidence_kernel[(count,)](
                    joint, log_sums, self._slots, self._known, self._weights, self._constants,
                    probabilities, odds, unusual, count, self.width, self.classes, layers,
                    self._most_slots, CLASSES=_power_of_two(self.classes),
                    num_warps=_warps(self.classes),
                )  # fmt: skip
        return probabilities, Evidence(odds, unusual)

    def units(self, joint: Tensor) -> Tensor:  # (n, width) -> (layers, n, dimension)
        """The rows of all layers on the unit sphere."""
        count, layers = len(joint), len(self.fields)
        units = joint.new_empty(layers, count, self.dimension)
        metric_kernel[(-(-count // FEW), layers)](
            joint, self._means, self._directions, self._layers, units, count, self.width,
            ROWS=FEW, STEP=32, DIMENSION=self.dimension, PRECISION=PRECISION, num_warps=4,
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


def _power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`.

    >>> [_power_of_two(size) for size in (1, 5, 16)]
    [1, 8, 16]
    """
    return 1 << (size - 1).bit_length()


def _warps(classes: int) -> int:
    return min(8, max(1, _power_of_two(classes) // 128))


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
    scale = math.log2(math.e) / (field.bandwidth * field.bandwidth)
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
