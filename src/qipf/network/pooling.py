"""One row per example of what a layer reads or gives: means of maps or tokens, or every number."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qipf.field.engines.products import product
from qipf.network import cell_kernel

#: Widest row that a layer gives, and the finest grid that a map is averaged over.
WIDEST, FINEST = 512, 8

#: Numbers of maps for which a CPU starts operations longer than it computes.
SMALL_MAPS = 2**15

#: Places of maps whose unequal cells a CPU averages by a product with all places.
FEW_PLACES = 256

#: A layer, its input or output, and the attention mask if any -> one row per example, (n, d).
Pooling = Callable[[nn.Module, Any, Tensor | None], Tensor]


def grid_pooling(
    layer: nn.Module, value: Any, mask: Tensor | None = None
) -> Tensor:  # (n, ...) -> (n, ≤ WIDEST)
    """One row of at most `WIDEST` numbers per example, in float32.

    Maps are averaged over the finest grid that stays narrow enough, tokens over their places
    without padding, and neighbouring numbers of what is still too wide.

    >>> import torch
    >>> shapes = (2, 32, 16, 16), (2, 7, 96)
    >>> [tuple(grid_pooling(nn.Identity(), torch.zeros(shape)).shape) for shape in shapes]
    [(2, 512), (2, 96)]
    """
    value = first_tensor(value).detach()
    if value.ndim == 3 and channels_first(layer):
        grid = _finest(value.shape[1], 1, value.shape[2])
        value = functional.adaptive_avg_pool1d(value, grid)
    elif value.ndim == 3:
        value = _token_mean(value, mask)
    elif value.ndim >= 4:
        maps = value.flatten(3) if value.ndim > 4 else value
        value = cell_means(maps, _finest(maps.shape[1], 2, min(maps.shape[2:])))
    rows = value.flatten(1).float()
    if rows.shape[1] <= WIDEST:
        return rows
    # in a graph by an operation that ONNX Runtime has for no rows too
    if rows.shape[1] % WIDEST == 0 and not torch.compiler.is_compiling():
        return _last_mean(rows.unflatten(1, (WIDEST, -1)))
    return functional.adaptive_avg_pool1d(rows[:, None], WIDEST)[:, 0]


def cell_means(maps: Tensor, grid: int) -> Tensor:  # (n, C, H, W) -> (n, C, grid, grid)
    """As `adaptive_avg_pool2d`, several times as fast for large cells of equal size.

    That has one thread of a GPU for a cell, and adds up one number at a time on a CPU.

    >>> cell_means(torch.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 2.5000,  4.5000],
              [10.5000, 12.5000]]]])
    """
    if torch.compiler.is_compiling():
        return functional.adaptive_avg_pool2d(maps, grid)
    height, width = maps.shape[2:]
    equal = not (height % grid or width % grid)
    small = not maps.is_cuda and maps.numel() <= SMALL_MAPS
    if equal and cell_kernel.usable(maps, grid):
        found = cell_kernel.cell_means(maps, grid)
        if found is not None:
            return found
    if small:
        return maps.mean((2, 3), True) if grid == 1 else functional.adaptive_avg_pool2d(maps, grid)
    dtype = torch.float64 if maps.dtype == torch.float64 else torch.float32
    few = height * width <= FEW_PLACES and maps.dtype == torch.float32
    if grid > 1 and (equal or few) and _exact_products(maps):
        bands = grid if equal else 1  # of whole rows of the map, with a row of cells each
        shares = _shares(height // bands, width, grid // bands, grid).to(dtype)
        places = maps.to(dtype).reshape(-1, shares.shape[1])
        return product(places, shares).view(*maps.shape[:2], grid, grid)
    if grid == 1 or not equal:
        return functional.adaptive_avg_pool2d(maps, grid)
    # whole rows of the map are added up first, which is most of the work
    columns = maps.to(dtype).unflatten(2, (grid, -1)).sum(3)
    return columns.unflatten(3, (grid, width // grid)).mean(-1) / (height // grid)


def _exact_products(values: Tensor) -> bool:
    """Whether products are computed on a CPU and in full precision."""
    return values.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


@cache
def _shares(height: int, width: int, rows: int, columns: int) -> Tensor:  # (cells, H W)
    """Shares of the places of a map in the means of its cells, which may overlap."""
    along = []
    for size, number in ((height, rows), (width, columns)):
        places = torch.eye(size, dtype=torch.float32, device="cpu")
        along.append(functional.adaptive_avg_pool1d(places, number))
    return torch.kron(*along).T.contiguous()


def _last_mean(values: Tensor) -> Tensor:  # (..., q) -> (...)
    if not _exact_products(values):
        return values.mean(-1)
    # several times as fast for few numbers
    return values @ values.new_full(values.shape[-1:], 1 / values.shape[-1])


def _finest(channels: int, axes: int, size: int) -> int:
    fitting = [g for g in range(1, min(FINEST, size) + 1) if channels * g**axes <= WIDEST]
    return fitting[-1] if fitting else 1


def pooled_features(value: Tensor) -> Tensor:  # (n, ...) -> (n, ≤ WIDEST)
    """One row per example: maps (n, channels, ...) and tokens (n, tokens, d) are averaged."""
    return grid_pooling(nn.Identity(), value)


def mean_pooling(
    layer: nn.Module, value: Any, mask: Tensor | None = None
) -> Tensor:  # (n, ...) -> (n, channels)
    """Averages over positions: everything after the channels, or the tokens of (n, tokens, d).

    Padding, where the mask is 0, is left out.
    """
    value = first_tensor(value)
    if value.ndim == 2:
        return value
    if value.ndim == 3 and not channels_first(layer):
        return _token_mean(value, mask)
    return value.flatten(2).mean(2)


def _token_mean(value: Tensor, mask: Tensor | None) -> Tensor:  # (n, tokens, d) -> (n, d)
    if value.is_nested:  # without padding, as nn.TransformerEncoder passes texts on
        return torch.stack([tokens.mean(0) for tokens in value.unbind()])
    if mask is None or mask.shape != value.shape[:2]:
        return value.mean(1)
    seen = mask.bool()[..., None]
    return torch.where(seen, value, 0.0).sum(1) / seen.sum(1).clamp(min=1)


def pooled_runs(rows: list[Tensor]) -> Tensor:  # (n, d) of each run -> (n, 2 d)
    """Mean and standard deviation of the runs of a layer in a pass, of any number of them.

    >>> pooled_runs([torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, 5.0]])])
    tensor([[2., 5., 1., 0.]])
    """
    runs = torch.stack(rows)
    mean = runs.mean(0)
    # in float64, where squares stay in range
    length = torch.linalg.vector_norm(runs - mean, dim=0, dtype=torch.float64)
    return torch.cat([mean, (length / len(rows) ** 0.5).to(mean)], 1)


def flatten_pooling(
    _layer: nn.Module, value: Any, _mask: Tensor | None = None
) -> Tensor:  # (n, ...) -> (n, d)
    """Every number."""
    return first_tensor(value).flatten(1)


def channels_first(layer: nn.Module) -> bool:
    """Whether three dimensions at this layer are (n, channels, places), not (n, tokens, d)."""
    return type(layer).__name__.endswith("1d")


class NotRowsError(TypeError):
    """A layer gives something that is not a tensor with one entry per example."""


def first_tensor(value: Any) -> Tensor:  # (n, ...) of at least two dimensions
    """What a layer reads or gives, the first part of a tuple; `NotRowsError` if it has no rows."""
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    if not isinstance(value, Tensor) or value.ndim == 0:
        raise NotRowsError(f"{type(value).__name__}, not a tensor with one row per example")
    return value[:, None] if value.ndim == 1 else value
