"""Rows from within a network: which layers are read, and what they read or give in a pass."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, takewhile
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn

from qipf.errors import QIPFInputError
from qipf.export.program import Example
from qipf.network.forward import call, device_of, logits_of, named_layer
from qipf.network.pooling import NotRowsError, Pooling, first_tensor, grid_pooling, pooled_runs
from qipf.network.tasks import single_logits

#: Layers that compute; the input of one of them is the finished output of those before it.
COMPUTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

#: Layers that compute too; a computing layer after one of them does not read the input itself.
RECURRENT = (nn.RNNBase, nn.RNNCellBase)

#: Layers whose output is the input itself, in numbers.
EMBEDDING = (nn.Embedding, nn.EmbeddingBag)

#: Most layers that are chosen when none are named.
MOST_LAYERS = 8

#: Most inputs that pass through the network at once; and on a CPU, where the parts are of equal
#: length, about how many numbers a part has, and how many inputs at least. The activations of more
#: do not fit in memory that is reused: a small convolutional network took twice the time.
BATCH, NUMBERS, FEWEST = 1000, 3 * 2**16, 16


class LayerSite(NamedTuple):
    """A place in the network: a layer's input, or its output.

    The side of a layer that may run several times in a pass is ``"inputs"`` or ``"outputs"``.
    """

    layer: str
    side: str = "output"  # or "input"

    @property
    def is_input(self) -> bool:
        """Whether it is what the layer reads."""
        return self.side in ("input", "inputs")

    @property
    def of_several_runs(self) -> bool:
        """Whether its rows are those of `qipf.network.pooling.pooled_runs`."""
        return self.side in ("inputs", "outputs")

    def __str__(self) -> str:
        return f"{self.layer} ({self.side})"


Rows = dict[LayerSite, Tensor]


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


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
            if site.is_input:
                handles.append(layer.register_forward_pre_hook(hook))
            else:
                handles.append(layer.register_forward_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


#: Networks that overwrite what was read from a layer later in a pass, and those that did not in the
#: first pass, in which what was read is compared with copies.
_overwriting: WeakSet[nn.Module] = WeakSet()
_keeping: WeakSet[nn.Module] = WeakSet()


def run_once(
    net: nn.Module,
    run: Callable[[], Any],
    sites: Sequence[LayerSite],
    pooling: Pooling = grid_pooling,
    remedy: str = "Name other layers=[...].",
    mask: Tensor | None = None,
    copied: bool = True,
) -> tuple[Tensor, Rows]:
    """Logits of one forward pass, and the pooled rows at the sites; `run` calls the network.

    `mask` (n, tokens) is 0 where a token is padding. Rows that are not `copied` may be memory of
    the network, until its next pass. A network that overwrites them within its first pass gets
    copies from then on, as one does whose tensors say later that they were changed.
    """
    found: dict[LayerSite, list[Tensor]] = {site: [] for site in sites}
    uncopied: list[tuple[Tensor, int]] = []  # rows in memory of the network, and their version
    compared: list[tuple[Tensor, Tensor]] = []  # rows in memory of the network, and copies
    copied = copied or net in _overwriting
    known = net in _keeping

    def keep(site: LayerSite, layer: nn.Module, *values: Any) -> None:
        try:
            rows = pooling(layer, values[-1], mask)
            given = first_tensor(values[-1])
        except NotRowsError as error:
            raise QIPFInputError(f"{site} gives {error}. {remedy}") from error
        if not given.is_nested and _same_memory(rows, given):
            if copied or rows.is_inference():
                rows = rows.clone()
            elif not known:
                compared.append((rows, rows.clone()))
                rows = compared[-1][1]
            else:
                uncopied.append((rows, rows._version))
        found[site].append(rows)

    with hooked(net, {site: partial(keep, site) for site in sites}):
        logits = logits_of(run())
    if compared:
        kept = all(torch.equal(rows, copy) for rows, copy in compared)
        (_keeping if kept else _overwriting).add(net)
    if any([rows._version != version for rows, version in uncopied]):
        _overwriting.add(net)
        return run_once(net, run, sites, pooling, remedy, mask, copied=True)
    for site, rows in found.items():
        if site.of_several_runs and rows and all(p.shape == rows[0].shape for p in rows):
            rows[:] = [pooled_runs(rows)]
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
    copied: bool = True,
) -> tuple[Tensor, Rows]:
    """Class logits, and the rows at the sites, on the network's device, in parts of the inputs.

    `fitted` is what errors compare the inputs with; `copied` as in `run_once`.
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
        part = part.on(device)
        run = partial(call, net, part, fitted)
        copy = copied or len(bounds) > 2
        output, rows = run_once(net, run, sites, mask=attention_mask(part), copied=copy)
        parts.append((single_logits(output), rows))
    if len(parts) == 1:
        return parts[0]
    rows = {site: torch.cat([found[site] for _, found in parts]) for site in sites}
    return torch.cat([logits for logits, _ in parts]), rows


