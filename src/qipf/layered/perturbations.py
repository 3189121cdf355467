"""Perturbed copies of training inputs, to learn from a network's errors on unseen inputs.

A network rarely errs on its training inputs. It has not seen their perturbed copies, whose labels
are known. Each family of perturbations has a strength t between 0 and 1. `strengths` finds those at
which the network keeps given shares of its accuracy, so that the same shares suit every network.
None of the families is one of the benchmark's corruptions. `qipf.layered.families` chooses those
that fit a network's inputs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from qipf.layered.effort import FULL

#: Shares of the accuracy above chance that the network keeps when perturbed.
KEPT = (0.9, 0.7, 0.5)

Perturbation = Callable[[Tensor, float, torch.Generator], Tensor]
TokenPerturbation = Callable[["Text", float, torch.Generator], "Text"]


def noise(inputs: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Gaussian noise, up to twice the deviation of the images, or of each feature of a table."""
    drawn = torch.randn(inputs.shape, generator=random).to(inputs)
    deviation = inputs.std(0, correction=0) if inputs.ndim == 2 else inputs.std()
    return inputs + 2 * t * deviation * drawn


def drop(inputs: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of the features, or of an image's pixels, replaced by their mean."""
    pixels = (len(inputs), 1, *inputs.shape[2:]) if inputs.ndim > 2 else inputs.shape
    lost = torch.rand(pixels, generator=random).to(inputs) < t
    return torch.where(lost, _mean(inputs), inputs)


def blur(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A Gaussian blur, as wide as a quarter of the image at most."""
    for axis in (2, 3):
        images = images.movedim(axis, -1) @ _smoothing(images.shape[axis], t).to(images)
        images = images.movedim(-1, axis)
    return images


def hole(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A square of side t at a random place, filled with the mean."""
    inside = torch.ones(1, dtype=torch.bool, device=images.device)
    for axis in (2, 3):
        size = images.shape[axis]
        start = torch.rand(len(images), 1, generator=random) * (1 - t) * size
        line = torch.arange(size)
        within = ((line >= start) & (line < start + t * size)).to(images.device)
        inside = inside & within.view(len(images), 1, *((-1, 1) if axis == 2 else (1, -1)))
    return torch.where(inside, _mean(images), images)


def shift(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Moved by t/2 of the image in a random direction; pixels wrap around."""
    n, _, height, width = images.shape
    angle = 2 * torch.pi * torch.rand(n, 1, generator=random)
    rows = (torch.arange(height) + (t / 2 * height * angle.sin()).round().long()) % height
    columns = (torch.arange(width) + (t / 2 * width * angle.cos()).round().long()) % width
    which = torch.arange(n)[:, None, None]
    moved = images.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


def fade(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of each image's contrast lost."""
    grey = images.mean((1, 2, 3), keepdim=True)
    return grey + (1 - t) * (images - grey)


def tone(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Middle tones up to six powers lighter or darker; the lightest and the darkest stay."""
    darkest, lightest = images.min(), images.max()
    power = torch.full((len(images), 1, 1, 1), 1 + 5 * t)
    power = torch.where(torch.rand(power.shape, generator=random) < 0.5, power, 1 / power)
    spread = (lightest - darkest).clamp(min=torch.finfo(images.dtype).tiny)
    return darkest + spread * ((images - darkest) / spread) ** power.to(images)


def warp(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """Smooth random displacements, of at most about a quarter of the image."""
    drawn = torch.randn(len(images), 2, 4, 4, generator=random).to(images)
    pulled = functional.interpolate(
        drawn, size=images.shape[2:], mode="bicubic", align_corners=True
    )
    same = torch.eye(2, 3).to(images).expand(len(images), 2, 3)
    places = functional.affine_grid(same, list(images.shape), align_corners=False)
    places = places + t / 2 * pulled.movedim(1, 3)
    return functional.grid_sample(images, places, padding_mode="border", align_corners=False)


def coarsen(images: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of the resolution lost; at least two by two pixels are left."""
    height, width = (max(2, round((1 - t) * side)) for side in images.shape[2:])
    few = functional.adaptive_avg_pool2d(images, (height, width))
    return functional.interpolate(few, size=images.shape[2:], mode="nearest")


def dropout(values: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of the numbers set to zero; for the outputs of an embedding layer."""
    return torch.where(torch.rand(values.shape, generator=random).to(values) < t, 0.0, values)


class Text(NamedTuple):
    """Tokens, which of them the network sees, and which carry content."""

    ids: Tensor  # (n, tokens) integers
    seen: Tensor  # (n, tokens) booleans, false for padding
    content: Tensor  # (n, tokens) booleans, false for padding and for tokens of every text


def text_of(ids: Tensor, seen: Tensor) -> Text:
    """Tokens with their content: those seen, without a first or last token common to all texts.

    Such tokens mark the start and the end of a text, and none of the texts is without them.

    >>> ids = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
    >>> text_of(ids, ids > 0).content.int()
    tensor([[0, 1, 1, 0],
            [0, 1, 0, 0]], dtype=torch.int32)
    """
    seen = seen.bool()
    content, lines = seen.clone(), torch.arange(len(ids), device=ids.device)
    places = torch.arange(ids.shape[1], device=ids.device)
    first = torch.where(seen, places, ids.shape[1] - 1).amin(1)
    last = torch.where(seen, places, 0).amax(1)
    for place in (first, last):
        ends = ids[lines, place]
        if len(ids) > 1 and bool((ends == ends[0]).all()):
            content[lines, place] = False
    return Text(ids, seen, content)


def drop_tokens(text: Text, t: float, random: torch.Generator) -> Text:
    """A share t of the tokens removed; the others move up, and padding follows them.

    One token of each text stays. Padding is the most common last token, which the network does not
    see if it has an attention mask.
    """
    ids, seen, content = text
    lost = _some(content, t, random) & (content.cumsum(1) > 1)
    order = lost.long().argsort(dim=1, stable=True)
    ids, seen, content, lost = (part.gather(1, order) for part in (ids, seen, content, lost))
    return Text(torch.where(lost, text.ids[:, -1].mode()[0], ids), seen & ~lost, content & ~lost)


def swap_tokens(text: Text, t: float, random: torch.Generator) -> Text:
    """A share t of the tokens of each text in another order."""
    moved = _some(text.content, t, random)
    places = torch.arange(moved.shape[1], device=moved.device).expand_as(moved)
    drawn = torch.rand(moved.shape, generator=random).to(moved.device)
    # those that move come first, in their own order and in a random one; the rest stay in order
    target = torch.where(moved, places, places + moved.shape[1]).argsort(1)
    source = torch.where(moved, drawn, 1.0 + places).argsort(1)
    ids = text.ids.scatter(1, target, text.ids.gather(1, source))
    return text._replace(ids=ids)


def replace_tokens(text: Text, t: float, random: torch.Generator) -> Text:
    """A share t of the tokens replaced by tokens drawn from all texts."""
    pool = text.ids[text.content]
    if not len(pool):
        return text
    drawn = pool[torch.randint(len(pool), text.ids.shape, generator=random).to(pool.device)]
    return text._replace(ids=torch.where(_some(text.content, t, random), drawn, text.ids))


def _some(content: Tensor, t: float, random: torch.Generator) -> Tensor:
    """A share t of the tokens with content, at random."""
    return content & (torch.rand(content.shape, generator=random).to(content.device) < t)


#: Families by name: for inputs of any shape, and for images (n, C, H, W) too.
FOR_ALL: dict[str, Perturbation] = {"noise": noise, "drop": drop}
ONLY_IMAGES = (blur, hole, shift, fade, tone, warp, coarsen)
FOR_IMAGES = {**FOR_ALL, **{perturb.__name__: perturb for perturb in ONLY_IMAGES}}


#: Families by name: for tokens, and for the outputs of the layer that embeds them.
FOR_TOKENS: dict[str, TokenPerturbation] = {
    "drop tokens": drop_tokens,
    "swap tokens": swap_tokens,
    "replace tokens": replace_tokens,
}
FOR_EMBEDDINGS: dict[str, Perturbation] = {"embedding noise": noise, "embedding dropout": dropout}


def families(inputs: Tensor) -> dict[str, Perturbation]:
    """The families that fit inputs of numbers."""
    return FOR_IMAGES if inputs.ndim == 4 else FOR_ALL


def perturbed(inputs: Tensor, perturb: Perturbation, t: float, seed: int) -> Tensor:
    """Inputs perturbed by one family, the same for the same seed, within the inputs' range.

    The range is that of all images, or of each feature of a table.
    """
    random = torch.Generator().manual_seed(seed)
    wide = inputs if inputs.dtype == torch.float64 else inputs.float()  # half is not enough
    lowest, highest = (wide.amin(0), wide.amax(0)) if wide.ndim == 2 else (wide.min(), wide.max())
    found = perturb(wide, t, random).clamp(lowest, highest)
    return (found if inputs.is_floating_point() else found.round()).to(inputs.dtype)


def strengths(
    accuracy: Callable[[float], float],
    chance: float,
    kept: Sequence[float] = KEPT,
    halvings: int = FULL.halvings,
) -> Iterator[float]:
    """For each share in `kept`, the strength at which the accuracy above chance falls to it.

    `accuracy` is that of the network at a strength. No strength is tried twice. The search takes
    as many bisection steps as there are `halvings`.
    """
    accuracy = cache(accuracy)
    clean = accuracy(0.0)
    for share in kept:
        wanted = chance + share * (clean - chance)
        low, high = 0.0, 1.0
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (middle, high) if accuracy(middle) >= wanted else (low, middle)
        yield (low + high) / 2


def _mean(inputs: Tensor) -> Tensor:
    """The mean of each channel, or of each feature."""
    axes = (0, *range(2, inputs.ndim))
    return inputs.mean(axes, keepdim=True)


def _smoothing(size: int, t: float) -> Tensor:  # (size, size), columns sum to one
    line = torch.arange(size, dtype=torch.float64)
    width = max(t * size / 4, 1e-3)
    return torch.softmax(-((line[:, None] - line) ** 2) / (2 * width * width), dim=0)
