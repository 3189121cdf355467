"""The families of perturbations, and the kinds of pseudo-outliers, that fit a network's inputs.

Numbers are perturbed as images or tables are. Tokens, that is integers (n, tokens) which an
embedding layer reads, are dropped, swapped and replaced, and the outputs of that layer get noise
and dropout.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qipf.export.program import Example
from qipf.layered.outliers import FOR_TOKENS as JOINED_TOKENS
from qipf.layered.outliers import Joining, TokenJoining, joinings
from qipf.layered.perturbations import (
    FOR_ALL,
    FOR_EMBEDDINGS,
    FOR_TOKENS,
    Perturbation,
    Text,
    TokenPerturbation,
    families,
    perturbed,
    swap_tokens,
    text_of,
)
from qipf.network.features import EMBEDDING, LayerSite, attention_mask, hooked
from qipf.network.forward import call, device_of, named_layer

#: Inputs that are no tokens or numbers of their own.
AUXILIARY = ("attention_mask", "token_type_ids", "position_ids")

#: Hooks that perturb within the network, for `qipf.network.features.hooked`.
Hooks = Mapping[LayerSite, Callable[..., Any]]

#: Inputs, a strength and a seed -> perturbed inputs, and hooks to run the network with.
Family = Callable[[Example, float, int], tuple[Example, Hooks]]

#: Inputs, others of other classes row by row, and a seed -> pseudo-outliers.
Kind = Callable[[Example, Example, int], Example]

#: Distance of the seeds of two inputs.
STRIDE = 7919


class Tokens(NamedTuple):
    """The input of tokens, and the layer that embeds them."""

    name: str
    layer: str
    padding: int | None  # the token that the layer takes for padding


def fitting_families(net: nn.Module, example: Example) -> dict[str, Family]:
    """Families by name; none if there is neither an input of numbers nor one of tokens."""
    found: dict[str, Family] = {}
    for part in _numbers(example).values():
        for name, perturb in families(part).items():
            found[name] = partial(_perturbed_numbers, perturb)
    tokens = tokens_of(net, example)
    if tokens is not None:
        in_bags = isinstance(named_layer(net, tokens.layer), nn.EmbeddingBag)
        for name, change in FOR_TOKENS.items():
            if change is not swap_tokens or not in_bags:  # a bag has no order
                found[name] = partial(_perturbed_tokens, change, tokens)
        for name, perturb in FOR_EMBEDDINGS.items():
            found[name] = partial(_perturbed_embedding, perturb, LayerSite(tokens.layer))
    return found


def fitting_outliers(net: nn.Module, example: Example) -> dict[str, Kind]:
    """Kinds of pseudo-outliers by name; none if there are neither numbers nor tokens."""
    found: dict[str, Kind] = {}
    for part in _numbers(example).values():
        for name, join in joinings(part).items():
            found[name] = partial(_joined_numbers, join)
    tokens = tokens_of(net, example)
    if tokens is not None:
        for name, change in JOINED_TOKENS.items():
            found[name] = partial(_joined_tokens, change, tokens)
    return found


def tokens_of(net: nn.Module, example: Example) -> Tokens | None:
    """The input that the embedding layer with the most entries reads as it is, if any."""
    device = device_of(net)
    few = example.take(slice(4)).mapped(lambda part: part.to(device))
    found: dict[int, Tokens] = {}

    def look(name: str, layer: nn.Embedding | nn.EmbeddingBag, inputs: tuple[Any, ...]) -> None:
        read = inputs[0] if inputs else None
        for key, part in few.tensors.items():
            if key in AUXILIARY or part.ndim != 2 or not isinstance(read, Tensor):
                continue
            if read.shape == part.shape and read.data_ptr() == part.data_ptr():
                found[layer.num_embeddings] = Tokens(key, name, layer.padding_idx)

    layers = {
        LayerSite(name, "input"): partial(look, name)
        for name, layer in net.named_modules()
        if isinstance(layer, EMBEDDING)
    }
    if layers:
        with hooked(net, layers):
            call(net, few, copy=False)  # an input is recognised by its memory
    return found[max(found)] if found else None


def _numbers(example: Example) -> dict[str, Tensor]:
    """Inputs of numbers with a row for each example; others are shared and stay as they are.

    Images in bytes (n, C, H, W) are numbers too.
    """
    count = example.rows
    return {
        name: part
        for name, part in example.tensors.items()
        if part.is_floating_point() or (part.dtype == torch.uint8 and part.ndim == 4)
        if part.ndim > 1 and len(part) == count
        if name not in AUXILIARY
    }


def _perturbed_numbers(
    perturb: Perturbation, example: Example, t: float, seed: int
) -> tuple[Example, Hooks]:
    """Every input that the family fits, perturbed."""
    changed = dict(example.tensors)
    for place, (name, part) in enumerate(_numbers(example).items()):
        if part.ndim == 4 or perturb in FOR_ALL.values():
            changed[name] = perturbed(part, perturb, t, seed + place * STRIDE)
    return example.filled(changed.values()), {}


def _joined_numbers(join: Joining, example: Example, other: Example, seed: int) -> Example:
    """Every input that the kind fits, joined with that of the other example."""
    changed = dict(example.tensors)
    for place, (name, part) in enumerate(_numbers(example).items()):
        if join in joinings(part).values():
            random = torch.Generator().manual_seed(seed + place * STRIDE)
            changed[name] = join(part, other.tensors[name], random)
    return example.filled(changed.values())


def _joined_tokens(
    join: TokenJoining, tokens: Tokens, example: Example, other: Example, _seed: int
) -> Example:
    changed = dict(example.tensors)
    changed[tokens.name] = join(_text(tokens, example)[0], _text(tokens, other)[0]).ids
    return example.filled(changed.values())


def _text(tokens: Tokens, example: Example) -> tuple[Text, Tensor | None]:
    """The tokens, and the mask that says which of them the network sees, if there is one."""
    ids, mask = example.tensors[tokens.name], attention_mask(example)
    if mask is not None and mask.shape == ids.shape:
        return text_of(ids, mask != 0), mask
    return text_of(ids, ids != tokens.padding if tokens.padding is not None else ids == ids), None


def _perturbed_tokens(
    perturb: TokenPerturbation, tokens: Tokens, example: Example, t: float, seed: int
) -> tuple[Example, Hooks]:
    changed = dict(example.tensors)
    whole, mask = _text(tokens, example)
    text = perturb(whole, t, torch.Generator().manual_seed(seed))
    changed[tokens.name] = text.ids
    if mask is not None:
        changed["attention_mask"] = text.seen.to(mask.dtype)
    return example.filled(changed.values()), {}


def _perturbed_embedding(
    perturb: Perturbation, site: LayerSite, example: Example, t: float, seed: int
) -> tuple[Example, Hooks]:
    random = torch.Generator().manual_seed(seed)
    return example, {site: lambda _layer, _inputs, output: perturb(output, t, random)}
