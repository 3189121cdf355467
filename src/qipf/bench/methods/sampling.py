"""Methods that draw several predictions for one input, and their two scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qipf.bench.methods.network import ROWS, predict, seeded, unit_range
from qipf.bench.methods.protocol import Batch, CleanData, Method, check_positive, to_double
from qipf.network.forward import evaluating


class Samples(NamedTuple):
    """What is kept of the drawn predictions, in float64."""

    mean: Tensor  # (n, classes)  mean probability over the draws
    predicted: Tensor  # (draws, n)  probability of the class the deterministic network predicts

    @classmethod
    def of(cls, drawn_logits: Iterable[Tensor], predicted: Tensor) -> "Samples":
        """Collect draws of (n, classes) logits one at a time, so that only one is held."""
        mean, kept = torch.zeros((), dtype=torch.float64, device=predicted.device), []
        for logits in drawn_logits:
            probabilities = torch.softmax(to_double(logits), dim=1)
            kept.append(probabilities.gather(1, predicted[:, None])[:, 0])
            mean = mean + probabilities
        return cls(mean / len(kept), torch.stack(kept))

    @classmethod
    def join(cls, parts: "list[Samples]") -> "Samples":
        """Samples of consecutive rows as one."""
        means, predicted = zip(*parts, strict=True)
        return cls(torch.cat(means), torch.cat(predicted, dim=1))


#: Draws samples for the rows of a batch, the same ones each time.
Draw = Callable[[Batch], Samples]


class Sampler(ABC):
    """Options of a sampling method; hashable, so that its two scores share one preparation."""

    passes: int

    @property
    def forward_passes(self) -> int:
        """Draws for one prediction."""
        return self.passes

    @abstractmethod
    def prepare(self, clean: CleanData) -> Draw:
        """Fit what drawing needs."""

    def random_passes(
        self,
        clean: CleanData,
        network: nn.Module,
        tail: Callable[[Tensor], Tensor],
        stem: Callable[[Tensor], Tensor] | None = None,
    ) -> Draw:
        """Draw by passes through `tail`, the random part of `network`.

        The input of `tail` is computed once: by `stem` from the images, or, without a stem, it is
        the shared features.
        """

        def draw(batch: Batch) -> Samples:
            device, parts = batch.predicted.device, []
            inputs = batch.features if stem is None else batch.images
            with evaluating(network), torch.no_grad(), seeded(device, clean.seed):
                for rows, predicted in zip(
                    inputs.split(ROWS), batch.predicted.split(ROWS), strict=True
                ):
                    hidden = rows if stem is None else stem(unit_range(rows.to(device)))
                    drawn = (tail(hidden) for _ in range(self.passes))
                    parts.append(Samples.of(drawn, predicted))
            return Samples.join(parts)

        return draw


class _Sampled(Method):
    """A score of the draws of one sampler, shared with the other score of the same sampler."""

    suffix = ""

    def __init__(self, name: str, sampler: Sampler) -> None:
        self.name = name + self.suffix
        self.sampler = sampler
        self.forward_passes = sampler.forward_passes
        self._draw: Draw | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.sampler!r})"

    def fit(self, clean: CleanData) -> "_Sampled":
        """Prepare the sampler, or take what its other score prepared."""
        self._draw = clean.memo(self.sampler, lambda: self.sampler.prepare(clean))
        return self

    def samples(self, batch: Batch) -> Samples:
        """The draws for this batch, made once."""
        draw = self._learned(self._draw)
        return batch.memo(draw, lambda: draw(batch))


class Spread(_Sampled):
    r"""Standard deviation over the draws of the predicted class's probability, as in the paper.

    .. math:: \sqrt{\tfrac1S \sum_s (p_s - \bar p)^2}, \quad p_s = p(\hat y \mid x, s)

    :math:`\hat y`: the class that the deterministic network predicts.
    """

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and 1/2."""
        return self.samples(batch).predicted.std(dim=0, correction=0)


class PredictiveEntropy(_Sampled):
    r"""Entropy of the mean class probabilities, :math:`-\sum_k \bar p_k \log \bar p_k`."""

    suffix = "_entropy"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and log(classes)."""
        return torch.special.entr(self.samples(batch).mean).sum(dim=1)


@dataclass(frozen=True)
class Ensemble(Sampler):
    """`networks` trained like the deterministic network, which is not one of them."""

    networks: int = 10

    def __post_init__(self) -> None:
        check_positive("ensemble", networks=self.networks)

    @property
    def forward_passes(self) -> int:
        """Number of networks."""
        return self.networks

    def prepare(self, clean: CleanData) -> Draw:
        """Train the networks."""
        trainer = clean.trainer_for("ensemble")
        members = trainer.train_ensemble(clean.network, self.networks, clean.images, clean.labels)

        def draw(batch: Batch) -> Samples:
            drawn = (predict(member, batch.images).logits for member in members)
            return Samples.of(drawn, batch.predicted)

        return draw
