"""Logits of a network, and the rows of its layers, for many inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from qipf.network.features import LayerSite, Rows, run_once
from qipf.network.forward import device_of

#: Inputs that pass through the network at once.
ROWS = 1000


def passed(net: nn.Module, inputs: Tensor, sites: Sequence[LayerSite]) -> tuple[Tensor, Rows]:
    """Logits, and the rows at the sites, of one forward pass."""
    return run_once(net, partial(net, inputs), sites)


def in_parts(net: nn.Module, inputs: Tensor, sites: Sequence[LayerSite]) -> tuple[Tensor, Rows]:
    """As `passed`, on the network's device, `ROWS` inputs at a time."""
    device = device_of(net)
    parts = [passed(net, part.to(device), sites) for part in inputs.split(ROWS)]
    rows = {site: torch.cat([found[site] for _, found in parts]) for site in sites}
    return torch.cat([logits for logits, _ in parts]), rows
