"""Rows from within a network: what its layers read, pooled to a few hundred numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qipf.errors import QIPFInputError
from qipf.forward import named_layer

#: Layers that compute; what one of them reads is the finished output of those before it.
COMPUTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

#: Most layers that are chosen when none are named.
MOST_LAYERS = 8

#: Widest row that a layer gives.
WIDEST = 512


@dataclass(frozen=True)
class Tap:
    """A place in the network: a layer's input, or its output."""

    layer: str
    side: str = "output"  # or "input"

    def __str__(self) -> str:
        return f"{self.layer} ({self.side})"


def pooled(value: Tensor) -> Tensor:  # (n, ...) -> (n, ≤ WIDEST)
    """One row an example. Maps are averaged over the finest grid that stays narrow enough, tokens
    over their places, and neighbouring numbers of what is still too wide.

    >>> pooled(torch.zeros(2, 32, 16, 16)).shape, pooled(torch.zeros(2, 7, 96)).shape
    (torch.Size([2, 512]), torch.Size([2, 96]))
    """
    if value.ndim == 3:
        value = value.mean(1)
    elif value.ndim >= 4:
        maps = value.flatten(3) if value.ndim > 4 else value
        channels, size = maps.shape[1], min(maps.shape[2:])
        fitting = [g for g in range(1, min(8, size) + 1) if channels * g * g <= WIDEST]
        value = functional.adaptive_avg_pool2d(maps, fitting[-1] if fitting else 1).flatten(1)
    rows = value.flatten(1).float()
    return rows if rows.shape[1] <= WIDEST else functional.adaptive_avg_pool1d(rows, WIDEST)


@contextmanager
def tapped(net: nn.Module, taps: Sequence[Tap]) -> Iterator[dict[Tap, Tensor]]:
    """The pooled rows at the taps while the network runs; each must run once a pass."""
    read: dict[Tap, Tensor] = {}

    def keep(tap: Tap, value: Any) -> None:
        value = value[0] if isinstance(value, (tuple, list)) and value else value
        if not isinstance(value, Tensor) or value.ndim < 2:
            raise QIPFInputError(
                f"{tap} is not a tensor of one row an example. Name other layers=[...]."
            )
        read[tap] = pooled(value.detach())

    handles = []
    try:
        for tap in taps:
            layer = named_layer(net, tap.layer)
            if tap.side == "input":
                hook = layer.register_forward_pre_hook(lambda _, x, tap=tap: keep(tap, x))
            else:
                hook = layer.register_forward_hook(lambda _, __, y, tap=tap: keep(tap, y))
            handles.append(hook)
        yield read
    finally:
        for handle in handles:
            handle.remove()


def chosen_taps(net: nn.Module, run: Any) -> tuple[Tap, ...]:
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
    return tuple(Tap(once[place], "input") for place in places)


def checked_taps(net: nn.Module, layers: Sequence[str]) -> tuple[Tap, ...]:
    """Taps at the outputs of the layers that a user names."""
    if isinstance(layers, str) or not layers:
        raise QIPFInputError(f"layers must be 'auto' or a list of layers' names, got {layers!r}.")
    for name in layers:
        named_layer(net, name)
    return tuple(Tap(name) for name in dict.fromkeys(layers))


def joined(parts: Sequence[dict[Tap, Tensor]]) -> dict[Tap, Tensor]:
    """Rows of consecutive batches as one."""
    return {tap: torch.cat([part[tap] for part in parts]) for tap in parts[0]}
