"""Rows from within a network: what its layers read, pooled to a few hundred numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qipf.errors import QIPFInputError
from qipf.network.forward import named_layer

#: Layers that compute; what one of them reads is the finished output of those before it.
COMPUTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

#: Most layers that are chosen when none are named.
MOST_LAYERS = 8

#: Widest row that a layer gives, and the finest grid that a map is averaged over.
WIDEST, FINEST = 512, 8


@dataclass(frozen=True)
class LayerSite:
    """A place in the network: a layer's input, or its output."""

    layer: str
    side: str = "output"  # or "input"

    def __str__(self) -> str:
        return f"{self.layer} ({self.side})"


Rows = dict[LayerSite, Tensor]


def pooled(value: Tensor, channels_first: bool = False) -> Tensor:  # (n, ...) -> (n, ≤ WIDEST)
    """One row an example. Maps are averaged over the finest grid that stays narrow enough, tokens
    over their places, and neighbouring numbers of what is still too wide.

    Three dimensions are (n, tokens, channels), or with `channels_first` (n, channels, places).

    >>> pooled(torch.zeros(2, 32, 16, 16)).shape, pooled(torch.zeros(2, 7, 96)).shape
    (torch.Size([2, 512]), torch.Size([2, 96]))
    """
    if value.ndim == 3 and channels_first:
        grid = _finest(value.shape[1], 1, value.shape[2])
        value = functional.adaptive_avg_pool1d(value, grid)
    elif value.ndim == 3:
        value = value.mean(1)
    elif value.ndim >= 4:
        maps = value.flatten(3) if value.ndim > 4 else value
        grid = _finest(maps.shape[1], 2, min(maps.shape[2:]))
        value = functional.adaptive_avg_pool2d(maps, grid)
    rows = value.flatten(1).float()
    if rows.shape[1] <= WIDEST:
        return rows
    return functional.adaptive_avg_pool1d(rows[:, None], WIDEST)[:, 0]


def _finest(channels: int, axes: int, size: int) -> int:
    fitting = [g for g in range(1, min(FINEST, size) + 1) if channels * g**axes <= WIDEST]
    return fitting[-1] if fitting else 1


@contextmanager
def recorded(net: nn.Module, sites: Sequence[LayerSite]) -> Iterator[dict[LayerSite, list[Tensor]]]:
    """The pooled rows at the sites while the network runs, one entry each time a layer runs."""
    read: dict[LayerSite, list[Tensor]] = {site: [] for site in sites}

    def keep(site: LayerSite, layer: nn.Module, value: Any) -> None:
        value = value[0] if isinstance(value, (tuple, list)) and value else value
        if not isinstance(value, Tensor) or value.ndim < 2:
            raise QIPFInputError(
                f"{site} is not a tensor of one row an example. Name other layers=[...]."
            )
        # copied: an activation in place may overwrite the layer's output afterwards
        rows = pooled(value.detach(), channels_first=type(layer).__name__.endswith("1d"))
        read[site].append(rows.clone())

    def keep_input(site: LayerSite) -> Callable[..., None]:
        return lambda layer, inputs: keep(site, layer, inputs)

    def keep_output(site: LayerSite) -> Callable[..., None]:
        return lambda layer, _inputs, output: keep(site, layer, output)

    handles = []
    try:
        for site in sites:
            layer = named_layer(net, site.layer)
            if site.side == "input":
                handles.append(layer.register_forward_pre_hook(keep_input(site)))
            else:
                handles.append(layer.register_forward_hook(keep_output(site)))
        yield read
    finally:
        for handle in handles:
            handle.remove()


def chosen_sites(net: nn.Module, run: Callable[[], object]) -> tuple[LayerSite, ...]:
    """The inputs of at most `MOST_LAYERS` computing layers, evenly over the depth, last included.

    `run` passes a small batch through the network. The first computing layer reads the input
    itself and is left out, and so is a layer that runs more than once in a pass.
    """
    order: list[str] = []
    handles = [
        layer.register_forward_pre_hook(lambda _, __, name=name: order.append(name))
        for name, layer in net.named_modules()
        if name and isinstance(layer, COMPUTING)
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    once = [name for name in order[1:] if order.count(name) == 1]
    if not once:
        raise QIPFInputError(
            "No inner layers were found in this network (dense or convolutional ones after the "
            "first). Name them: layers=[...], or use qipf.wrap(net), which judges by the logits."
        )
    count = min(MOST_LAYERS, len(once))
    places = [round(i * (len(once) - 1) / max(1, count - 1)) for i in range(count)]
    places = [len(once) - 1] if count == 1 else places
    return tuple(LayerSite(once[place], "input") for place in places)


def named_sites(net: nn.Module, layers: Sequence[str]) -> tuple[LayerSite, ...]:
    """Sites at the outputs of the layers that a user names."""
    if not isinstance(layers, (list, tuple)) or not layers:
        raise QIPFInputError(f"layers must be 'auto' or a list of layers' names, got {layers!r}.")
    for name in layers:
        named_layer(net, name)
    return tuple(LayerSite(name) for name in dict.fromkeys(layers))


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of consecutive batches as one."""
    return {site: torch.cat([part[site] for part in parts]) for site in parts[0]}
