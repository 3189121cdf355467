"""Pseudo-outliers: inputs put together from parts of training inputs, of no class any more.

They show the novelty what is unlike the training data, though made of the same parts. Perturbed
copies (`qipf.layered.perturbations`) do not: they keep their classes. The parts are tiles of images
(n, C, H, W), features of tables, and tokens of texts. `qipf.layered.families` chooses those that
fit a network's inputs; the novelty alone is fitted with them.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from qipf.layered.perturbations import Text

#: Inputs, others of other classes row by row, and random numbers -> pseudo-outliers.
Joining = Callable[[Tensor, Tensor, torch.Generator], Tensor]
TokenJoining = Callable[[Text, Text], Text]

#: Tiles of two images, along each side.
TILES = 4


def of_other_classes(labels: Tensor, random: torch.Generator) -> Tensor:  # (n,) -> (n,)
    """Places of other examples, each used once; their classes differ if none has more than half.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> labels[of_other_classes(labels, torch.Generator())]
    tensor([1, 1, 0, 0])
    """
    drawn = torch.randperm(len(labels), generator=random)
    order = drawn[labels.cpu()[drawn].argsort(stable=True)]
    return torch.empty_like(order).scatter_(0, order, order.roll(len(order) // 2))


def shuffle_tiles(
    images: Tensor, _others: Tensor, random: torch.Generator, tiles: int = 2
) -> Tensor:  # (n, C, H, W)
    """The tiles of each image in a random order, so many along each side.

    Rows and columns that are left over at the end stay where they are.
    """
    n, channels = images.shape[:2]
    tiles = min(tiles, *images.shape[2:])
    height, width = (side // tiles for side in images.shape[2:])
    inner = images[:, :, : tiles * height, : tiles * width]
    cut = inner.reshape(n, channels, tiles, height, tiles, width).permute(0, 2, 4, 1, 3, 5)
    order = torch.rand(n, tiles * tiles, generator=random).argsort(1).to(images.device)
    lines = torch.arange(n, device=images.device)[:, None]
    moved = cut.flatten(1, 2)[lines, order].unflatten(1, (tiles, tiles))
    found = images.clone()
    found[:, :, : tiles * height, : tiles * width] = moved.permute(0, 3, 1, 4, 2, 5).reshape(
        inner.shape
    )
    return found


def join_halves(images: Tensor, others: Tensor, random: torch.Generator) -> Tensor:
    """The left half of an image and the right half of another one, or the upper and lower ones."""
    height, width = images.shape[2:]
    lower = torch.arange(height)[:, None] >= height // 2
    right = torch.arange(width) >= width // 2
    mask = torch.where(torch.rand(len(images), 1, 1, 1, generator=random) < 0.5, lower, right)
    return torch.where(mask.to(images.device), others, images)


def join_tiles(images: Tensor, others: Tensor, random: torch.Generator) -> Tensor:
    """Every tile from one of two images, `TILES` along each side."""
    drawn = (torch.rand(len(images), 1, TILES, TILES, generator=random) < 0.5).float()
    mask = functional.interpolate(drawn, size=images.shape[2:], mode="nearest")
    return torch.where(mask.bool().to(images.device), others, images)


def join_features(inputs: Tensor, others: Tensor, random: torch.Generator) -> Tensor:
    """Every feature from one of two rows."""
    return torch.where(torch.rand(inputs.shape, generator=random).to(inputs) < 0.5, others, inputs)


def join_texts(text: Text, other: Text) -> Text:
    """The second half of the tokens replaced by the last ones of another text."""
    place = text.content.cumsum(1)  # from 1, among the tokens with content
    count = text.content.sum(1, keepdim=True)
    return _replaced(text, other, place > (count + 1) // 2, place - 1 - count)


def interleave_texts(text: Text, other: Text) -> Text:
    """Every second token replaced by that in the same place of another text."""
    place = text.content.cumsum(1) - 1
    return _replaced(text, other, place % 2 == 1, place)


def _replaced(text: Text, other: Text, lost: Tensor, place: Tensor) -> Text:
    """Tokens that are lost replaced by those in a place of the other text, from its end if < 0.

    Places are those among the tokens with content, beginning again where there are no more.
    """
    count = other.content.sum(1, keepdim=True)
    # those with content first, in their order
    order = (~other.content).long().argsort(dim=1, stable=True)
    given = other.ids.gather(1, order).gather(1, place % count.clamp(min=1))
    return text._replace(ids=torch.where(lost & text.content & (count > 0), given, text.ids))


#: Kinds by name: for inputs of any shape, for images, and for tokens.
FOR_ALL: dict[str, Joining] = {"features of two": join_features}
FOR_IMAGES: dict[str, Joining] = {
    "2 x 2 tiles": shuffle_tiles,
    "4 x 4 tiles": partial(shuffle_tiles, tiles=4),
    "halves of two": join_halves,
    "tiles of two": join_tiles,
}
FOR_TOKENS: dict[str, TokenJoining] = {
    "halves of two texts": join_texts,
    "tokens of two texts": interleave_texts,
}


def joinings(inputs: Tensor) -> dict[str, Joining]:
    """The kinds that fit inputs of numbers."""
    return FOR_IMAGES if inputs.ndim == 4 else FOR_ALL
