"""Running somebody's network: in evaluation mode, watched, and left as it was found."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qipf.errors import QIPFInputError


class NoProbabilities(TorchFunctionMode):
    """Watches one forward pass, to know, not guess, that its output is a softmax."""

    ACTIVATIONS = frozenset(
        {
            torch.softmax, torch.Tensor.softmax, nn.functional.softmax,
            torch.log_softmax, torch.Tensor.log_softmax, nn.functional.log_softmax,
            torch.sigmoid, torch.Tensor.sigmoid, nn.functional.sigmoid,
        }
    )  # fmt: skip

    def __init__(self, active: bool) -> None:
        super().__init__()
        self.active = active
        self.activated: list[tuple[Any, str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.active and func in self.ACTIVATIONS:
            self.activated.append((output, func.__name__))
        return output

    def refuse(self, logits: Tensor) -> None:
        """Refuse logits that are themselves the output of a softmax or sigmoid."""
        for output, name in self.activated:
            if output is logits:
                raise QIPFInputError(
                    f"The network ends in {name}: its output is activated, but the field needs "
                    "raw logits. Remove the activation, or pass layer=<the layer before it>."
                )


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; every module's own mode comes back afterwards."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def captured(net: nn.Module, layer: str, pool: Callable[[Any], Tensor]) -> Iterator[list[Tensor]]:
    """The pooled outputs of a layer while the network runs."""
    found: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        found.append(pool(output))

    handle = named_layer(net, layer).register_forward_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def named_layer(net: nn.Module, layer: str) -> nn.Module:
    """The layer by any of its names."""
    layers = {name: module for name, module in net.named_modules(remove_duplicate=False) if name}
    if layer in layers:
        return layers[layer]
    near = difflib.get_close_matches(str(layer), layers, n=3, cutoff=0.4) or list(layers)[:10]
    raise QIPFInputError(
        f"The network has no layer {layer!r}. Close: {', '.join(near) or 'none: it has no layers'}."
    )


def logits_of(output: Any) -> Tensor:
    """The logits in whatever a network returns."""
    found = output
    if isinstance(output, Mapping) and "logits" in output:
        found = output["logits"]
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise QIPFInputError(
            f"The network returns {type(output).__name__}, in which no logits were found. Return a "
            "tensor, a tuple that starts with one, a dict with 'logits', or an object with .logits."
        )
    if found.ndim != 2:
        raise QIPFInputError(
            f"The network's logits have shape {tuple(found.shape)}; (predictions, classes) is "
            "needed."
        )
    return found


def device_of(net: nn.Module) -> torch.device:
    """Where the network is; the CPU if it has no weights."""
    for tensor in (*net.parameters(), *net.buffers()):
        return tensor.device
    return torch.device("cpu")
