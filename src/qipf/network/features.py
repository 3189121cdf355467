"""Rows from within a network: inputs and outputs of its layers, pooled to one row per example."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qipf.errors import QIPFInputError
from qipf.export.program import Example
from qipf.field.engines.products import product
from qipf.network import cell_kernel
from qipf.network.forward import call, device_of, logits_of, named_layer
from qipf.network.tasks import single_logits

#: Layers that compute; the input of one of them is the finished output of those before it.
COMPUTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

#: Layers that compute too; a computing layer after one of them does not read the input itself.
RECURRENT = (nn.RNNBase, nn.RNNCellBase)

#: Layers whose output is the input itself, in numbers.
EMBEDDING = (nn.Embedding, nn.EmbeddingBag)

#: Most layers that are chosen when none are named.
MOST_LAYERS = 8

#: Widest row that a layer gives, and the finest grid that a map is averaged over.
WIDEST, FINEST = 512, 8

#: Most inputs that pass through the network at once; and on a CPU, where the parts are of equal
#: length, about how many numbers a part has, and how many inputs at least. The activations of more
#: do not fit in memory that is reused: a small convolutional network took twice the time.
BATCH, NUMBERS, FEWEST = 1000, 2**17, 16

#: Numbers of maps for which a CPU starts operations longer than it computes.
SMALL_MAPS = 2**15

#: Places of maps whose unequal cells a CPU averages by a product with all places.
FEW_PLACES = 256

#: A layer, its input or output, and the attention mask if any -> one row per example, (n, d).
Pooling = Callable[[nn.Module, Any, Tensor | None], Tensor]


@dataclass(frozen=True)
class LayerSite:
    """A place in the network: a layer's input, or its output."""

    layer: str
    side: str = "output"  # or "input"

    def __str__(self) -> str:
        return f"{self.layer} ({self.side})"


