"""CUDA graphs of a function of tensors, one for each of the shapes that come back.

The kernels of a small batch take less time than their launches. A graph launches all of them at
once. It reads and writes memory of its own: inputs are copied into it, outputs are copied out, and
a call on another stream waits until those are done.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qipf.locks import Lock
from qipf.network.replaying import NetworkState, allowed

#: Most graphs that are kept; the one that was used longest ago is dropped first.
MOST_GRAPHS = 4

#: A graph may keep one part in so many of the device's memory. It is captured if all that its call
#: allocates, one after the other, is at most one part in so many of the free memory.
MEMORY_SHARE, FREE_SHARE = 32, 2

#: Calls of a step before it is captured: the first ones load kernels.
WARM = 2

#: How far outputs of a graph may be from those of the call that it repeats.
TOLERANCE = 1e-3

Function = Callable[..., tuple[Tensor, ...]]


class _Known(NamedTuple):
    """A call that was seen before: its graph, if there is one, and what it depended on."""

    state: Hashable
    held: object
    graph: "_Graph | None" = None
    early: bool = True  # whether the graph starts before the state is checked


class Replays:
    """Repeats calls of a function of CUDA tensors, from the second of the same shapes, by graphs.

    The function must do the same operations for tensors of the same shapes, the same `key` and the
    same state, without waiting for the device. If one call of it cannot be captured, none will be;
    if its graph takes too much memory, no call with as large inputs. Pickled, it has no graphs.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()
        self._possible = True
        self._too_large = math.inf

    def __call__(
        self,
        function: Function,
        inputs: tuple[Tensor, ...],
        key: Hashable = (),
        state: Callable[[], NetworkState | None] = NetworkState,
    ) -> tuple[Tensor, ...] | None:
        """The outputs of the function, in new memory; None if it must be called instead.

        `state` is computed while the device works. If it is None, or not that of the capture, the
        outputs are discarded, and the next call computes it first.
        """
        if not self._possible or _numbers(inputs) >= self._too_large:
            return None
        if torch.cuda.is_current_stream_capturing():
            return None
        key = (key, *((part.shape, part.dtype, part.device) for part in inputs))
        with self._lock:
            known = self._known.get(key)
            graph = None if known is None else known.graph
            early = known is not None and known.early
            found = graph(inputs) if graph is not None and early else None
            now = state()
            if now is None:
                if known is not None:
                    self._known[key] = known._replace(early=False)
                return None
            if known is None or known.state != now.key:
                _finish(known)
                known, found = _Known(now.key, now.held), None
            elif graph is None:
                graph = self._captured(function, inputs)
                known = _Known(now.key, (now.held, now.memory()), graph)
                found = None if graph is None else graph(inputs)
            elif found is None:
                known, found = known._replace(early=True), graph(inputs)
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > MOST_GRAPHS:
                _finish(self._known.popitem(last=False)[1])
            return found

    def _captured(self, function: Function, inputs: tuple[Tensor, ...]) -> "_Graph | None":
        try:
            return _Graph(function, inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except _TooLargeError:
            self._too_large = min(self._too_large, _numbers(inputs))
        except Exception:  # an operation that waits for the device
            self._possible = False
        return None

    def __len__(self) -> int:
        return sum(known.graph is not None for known in self._known.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return (Replays, ())


def _finish(known: _Known | None) -> None:
    """Wait for the last replay before the graph's memory is freed."""
    if known is not None and known.graph is not None:
        known.graph.wait()


class _TooLargeError(Exception):
    """A graph would keep too much memory."""


class _Graph:
    """The operations of one call, and the memory that they read and write."""

    def __init__(self, function: Function, inputs: tuple[Tensor, ...]) -> None:
        device = inputs[0].device
        # memory made in inference mode could not be written outside of it
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device):
            self._inputs = [part.detach().clone() for part in inputs]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function(*self._inputs)  # what is allocated once must not be in the graph
                before = _allocated(device)
                wanted = function(*self._inputs)
            torch.cuda.current_stream().wait_stream(stream)
            if FREE_SHARE * (_allocated(device) - before) > _free(device):
                raise _TooLargeError
            before = torch.cuda.memory_reserved(device)
            self._graph = torch.cuda.CUDAGraph()
            with _capture(self._graph, stream):
                self._outputs = function(*self._inputs)
            held = torch.cuda.memory_reserved(device) - before
            if MEMORY_SHARE * held > torch.cuda.get_device_properties(device).total_memory:
                raise _TooLargeError
            self._done = torch.cuda.Event()
            self._done.record()
            for found, one in zip(self(inputs), wanted, strict=True):
                if not torch.allclose(found, one, TOLERANCE, TOLERANCE, equal_nan=True):
                    raise RuntimeError("The function gives different outputs for the same inputs.")

    def __call__(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with torch.no_grad(), torch.cuda.device(inputs[0].device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._done)
            for own, part in zip(self._inputs, inputs, strict=True):
                own.copy_(part, non_blocking=True)
            self._graph.replay()
            found = tuple(part.clone() for part in self._outputs)
            self._done.record(stream)
        return found

    def wait(self) -> None:
        """Wait until the last replay is done."""
        self._done.synchronize()


def _numbers(inputs: tuple[Tensor, ...]) -> int:
    return sum(part.numel() for part in inputs)


def _free(device: torch.device) -> int:
    """Bytes of the device that nobody uses, those that PyTorch keeps for itself included."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def _allocated(device: torch.device) -> int:
    """Bytes that were ever allocated on the device."""
    return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0))


def repeated(step: Callable[[], None], times: int, device: torch.device) -> Iterator[None]:
    """Call a function so many times, on a GPU from the third time on by a graph if that can be.

    The function changes tensors in place, by the same operations every time.

    >>> total = torch.zeros(())
    >>> for _ in repeated(lambda: total.add_(1), 5, total.device):
    ...     pass
    >>> total
    tensor(5.)
    """
    for number in range(times):
        if number == WARM and device.type == "cuda" and allowed():
            step = _captured_step(step, device)
        step()
        yield


def _captured_step(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The function as a graph; the function itself if it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device), _capture(graph, torch.cuda.Stream()):
            step()  # is recorded, not done
    except Exception:  # an operation that waits for the device, or too little memory
        return step
    return graph.replay


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """What is done becomes the graph, on a stream that is left again, also after an error."""
    here = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            yield
    finally:
        torch.cuda.set_stream(here)  # torch itself leaves it only if the capture succeeds
