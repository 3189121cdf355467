"""Running a network in evaluation mode, without changing its state."""

import difflib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qipf.errors import QIPFError, QIPFInputError, QIPFScoreWarning, warn
from qipf.export.program import Example, reason


@dataclass(eq=False)
class _Use:
    """Use of modules by a thread, and their modes before."""

    thread: int
    modules: Mapping[int, nn.Module]  # by identity
    modes: list[tuple[nn.Module, bool]]

    def restore(self) -> None:
        """Set the modes that the modules had."""
        for module, training in self.modes:
            if module.training != training:
                module.training = training


#: Uses that go on, in their order. Modes and hooks belong to a module, not to a call: one thread at
#: a time runs it, be it alone or as a part of a larger network.
_uses: list[_Use] = []
_released = threading.Condition()


class Parts(NamedTuple):
    """What a network consists of."""

    modules: dict[int, nn.Module]  # by identity, the network first
    tensors: list[Tensor]  # weights and buffers, each as often as a module has it

    @property
    def versions(self) -> tuple[tuple[int, int], ...]:
        """Address and version counter of every tensor: a fast sign that none has changed.

        Operations in place, optimizers and `load_state_dict` count as changes; those through
        ``weight.data`` do not.

        >>> net = nn.Linear(2, 2)
        >>> before = parts_of(net).versions
        >>> with torch.no_grad():
        ...     _ = net.bias.add_(1)
        >>> parts_of(net).versions == before
        False
        """
        try:
            addresses = map(Tensor.data_ptr, self.tensors)
            return tuple(zip(addresses, map(_version, self.tensors), strict=True))
        except RuntimeError:  # a tensor made in inference mode has no version counter
            return tuple(
                (part.data_ptr(), 0 if part.is_inference() else part._version)
                for part in self.tensors
            )


_version = attrgetter("_version")


def parts_of(net: nn.Module) -> Parts:
    """The network's modules and tensors.

    Several times faster than `nn.Module.modules` and `nn.Module.parameters`, which counts where one
    prediction takes less than a millisecond.

    >>> len(parts_of(nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU()))).modules)
    4
    """
    found, left, tensors = {id(net): net}, [net], []
    for module in left:
        for held in (module._parameters, module._buffers):
            if held:
                tensors += [tensor for tensor in held.values() if tensor is not None]
        for child in module._modules.values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                left.append(child)
    return Parts(found, tensors)


@contextmanager
def evaluating(net: nn.Module, parts: Parts | None = None) -> Iterator[None]:
    """Set evaluation mode; restore the mode of every module afterwards.

    Other threads that use the same network, or one that shares modules with it, wait. `parts` are
    those of the network, where they are known.
    """
    modules, thread = (parts or parts_of(net)).modules, threading.get_ident()

    def free() -> bool:
        others = [use for use in _uses if use.thread != thread]
        return all(modules.keys().isdisjoint(use.modules) for use in others)

    with _released:
        _released.wait_for(free)
        use = _Use(thread, modules, [(part, part.training) for part in modules.values()])
        _uses.append(use)
    try:
        if any([training for _, training in use.modes]):
            net.eval()
        yield
    finally:
        use.restore()
        with _released:
            _uses.remove(use)
            _released.notify_all()


def _release_after_fork() -> None:
    """In a forked process, end the uses of threads that exist only in its parent."""
    global _released
    _released = threading.Condition()
    ended = [use for use in _uses if use.thread != threading.get_ident()]
    for use in reversed(ended):  # one thread may use modules several times
        use.restore()
        _uses.remove(use)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)


def fingerprint(net: nn.Module) -> str:
    """Digest of the weights and buffers of a network, independent of the names of its layers.

    >>> fingerprint(nn.Linear(2, 2)) == fingerprint(nn.Linear(2, 2))
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for value in net.state_dict().values():
        if not isinstance(value, torch.Tensor):  # extra state of a module
            continue
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def unchanged(net: nn.Module, fitted: str | None) -> str:
    """The network's fingerprint; raises if it is not the one it was fitted with."""
    now = fingerprint(net)
    if fitted is not None and fitted != now:
        raise QIPFInputError(
            "The network's weights or buffers have changed since fit: by training, or by a call in "
            "training mode, which moves the statistics of batch norm. Fit again, or load the "
            "weights it was fitted with."
        )
    return now