Rows = dict[LayerSite, Tensor]


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
    value = _tensor(value).detach()
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
    height, width = maps.shape[2:]
    equal = not (height % grid or width % grid or torch.compiler.is_compiling())
    if equal and cell_kernel.usable(maps, grid):
        found = cell_kernel.cell_means(maps, grid)
        if found is not None:
            return found
    dtype = torch.promote_types(maps.dtype, torch.float32)
    if grid > 1 and _as_product(maps, equal):
        bands = grid if equal else 1  # of whole rows of the map, with a row of cells each
        shares = _shares(height // bands, width, grid // bands, grid).to(dtype)
        places = maps.to(dtype).reshape(-1, shares.shape[1])
        return product(places, shares).view(*maps.shape[:2], grid, grid)
    # compared last: in a graph the number of maps is not known
    if grid == 1 or not equal or (not maps.is_cuda and maps.numel() <= SMALL_MAPS):
        return functional.adaptive_avg_pool2d(maps, grid)
    # whole rows of the map are added up first, which is most of the work
    columns = maps.to(dtype).unflatten(2, (grid, -1)).sum(3)
    return columns.unflatten(3, (grid, width // grid)).mean(-1) / (height // grid)


def _as_product(maps: Tensor, equal: bool) -> bool:
    """Whether a product with the shares of all places is faster than torch's pooling."""
    if torch.compiler.is_compiling() or not _exact_products(maps) or maps.numel() <= SMALL_MAPS:
        return False
    few = maps.shape[2] * maps.shape[3] <= FEW_PLACES
    return equal or (few and maps.dtype == torch.float32)


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


def mean_pooling(
    layer: nn.Module, value: Any, mask: Tensor | None = None
) -> Tensor:  # (n, ...) -> (n, channels)
    """Averages over positions: everything after the channels, or the tokens of (n, tokens, d).

    Padding, where the mask is 0, is left out.
    """
    value = _tensor(value)
    if value.ndim == 2:
        return value
    if value.ndim == 3 and not channels_first(layer):
        return _token_mean(value, mask)
    return value.flatten(2).mean(2)


def _token_mean(value: Tensor, mask: Tensor | None) -> Tensor:  # (n, tokens, d) -> (n, d)
    if mask is None or mask.shape != value.shape[:2]:
        return value.mean(1)
    seen = mask.bool()[..., None]
    return torch.where(seen, value, 0.0).sum(1) / seen.sum(1).clamp(min=1)


def flatten_pooling(
    _layer: nn.Module, value: Any, _mask: Tensor | None = None
) -> Tensor:  # (n, ...) -> (n, d)
    """Every number."""
    return _tensor(value).flatten(1)


def channels_first(layer: nn.Module) -> bool:
    """Whether three dimensions at this layer are (n, channels, places), not (n, tokens, d)."""
    return type(layer).__name__.endswith("1d")


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


class NotRowsError(TypeError):
    """A layer gives something that is not a tensor with one entry per example."""


def _tensor(value: Any) -> Tensor:  # (n, ...) of at least two dimensions
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    if not isinstance(value, Tensor) or value.ndim == 0:
        raise NotRowsError(f"{type(value).__name__}, not a tensor with one row per example")
    return value[:, None] if value.ndim == 1 else value


@contextmanager
def hooked(net: nn.Module, hooks: Mapping[LayerSite, Callable[..., None]]) -> Iterator[None]:
    """Call the hooks with the layers and what they read or give while the network runs."""
    handles, thread = [], threading.get_ident()

    def of_this_thread(hook: Callable[..., Any], *values: Any) -> Any:
        # a forked process keeps the hooks of all threads
        return hook(*values) if threading.get_ident() == thread else None

    try:
        for site, call in hooks.items():
            layer, hook = named_layer(net, site.layer), partial(of_this_thread, call)
            if isinstance(layer, torch.jit.ScriptModule):
                raise QIPFInputError(
                    "The layers of a scripted or traced network cannot be read. Pass the module "
                    "that it was made from, or use qipf.wrap(net), which uses the logits."
                )
            if site.side == "input":
                handles.append(layer.register_forward_pre_hook(hook))
            else:
                handles.append(layer.register_forward_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_once(
    net: nn.Module,
    run: Callable[[], Any],
    sites: Sequence[LayerSite],
    pooling: Pooling = grid_pooling,
    remedy: str = "Name other layers=[...].",
    mask: Tensor | None = None,
) -> tuple[Tensor, Rows]:
    """Logits of one forward pass, and the pooled rows at the sites; `run` calls the network.

    `mask` (n, tokens) is 0 where a token is padding.
    """
    found: dict[LayerSite, list[Tensor]] = {site: [] for site in sites}

    def keep(site: LayerSite, layer: nn.Module, *values: Any) -> None:
        try:
            rows = pooling(layer, values[-1], mask)
            # copied: an operation in place may overwrite what the layer reads or gives afterwards
            shared = _same_memory(rows, _tensor(values[-1]))
            found[site].append(rows.clone() if shared else rows)
        except NotRowsError as error:
            raise QIPFInputError(f"{site} gives {error}. {remedy}") from error

    with hooked(net, {site: partial(keep, site) for site in sites}):
        logits = logits_of(run())
    for site, rows in found.items():
        if len(rows) != 1:
            raise QIPFInputError(
                f"{site} ran {len(rows)} times in one pass; a field needs a layer that runs once, "
                f"in a network that is not compiled or traced. {remedy}"
            )
        if rows[0].ndim != 2 or rows[0].shape[0] != logits.shape[0]:
            raise QIPFInputError(
                f"{site} gives shape {tuple(rows[0].shape)} after pooling for {logits.shape[0]} "
                f"predictions; one row per prediction is needed. {remedy}"
            )
    return logits, {site: rows[0] for site, rows in found.items()}


def run_in_batches(
    net: nn.Module,
    inputs: Tensor | Example,
    sites: Sequence[LayerSite],
    fitted: Example | None = None,
) -> tuple[Tensor, Rows]:
    """Class logits, and the rows at the sites, on the network's device, in parts of the inputs.

    `fitted` is what errors compare the inputs with.
    """
    example = inputs if isinstance(inputs, Example) else Example((inputs,), {})
    device, count, parts = device_of(net), example.rows, []
    bounds = [*range(0, max(1, count), BATCH), count]
    if device.type == "cpu" and count > FEWEST:
        numbers = sum(part.numel() for part in example.tensors.values())
        number = max(len(bounds) - 1, min(round(numbers / NUMBERS), count // FEWEST))
        bounds = [count * k // number for k in range(number + 1)]
    for start, stop in pairwise(bounds):
        part = example if len(bounds) == 2 else example.take(slice(start, stop))
        part = part.mapped(lambda part: part.to(device))
        run = partial(call, net, part, fitted)
        output, rows = run_once(net, run, sites, mask=attention_mask(part))
        parts.append((single_logits(output), rows))
    if len(parts) == 1:
        return parts[0]
    rows = {site: torch.cat([found[site] for _, found in parts]) for site in sites}
    return torch.cat([logits for logits, _ in parts]), rows


def attention_mask(example: Example) -> Tensor | None:  # (n, tokens)
    """The input ``attention_mask``, which is 0 where a token is padding; None without one."""
    return example.tensors.get("attention_mask")


def chosen_sites(net: nn.Module, run: Callable[[], object]) -> tuple[LayerSite, ...]:
    """The inputs of at most `MOST_LAYERS` computing layers, evenly over the depth, last included.

    `run` passes a small batch through the network. The first computing layer reads the input
    itself and is left out, unless a recurrent layer runs before it, or an embedding and it is the
    only one. So is a layer that runs more than once in a pass.
    """
    ran: list[tuple[str, nn.Module]] = []
    hooks = {
        LayerSite(name, "input"): lambda layer, *_, name=name: ran.append((name, layer))
        for name, layer in net.named_modules()
        if name and isinstance(layer, (*COMPUTING, *RECURRENT, *EMBEDDING))
    }
    with hooked(net, hooks):
        run()
    order = [name for name, layer in ran if isinstance(layer, COMPUTING)]
    earlier = [layer for _, layer in takewhile(lambda own: own[0] not in order, ran)]
    behind = RECURRENT if len(order) > 1 else (*RECURRENT, *EMBEDDING)
    first_too = any(isinstance(layer, behind) for layer in earlier)
    inner = order if first_too else order[1:]
    once = [name for name in inner if order.count(name) == 1]
    if not once:
        raise QIPFInputError(
            "No inner layers were found in this network (dense or convolutional ones after the "
            "first). Name them: layers=[...], or use qipf.wrap(net), which uses the logits. Layers "
            "of scripted or traced networks cannot be read: pass the module they were made from."
        )
    count = min(MOST_LAYERS, len(once))
    places = [round(i * (len(once) - 1) / max(1, count - 1)) for i in range(count)]
    return tuple(LayerSite(once[place], "input") for place in places)


def named_sites(net: nn.Module, layers: Sequence[str]) -> tuple[LayerSite, ...]:
    """The outputs of the layers that a user names."""
    if not isinstance(layers, (list, tuple)) or not layers:
        raise QIPFInputError(f"layers must be 'auto' or a list of layers' names, got {layers!r}.")
    for name in layers:
        named_layer(net, name)
    return tuple(LayerSite(name) for name in dict.fromkeys(layers))
