"""A network and the field of its predictions as one module, for export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn


class ModelGraph(nn.Module):
    """A network and its field: the network's inputs to logits and the field's outputs.

    `run` maps inputs and keyword inputs to logits and the rows that the field scores. `inputs` and
    `options` are an example of what the network takes. Their tensors stand for the graph's inputs,
    in that order; every other value is a constant of the graph.
    """

    def __init__(
        self,
        net: nn.Module,
        run: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Tensor, Tensor]],
        field: nn.Module,
        inputs: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.net, self.field = net, field
        self._run = run
        self._inputs, self._options = inputs, dict(options)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Logits (n, classes), and the field's outputs for them or for the layer's output."""
        given = iter(tensors)
        inputs = tuple(_filled(self._inputs, given))
        values = _filled(self._options.values(), given)
        logits, rows = self._run(inputs, dict(zip(self._options, values, strict=True)))
        return {"logits": logits, **self.field(rows)}


def _filled(template: Iterable[Any], given: Iterator[Tensor]) -> list[Any]:
    return [next(given) if isinstance(part, Tensor) else part for part in template]
