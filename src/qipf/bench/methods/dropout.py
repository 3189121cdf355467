"""MC-Dropout: dropout left on while predicting (Gal & Ghahramani, 2016)."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from qipf.bench.methods.protocol import CleanData, check_positive
from qipf.bench.methods.sampling import Draw, Sampler
from qipf.errors import QIPFInputError


@dataclass(frozen=True)
class MCDropout(Sampler):
    """Dropout at every `nn.Dropout` of the network's body; the network itself is not changed.

    These stand after each convolutional block and before each dense layer. The layers before the
    first of them are computed once. `rate` defaults to the clean data's `dropout_rate` (the paper:
    0.1 for LeNet, 0.2 for VGG-3).
    """

    rate: float | None = None
    passes: int = 100

    def __post_init__(self) -> None:
        check_positive("mc_dropout", passes=self.passes)
        if self.rate is not None:
            _check_rate("mc_dropout", self.rate)

    def prepare(self, clean: CleanData) -> Draw:
        """Find the first dropout layer; nothing is fitted."""
        rate = clean.dropout_rate if self.rate is None else self.rate
        _check_rate("mc_dropout", rate)
        layers = [*clean.network.body, clean.network.head]
        first = next((i for i, layer in enumerate(layers) if isinstance(layer, nn.Dropout)), None)
        if first is None:
            raise QIPFInputError(
                "mc_dropout acts at the nn.Dropout modules of the network's body, and it has "
                "none. Put nn.Dropout(0.0) where dropout may act."
            )
        stem, rest = nn.Sequential(*layers[:first]), layers[first:]

        def tail(hidden: Tensor) -> Tensor:
            for layer in rest:
                dropped = isinstance(layer, nn.Dropout)
                hidden = functional.dropout(hidden, rate) if dropped else layer(hidden)
            return hidden

        return self.random_passes(clean, clean.network, tail, stem)


@dataclass(frozen=True)
class MCDropoutLastLayer(Sampler):
    """Dropout before the last dense layer only, drawn on the shared features."""

    rate: float = 0.2
    passes: int = 100

    def __post_init__(self) -> None:
        check_positive("mc_dropout_ll", passes=self.passes)
        _check_rate("mc_dropout_ll", self.rate)

    def prepare(self, clean: CleanData) -> Draw:
        """Nothing is fitted."""
        head = clean.network.head
        return self.random_passes(
            clean, head, lambda features: head(functional.dropout(features, self.rate))
        )


def _check_rate(method: str, rate: float) -> None:
    if not 0 < rate < 1:
        raise QIPFInputError(f"{method}: rate must lie strictly between 0 and 1; got {rate}.")
