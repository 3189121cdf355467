"""Widths of rows that follow from the layers of a network, without running it.

A file that does not fit its network is thereby noticed when it is loaded. Only what is certain is
given: where the input could have any shape, the width is not known.
"""

from typing import Any

from torch import nn

from qipf.network.features import LayerSite
from qipf.network.forward import named_layer
from qipf.network.pooling import FINEST, WIDEST

#: Convolutions, and the axes that a grid divides.
_CONVOLUTIONS = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 2}

#: Layers that leave the number of logits as it is.
_SAME = (nn.Identity, nn.Dropout, nn.Softmax, nn.LogSoftmax, nn.ReLU)


def logit_width(net: nn.Module) -> int | None:
    """Number of logits of a dense layer, or of a sequence that ends in one; None if not known.

    >>> logit_width(nn.Sequential(nn.Flatten(), nn.Linear(8, 3), nn.Dropout()))
    3
    """
    if isinstance(net, nn.Linear):
        return net.out_features
    if not isinstance(net, nn.Sequential):
        return None
    last = [layer for layer in net if not isinstance(layer, _SAME)]
    return logit_width(last[-1]) if last else None


def row_widths(net: nn.Module, site: LayerSite, pooling: str) -> set[int] | None:
    """Widths that pooled rows at a site may have; None if they are not known.

    `pooling` is ``"mean"``, ``"flatten"``, or ``"grid"`` for that of `LayeredQIPF`.

    >>> net = nn.Sequential(nn.Linear(8, 600), nn.ReLU(), nn.Linear(600, 3))
    >>> row_widths(net, LayerSite("2", "input"), "grid"), row_widths(net, LayerSite("0"), "mean")
    ({512}, {600})
    """
    layer = named_layer(net, site.layer)
    convolution = next((kind for kind in _CONVOLUTIONS if isinstance(layer, kind)), None)
    if convolution is not None:
        channels: Any = layer.in_channels if site.is_input else layer.out_channels
    elif isinstance(layer, nn.Linear) and not _has_maps(net):
        channels = layer.in_features if site.is_input else layer.out_features
    else:
        return None
    if pooling == "mean":
        return {channels}
    if pooling == "flatten":
        return None
    if convolution is None:
        widths = {min(channels, WIDEST)}
    else:
        cells = [side ** _CONVOLUTIONS[convolution] for side in range(1, FINEST + 1)]
        widths = {min(channels * n, WIDEST) for n in cells if n == 1 or channels * n <= WIDEST}
    return {2 * width for width in widths} if site.of_several_runs else widths


def _has_maps(net: nn.Module) -> bool:
    """Whether a dense layer may read maps, of which rows are not as wide as the layer."""
    return any(isinstance(layer, tuple(_CONVOLUTIONS)) for layer in net.modules())
