"""A network run over inputs, with what its layers said on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qipf.errors import QIPFInputError
from qipf.network.features import LayerSite, Rows, joined, recorded
from qipf.network.forward import device_of, logits_of

#: Inputs that pass through the network at once.
ROWS = 1000


def passed(net: nn.Module, inputs: Tensor, sites: Sequence[LayerSite]) -> tuple[Tensor, Rows]:
    """Logits, and the rows at the sites, of one pass."""
    with recorded(net, sites) as read:
        logits = logits_of(net(inputs))
    for site, found in read.items():
        if len(found) != 1:
            raise QIPFInputError(
                f"{site} ran {len(found)} times in one pass; a field needs a layer that runs once, "
                "in a network that is not compiled or traced. Name other layers=[...]."
            )
        if found[0].shape[0] != logits.shape[0]:
            raise QIPFInputError(
                f"{site} gives {found[0].shape[0]} rows for {logits.shape[0]} predictions; the "
                "examples must come first. Name other layers=[...]."
            )
    return logits, {site: found[0] for site, found in read.items()}


def in_parts(net: nn.Module, inputs: Tensor, sites: Sequence[LayerSite]) -> tuple[Tensor, Rows]:
    """As `passed`, where the network is, `ROWS` inputs at a time."""
    device = device_of(net)
    parts = [passed(net, part.to(device), sites) for part in inputs.split(ROWS)]
    return torch.cat([logits for logits, _ in parts]), joined([rows for _, rows in parts])
