"""MC-Dropout: dropout left on while predicting (Gal & Ghahramani, 2016)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from qipf.bench.methods.protocol import Batch, CleanData, check_positive
from qipf.bench.methods.sampling import Draw, Sampler, Samples, draw_passes
from qipf.errors import QIPFInputError


@dataclass(frozen=True)
class MCDropout(Sampler):
    """Dropout at every joint: after each convolutional block and before each dense layer.

    The joints are the `nn.Dropout` modules of the network's body, which itself stays untouched.
    What comes before the first joint is computed once. `rate` defaults to the clean data's
    `dropout_rate` (the paper: 0.1 for LeNet, 0.2 for VGG-3).
    """

    rate: float | None = None
    passes: int = 100

    def __post_init__(self) -> None:
        check_positive("mc_dropout", passes=self.passes)
        if self.rate is not None:
            _check_rate("mc_dropout", self.rate)

    @property
    def forward_passes(self) -> int:
        """Draws for one prediction."""
        return self.passes

    def prepare(self, clean: CleanData) -> Draw:
        """Find the first joint; nothing is learned."""
        rate = clean.dropout_rate if self.rate is None else self.rate
        _check_rate("mc_dropout", rate)
        layers = [*clean.network.body, clean.network.head]
        joints = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Dropout)]
        if not joints:
            raise QIPFInputError(
                "mc_dropout acts at the nn.Dropout modules of the network's body, and it has "
                "none. Put nn.Dropout(0.0) where dropout may act."
            )
        stem, tail = nn.Sequential(*layers[: joints[0]]), layers[joints[0] :]

        def draw(batch: Batch) -> Samples:
            return draw_passes(
                clean.network,
                stem,
                lambda hidden: _dropped(tail, hidden, rate),
                batch.images,
                batch.predicted,
                self.passes,
                clean.seed,
            )

        return draw


@dataclass(frozen=True)
class MCDropoutLastLayer(Sampler):
    """Dropout before the last dense layer only, drawn on the shared features."""

    rate: float = 0.2
    passes: int = 100

    def __post_init__(self) -> None:
        check_positive("mc_dropout_ll", passes=self.passes)
        _check_rate("mc_dropout_ll", self.rate)

    @property
    def forward_passes(self) -> int:
        """Draws for one prediction."""
        return self.passes

    def prepare(self, clean: CleanData) -> Draw:
        """Nothing is learned."""
        head = clean.network.head

        def draw(batch: Batch) -> Samples:
            return draw_passes(
                head,
                lambda features: features,
                lambda features: head(functional.dropout(features, self.rate)),
                batch.features,
                batch.predicted,
                self.passes,
                clean.seed,
            )

        return draw


def _dropped(layers: Iterable[nn.Module], hidden: Tensor, rate: float) -> Tensor:
    for layer in layers:
        hidden = (
            functional.dropout(hidden, rate) if isinstance(layer, nn.Dropout) else layer(hidden)
        )
    return hidden


def _check_rate(method: str, rate: float) -> None:
    if not 0 < rate < 1:
        raise QIPFInputError(f"{method}: rate must lie strictly between 0 and 1; got {rate}.")
