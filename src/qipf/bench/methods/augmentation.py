"""Test-time augmentation: the mean prediction over slightly changed copies of an input."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from qipf.bench.methods.network import predict, seeded
from qipf.bench.methods.protocol import Batch, CleanData
from qipf.bench.methods.sampling import Draw, Sampler, Samples

#: Shifts of an image, down and to the right, in sixteenths of its size.
SHIFTS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))

#: Copies of a text, and the share of tokens that each of them lacks.
COPIES, DROPPED = 10, 0.1


@dataclass(frozen=True)
class TestTimeAugmentation(Sampler):
    """Images shifted by a sixteenth in four directions, and not at all, each also mirrored.

    A shift is one pixel at least. Images are mirrored only if the network is trained with mirrored
    ones. Of a text, ten copies in which a tenth of the tokens is missing.
    """

    __test__ = False  # not a test, whatever pytest makes of its name

    @property
    def forward_passes(self) -> int:
        """Copies of an input, at most."""
        return 2 * len(SHIFTS)

    def prepare(self, clean: CleanData) -> Draw:
        """Nothing is fitted."""
        mirror = clean.trainer is not None and clean.trainer.recipe.augment

        def draw(batch: Batch) -> Samples:
            if batch.images.is_floating_point() or batch.images.dtype == torch.uint8:
                copies = augmented_images(batch.images, mirror)
            else:
                copies = augmented_tokens(batch.images, clean.seed)
            drawn = (predict(clean.network, copy).logits for copy in copies)
            return Samples.of(drawn)

        return draw


def augmented_images(images: Tensor, mirror: bool) -> Iterator[Tensor]:
    """Shifted copies, with edge pixels repeated, and their mirror images."""
    height, width = images.shape[-2:]
    far = max(1, min(height, width) // 16)
    for down, right in SHIFTS:
        rows = (torch.arange(height) - far * down).clamp(0, height - 1)
        columns = (torch.arange(width) - far * right).clamp(0, width - 1)
        moved = images[..., rows.to(images.device), :][..., columns.to(images.device)]
        yield moved
        if mirror:
            yield moved.flip(-1)


def augmented_tokens(tokens: Tensor, seed: int) -> Iterator[Tensor]:
    """Copies in which tokens are replaced by padding, 0."""
    for copy in range(COPIES):
        with seeded(tokens.device, seed, copy):
            kept = torch.rand(tokens.shape, device=tokens.device) >= DROPPED
        yield tokens * kept
