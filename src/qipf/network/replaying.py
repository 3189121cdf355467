"""Whether the calls of a network can be replayed from a CUDA graph, which runs none of its Python.

A network qualifies if everything that its modules hold is a module, a tensor or something that
cannot change: a number, a text, a function. A call may not change it, and nobody else may have
hooks in the network. ``QIPF_CUDA_GRAPHS=0`` in the environment turns graphs off.
"""

import os
from itertools import islice
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from qipf.network.forward import parts_of

#: What a module may hold beside its tensors and modules.
CONSTANTS = (
    type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device,
    torch.memory_format, torch.layout, FunctionType, BuiltinFunctionType,
)  # fmt: skip

#: Attributes that every module has first, and a list in convolutions of earlier versions.
FIRST = tuple(nn.Module().__dict__)
OWN = frozenset(FIRST) | {"_reversed_padding_repeated_twice"}


def allowed() -> bool:
    """Whether CUDA graphs are turned on."""
    return os.environ.get("QIPF_CUDA_GRAPHS", "1") != "0"


class NetworkState(NamedTuple):
    """Everything that the calls of a network depend on, as far as Python can see it."""

    versions: tuple[tuple[int, int], ...] = ()  # of weights and buffers
    others: tuple[object, ...] = ()  # modules and what they hold, by identity, and settings
    held: tuple[object, ...] = ()  # what the state names by identity
    weights: tuple[Tensor, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal states."""
        return self.versions, self.others

    def memory(self) -> tuple[object, ...]:
        """What keeps the memory of the weights, also if they are moved elsewhere later."""
        return tuple(part.untyped_storage() for part in self.weights)


def network_state(net: nn.Module) -> NetworkState | None:
    """The state of a network in evaluation mode; None if a graph could miss a part of it.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ELU())
    >>> before = network_state(net)
    >>> net[1].alpha = 2.0
    >>> network_state(net).key == before.key
    False
    """
    if torch_module._has_any_global_hook() or torch.is_autocast_enabled("cuda"):
        return None
    parts = parts_of(net)
    modules = parts.modules.values()
    held: list[object] = [*modules]
    for module in modules:
        own = module.__dict__
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            return None
        held += islice(own.values(), len(FIRST), None)  # tensors are in the versions
    flags = torch.backends.cudnn
    settings = (flags.enabled, flags.benchmark, flags.deterministic)
    others = (tuple(map(id, held)), settings)
    return NetworkState(parts.versions, others, tuple(held), tuple(parts.tensors))


def is_constant(net: nn.Module) -> bool:
    """Whether its modules hold nothing that could change unseen.

    >>> net = nn.Sequential(nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1))
    >>> is_constant(net)
    True
    >>> net.scales = [1.0, 2.0]
    >>> is_constant(net)
    False
    """
    return all(
        tuple(islice(module.__dict__, len(FIRST))) == FIRST
        and all(name in OWN or _is_constant(value) for name, value in module.__dict__.items())
        for module in parts_of(net).modules.values()
    )


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    return isinstance(value, CONSTANTS)