def uncompiled(net: nn.Module) -> nn.Module:
    """The module that `torch.compile` made the network from: no hooks run in compiled code."""
    original = getattr(net, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else net


def named_layer(net: nn.Module, layer: str) -> nn.Module:
    """The layer by any of its names."""
    if isinstance(layer, str) and layer:
        found: nn.Module | None = net
        for part in layer.split("."):
            # what scripted modules have has no `get`
            known = found is not None and part in found._modules
            found = found._modules[part] if known and found is not None else None
        if found is not None:
            return found
    layers = {name: module for name, module in net.named_modules(remove_duplicate=False) if name}
    if str(layer) in layers:
        raise QIPFInputError(
            f"The network has no layer {layer!r}: names are strings. Did you mean {str(layer)!r}?"
        )
    near = difflib.get_close_matches(str(layer), layers, n=3, cutoff=0.4) or list(layers)[:10]
    raise QIPFInputError(
        f"The network has no layer {layer!r}. Close: {', '.join(near) or 'none: it has no layers'}."
    )


def logits_of(output: Any) -> Tensor:
    """The logits in the output of a network."""
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
    return found


def call(net: nn.Module, example: Example, fitted: Example | None = None, copy: bool = True) -> Any:
    """The network's output; an error names the inputs and those that it was `fitted` with.

    The network gets a copy of the inputs, which it may change in place.
    """
    given = example.mapped(torch.clone) if copy else example
    try:
        return net(*given.inputs, **given.options)
    except (QIPFError, torch.cuda.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        several = ""
        if isinstance(error, TypeError) and len(example.inputs) > 1:
            several = " A tuple or a list holds several inputs: pass inputs without labels."
        known = "" if fitted is None else f" It was fitted with {fitted.shapes('n')}."
        raise QIPFInputError(
            f"The network cannot take {example.shapes() or example.kinds}: {reason(error)}"
            f"{several}{known}"
        ) from error


#: Activations that turn logits into probabilities.
ACTIVATIONS = frozenset(
    {
        torch.softmax, torch.Tensor.softmax, nn.functional.softmax,
        torch.log_softmax, torch.Tensor.log_softmax, nn.functional.log_softmax,
        torch.sigmoid, torch.Tensor.sigmoid, nn.functional.sigmoid,
    }
)  # fmt: skip


#: Inputs of which none has a logit below 0 or above 1, if the output is no probability.
MANY = 16


#: Difference between logits of two passes, relative to the largest, up to which it is rounding.
ROUNDING = 0.01


class _Activations(TorchFunctionMode):
    """Records the activations of a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in ACTIVATIONS:
            self.found.append((output, func.__name__))
        return output


def require_logits(run: Callable[[], Any]) -> Tensor:
    """What the network, which `run` calls, gives; raises if that is activated, or classes."""
    with _Activations() as activations:
        logits = logits_of(run())
    if not logits.is_floating_point():
        raise QIPFInputError(
            f"The network gives {str(logits.dtype).removeprefix('torch.')}, but the field needs "
            "raw logits, which are real numbers. Pass the network without its last step, such as "
            "argmax."
        )
    for output, name in activations.found:
        if output is logits:
            raise QIPFInputError(
                f"The network ends in {name}: its output is activated, but the field needs raw "
                "logits. Pass the network without its last activation."
            )
    return logits


def warn_of_probabilities(logits: Tensor) -> None:
    """Warn if a network gives one number that looks like a probability."""
    alone = logits.ndim == 1 or (logits.ndim > 1 and logits.shape[1] == 1)
    if alone and len(logits) >= MANY and bool(((logits >= 0) & (logits <= 1)).all()):
        warn(
            f"The network gives one number from 0 to 1 for {len(logits)} inputs. If it is the "
            "probability of class 1, pass the network without its last activation: a logit above "
            "0 is read as class 1, so all of these would be class 1.",
            QIPFScoreWarning,
        )


def warn_if_random(first: Tensor, second: Tensor) -> None:  # of equal shape
    """Warn if logits of two passes over the same inputs differ by more than rounding."""
    if not (first.numel() and first.is_floating_point()):
        return
    rounding = max(ROUNDING, 4 * torch.finfo(first.dtype).eps)  # of half precision it is coarser
    difference = float((first - second).abs().max())
    largest = max(float(first.abs().max()), float(second.abs().max()))
    if difference > rounding * largest:
        warn(
            "The network is random in evaluation mode: two passes over the same inputs give logits "
            f"that differ by up to {difference / largest:.0%} of the largest, and so will the "
            "scores. A usual cause is F.dropout(x) without training=self.training. Mend it, and "
            "fit again.",
            QIPFScoreWarning,
        )


def device_of(net: nn.Module) -> torch.device:
    """Device of the network; the CPU if it has no weights."""
    first = next(chain(net.parameters(), net.buffers()), None)
    return torch.device("cpu") if first is None else first.device
