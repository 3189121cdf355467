"""CUDA graphs of a function of tensors, one for each of the shapes that come back.

The kernels of a small batch take less time than their launches. A graph launches all of them at
once. It reads and writes memory of its own: inputs are copied into it, outputs are copied out, and
a call on another stream waits until those are done.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qipf.locks import Lock

#: Most graphs that are kept; the one that was used longest ago is dropped first.
MOST_GRAPHS = 4

Function = Callable[..., tuple[Tensor, ...]]
Key = tuple[object, ...]


class Replays:
    """Calls a function of CUDA tensors, from the second call with the same shapes by a graph.

    The function must do the same operations on tensors of the same shapes, without waiting for the
    device; where it cannot be captured it is called as usual. Pickled, it has no graphs.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._graphs: OrderedDict[Key, _Graph | None] = OrderedDict()
        self._possible = True

    def __call__(self, function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of the function, in new memory."""
        if not self._possible or torch.cuda.is_current_stream_capturing():
            return function(*inputs)
        key = tuple((part.shape, part.dtype, part.device) for part in inputs)
        with self._lock:
            known, graph = key in self._graphs, self._graphs.get(key)
            if known and graph is None:
                graph = self._captured(function, inputs)
            self._graphs[key] = graph
            self._graphs.move_to_end(key)
            while len(self._graphs) > MOST_GRAPHS:
                self._graphs.popitem(last=False)
            if graph is not None:
                return graph(inputs)
        return function(*inputs)

    def _captured(self, function: Function, inputs: tuple[Tensor, ...]) -> "_Graph | None":
        try:
            return _Graph(function, inputs)
        except RuntimeError:  # an operation that waits for the device, or no memory
            self._possible = False
            return None

    def __len__(self) -> int:
        return sum(graph is not None for graph in self._graphs.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return (Replays, ())


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
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._outputs = function(*self._inputs)
            self._done = torch.cuda.Event()
            self._done.record()

    def __call__(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with torch.no_grad(), torch.cuda.device(inputs[0].device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._done)
            torch._foreach_copy_(self._inputs, inputs)
            self._graph.replay()
            found = tuple(part.clone() for part in self._outputs)
            self._done.record(stream)
        return found
