"""Training data on the device, and the order in which an epoch reads it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from qipf.bench.methods.network import unit_range
from qipf.bench.methods.randomness import mixed_seed

#: Largest shift of an augmented image, in pixels, each way.
SHIFT = 4


class Batches:
    """Examples and labels on the device, in an order of their own for each epoch.

    Order, shifts and flips are drawn on the CPU from (seed, epoch) alone, so that an epoch is the
    same on any device and after any interruption. The tensors stay in place when redrawn, as a
    CUDA graph requires.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        batch_size: int,
        seed: int,
        augment: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        count = len(labels)
        self.seed, self.augment = seed, augment
        self.size = min(batch_size, count)
        # the examples beyond the last full batch are left out of this epoch
        self.steps = count // self.size
        self.labels = labels.to(device)
        self.inputs = inputs.to(device)
        if augment:
            # (n, H + 2 SHIFT, W + 2 SHIFT, C): one gather shifts, flips and selects
            self.inputs = functional.pad(self.inputs, [SHIFT] * 4).movedim(1, -1).contiguous()
        self.order = torch.zeros(count, dtype=torch.int64, device=device)  # (n,)
        self.shift = torch.zeros((count, 2), dtype=torch.int64, device=device)  # (n, 2)
        self.flip = torch.zeros(count, dtype=torch.bool, device=device)  # (n,)
        self._offsets = torch.arange(self.size, device=device)

    def draw(self, epoch: int) -> None:
        """Draw the order of an epoch."""
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        count = len(self.order)
        self.order.copy_(torch.randperm(count, generator=generator))
        if self.augment:
            self.shift.copy_(torch.randint(0, 2 * SHIFT + 1, (count, 2), generator=generator))
            self.flip.copy_(torch.rand(count, generator=generator) < 0.5)

    def __call__(self, step: Tensor) -> tuple[Tensor, Tensor]:  # (B, …), (B,)
        """The batch at this step of the epoch, `step` of shape (1,)."""
        rows = step * self.size + self._offsets
        chosen = self.order[rows]
        inputs = (
            shifted_and_flipped(self.inputs, chosen, self.shift[rows], self.flip[rows])
            if self.augment
            else self.inputs[chosen]
        )
        return unit_range(inputs), self.labels[chosen]


class BatchStack:
    """Batches of several networks that train together, each in an order of its own."""

    def __init__(self, batches: Sequence[Batches]) -> None:
        self._batches = batches
        self.size, self.steps = batches[0].size, batches[0].steps
        self.labels = batches[0].labels

    def draw(self, epoch: int) -> None:
        """Draw the order of an epoch for every network."""
        for batches in self._batches:
            batches.draw(epoch)

    def __call__(self, step: Tensor) -> tuple[Tensor, Tensor]:  # (M, B, …), (M, B)
        """The batches of all networks at this step of the epoch."""
        inputs, labels = zip(*(batches(step) for batches in self._batches), strict=True)
        return torch.stack(inputs), torch.stack(labels)


def shifted_and_flipped(
    padded: Tensor,  # (n, H + 2 SHIFT, W + 2 SHIFT, C)
    chosen: Tensor,  # (...)
    shift: Tensor,  # (..., 2) in 0 … 2 SHIFT; SHIFT leaves the image where it is
    flip: Tensor,  # (...)
) -> Tensor:  # (..., C, H, W)
    """The chosen images, cropped from their padding at `shift` and mirrored where `flip`."""
    height, width = padded.shape[1] - 2 * SHIFT, padded.shape[2] - 2 * SHIFT
    down = torch.arange(height, device=padded.device) + shift[..., :1]  # (..., H)
    across = torch.arange(width, device=padded.device)
    across = torch.where(flip[..., None], width - 1 - across, across) + shift[..., 1:]  # (..., W)
    cut = padded[chosen[..., None, None], down[..., :, None], across[..., None, :]]
    return cut.movedim(-1, -3)