def attention_mask(example: Example) -> Tensor | None:  # (n, tokens)
    """The input ``attention_mask``, which is 0 where a token is padding; None without one."""
    return example.tensors.get("attention_mask")


def chosen_sites(
    net: nn.Module, run: Callable[[Example], object], given: Example
) -> tuple[LayerSite, ...]:
    """The inputs of computing layers and the outputs of recurrent ones, at most `MOST_LAYERS`.

    They are taken evenly over the depth, the last one included. `run` passes a batch through the
    network, and `given` is a small one. The first computing layer reads the input itself and is
    left out, unless a recurrent layer runs before it, or an embedding and it is the only one. So is
    a layer that does not give one row for each input, such as those of tokens that come first.
    Recurrent layers are read if they take tensors (n, tokens, d) and padding is known, by an
    attention mask, or not expected: of numbers without lengths beside them. Of layers that run
    several times, as in a siamese network, all runs are read.
    """
    ran: list[tuple[LayerSite, nn.Module]] = []
    numbers = [part.is_floating_point() for part in given.tensors.values()] == [True]
    without_padding = numbers or attention_mask(given) is not None

    def add(name: str, layer: nn.Module, read: tuple[Any, ...]) -> None:
        side = "input"
        if isinstance(layer, nn.RNNBase) and layer.batch_first and read and without_padding:
            first = read[0]
            if isinstance(first, Tensor) and first.ndim == 3 and len(first) == given.rows:
                side = "output"
        ran.append((LayerSite(name, side), layer))

    hooks = {
        LayerSite(name, "input"): partial(add, name)
        for name, layer in net.named_modules()
        if name and isinstance(layer, (*COMPUTING, *RECURRENT, *EMBEDDING))
    }
    with hooked(net, hooks):
        run(given)
    computing = list(dict.fromkeys(site for site, layer in ran if isinstance(layer, COMPUTING)))
    earlier = [layer for _, layer in takewhile(lambda own: own[0] not in computing, ran)]
    behind = RECURRENT if len(computing) > 1 else (*RECURRENT, *EMBEDDING)
    left_out = [] if any(isinstance(layer, behind) for layer in earlier) else computing[:1]
    runs = Counter(site for site, _ in ran if site in computing or site.side == "output")
    order = [
        site._replace(side=site.side + "s") if count > 1 else site
        for site, count in runs.items()
        if site not in left_out
    ]
    sites = _with_rows(net, run, given, order)
    if not sites:
        raise QIPFInputError(
            "No inner layers were found in this network (dense or convolutional ones after the "
            "first, with one row for each input). Name them: layers=[...], or use qipf.wrap(net), "
            "which uses the logits. Layers of scripted or traced networks cannot be read: pass "
            "the module they were made from."
        )
    most = min(MOST_LAYERS, len(sites))
    places = [round(i * (len(sites) - 1) / max(1, most - 1)) for i in range(most)]
    return tuple(sites[place] for place in places)


def _with_rows(
    net: nn.Module, run: Callable[[Example], object], given: Example, sites: Sequence[LayerSite]
) -> list[LayerSite]:
    """The sites with one row for each input, of the same width in every run.

    Two batches are tried, since something else may be as long as one of them.
    """
    widths: dict[LayerSite, set[int | None]] = {site: set() for site in sites}

    def look(site: LayerSite, rows: int, layer: nn.Module, *values: Any) -> None:
        try:
            shape = grid_pooling(layer, values[-1]).shape
        except NotRowsError:
            shape = torch.Size()
        widths[site].add(shape[1] if len(shape) == 2 and shape[0] == rows else None)

    for count in {given.rows, -(-given.rows // 2)}:
        part = given.take(slice(count))
        with hooked(net, {site: partial(look, site, count) for site in sites}):
            run(part)
    return [site for site in sites if len(widths[site]) == 1 and None not in widths[site]]


def passes_nested_tensors(
    net: nn.Module, run: Callable[[], object], sites: Sequence[LayerSite]
) -> bool:
    """Whether one of these layers reads or gives tokens without padding, as a nested tensor."""
    found: list[bool] = []

    def look(_: nn.Module, *values: Any) -> None:
        found.append(first_tensor(values[-1]).is_nested)

    with hooked(net, dict.fromkeys(sites, look)):
        run()
    return any(found)


def named_sites(net: nn.Module, layers: Sequence[str]) -> tuple[LayerSite, ...]:
    """The outputs of the layers that a user names."""
    if not isinstance(layers, (list, tuple)) or not layers:
        raise QIPFInputError(f"layers must be 'auto' or a list of layers' names, got {layers!r}.")
    for name in layers:
        named_layer(net, name)
    return tuple(LayerSite(name) for name in dict.fromkeys(layers))
