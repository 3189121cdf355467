"""Methods that draw several predictions for one input, and their three scores."""

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
    """Mean and standard deviation of the drawn class probabilities, in float64."""

    mean: Tensor  # (n, classes)
    std: Tensor  # (n, classes)

    @classmethod
    def of(cls, drawn_logits: Iterable[Tensor]) -> "Samples":
        r"""Collect draws of (n, classes) logits one at a time, so that only one is held.

        Welford's update, which loses no digits where all draws nearly agree:

        .. math:: \bar p_s = \bar p_{s-1} + \tfrac1s (p_s - \bar p_{s-1}), \quad
                  M_s = M_{s-1} + (p_s - \bar p_{s-1})(p_s - \bar p_s), \quad
                  \text{std} = \sqrt{M_S / S}
        """
        probabilities = (torch.softmax(to_double(logits), dim=1) for logits in drawn_logits)
        mean = next(probabilities)
        squares, draws = torch.zeros_like(mean), 1
        for drawn in probabilities:
            draws += 1
            offset = drawn - mean
            mean = mean + offset / draws
            squares += offset * (drawn - mean)
        return cls(mean, (squares / draws).sqrt())

    @classmethod
    def join(cls, parts: "list[Samples]") -> "Samples":
        """Samples of consecutive rows as one."""
        means, stds = zip(*parts, strict=True)
        return cls(torch.cat(means), torch.cat(stds))


#: Draws samples for the rows of a batch, the same ones each time.
Draw = Callable[[Batch], Samples]


class Sampler(ABC):
    """Options of a sampling method; hashable, so that its scores share one preparation."""

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
            device, parts = batch.logits.device, []
            inputs = batch.features if stem is None else batch.images
            with evaluating(network), torch.no_grad(), seeded(device, clean.seed):
                for rows in inputs.split(ROWS):
                    hidden = rows if stem is None else stem(unit_range(rows.to(device)))
                    parts.append(Samples.of(tail(hidden) for _ in range(self.passes)))
            return Samples.join(parts)

        return draw


class Sampled(Method):
    """A score of the draws of one sampler, shared with the other scores of the same sampler."""

    suffix = ""

    def __init__(self, name: str, sampler: Sampler) -> None:
        self.name = name + self.suffix
        self.sampler = sampler
        self.forward_passes = sampler.forward_passes
        self._draw: Draw | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.sampler!r})"

    def fit(self, clean: CleanData) -> "Sampled":
        """Prepare the sampler, or take what another score of it prepared."""
        self._draw = clean.memo(self.sampler, lambda: self.sampler.prepare(clean))
        return self

    def samples(self, batch: Batch) -> Samples:
        """The draws for this batch, made once."""
        draw = self._learned(self._draw)
        return batch.memo(draw, lambda: draw(batch))


class Spread(Sampled):
    r"""Standard deviation over the draws of the predicted class's probability, as in the paper.

    .. math:: \sqrt{\tfrac1S \sum_s (p_s - \bar p)^2}, \quad p_s = p(\hat y \mid x, s)

    :math:`\hat y`: the class that the deterministic network predicts.
    """

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and 1/2."""
        return self.samples(batch).std.gather(1, batch.predicted[:, None])[:, 0]


class OwnClassSpread(Sampled):
    r"""The same for the class :math:`\arg\max_k \bar p_k` that the mean of the draws predicts.

    This is what the authors' published code computes. It differs where the draws and the
    deterministic network disagree on the class.
    """

    suffix = "_own_class"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and 1/2."""
        samples = self.samples(batch)
        return samples.std.gather(1, samples.mean.argmax(dim=1, keepdim=True))[:, 0]


class PredictiveEntropy(Sampled):
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
            return Samples.of(predict(member, batch.images).logits for member in members)

        return draw
