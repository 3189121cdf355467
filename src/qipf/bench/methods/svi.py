r"""Stochastic variational inference: a distribution over weights, learned with Flipout.

.. math:: \min_{\mu, \rho}\; \tfrac1n \sum_i -\log p(y_i \mid x_i, W) + \tfrac1n KL(q \,\|\, p),
          \quad W \sim q = N(\mu, \sigma^2)

which is minus the evidence bound per example. The paper takes its prior's standard deviations by
empirical Bayes and tunes the start over 100 epochs, and says no more. Here the trained weights
give the prior's deviation in each layer, and its mean too, and learning starts from them (see
`qipf.bench.methods.flipout`). With the same deviations about zero the prior dominates the bound
where examples are few: on the digits the accuracy fell by five points instead of none, and with
deviations learned along with the weights everything collapsed onto the prior.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from qipf.bench.methods.flipout import INITIAL_STD, Flipout, FlipoutConv2d, FlipoutLinear
from qipf.bench.methods.network import LayeredNetwork
from qipf.bench.methods.protocol import CleanData, check_positive
from qipf.bench.methods.sampling import Draw, Sampler
from qipf.errors import QIPFInputError


class VariationalNetwork(LayeredNetwork):
    """A copy of a network with Flipout in every dense layer and in the last convolution."""

    def __init__(self, network: LayeredNetwork, initial_std: float = INITIAL_STD) -> None:
        layers = [*copy.deepcopy(network.body), copy.deepcopy(network.head)]
        convolutions = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
        for i, layer in enumerate(layers):
            if isinstance(layer, nn.Linear):
                layers[i] = FlipoutLinear(layer, initial_std)
            elif isinstance(layer, nn.Conv2d) and i == convolutions[-1]:
                layers[i] = FlipoutConv2d(layer, initial_std)
        super().__init__(layers[:-1], layers[-1])

    def kl(self) -> Tensor:  # ()
        """Divergence of all posteriors from their priors, in nats."""
        layers = [layer.kl() for layer in self.modules() if isinstance(layer, Flipout)]
        return torch.stack(layers).sum()

    def split(self) -> tuple[nn.Sequential, nn.Sequential]:
        """The layers before the first random one, and the others."""
        layers = [*self.body, self.head]
        first = next(i for i, layer in enumerate(layers) if isinstance(layer, Flipout))
        return nn.Sequential(*layers[:first]), nn.Sequential(*layers[first:])


@dataclass(frozen=True)
class SVI(Sampler):
    """Flipout in every dense layer and in the last convolution; all layers are trained further.

    One pass draws one set of weights for the batch and signs for each prediction. The layers
    before the first random one are computed once.
    """

    epochs: int = 100
    passes: int = 100
    initial_std: float = INITIAL_STD
    name: ClassVar[str] = "svi"

    def __post_init__(self) -> None:
        check_positive(
            self.name, epochs=self.epochs, passes=self.passes, initial_std=self.initial_std
        )

    def prepare(self, clean: CleanData) -> Draw:
        """Train the posterior of the weights."""
        trainer = clean.trainer_for("svi")
        network = VariationalNetwork(clean.network, self.initial_std)
        trainer.train(
            network,
            clean.images,
            clean.labels,
            name="svi",
            epochs=self.epochs,
            penalty=lambda: network.kl() / len(clean.labels),
        )
        stem, tail = network.split()
        return self.random_passes(clean, network, tail, stem)


@dataclass(frozen=True)
class SVILastLayer(SVI):
    """Flipout in the last dense layer only, over the deterministic network's own features."""

    name: ClassVar[str] = "svi_ll"

    def prepare(self, clean: CleanData) -> Draw:
        """Train the posterior of the last layer's weights on the shared features."""
        trainer = clean.trainer_for("svi_ll")
        if not isinstance(clean.network.head, nn.Linear):
            raise QIPFInputError(
                "svi_ll replaces a last layer of type nn.Linear; the network's is "
                f"{type(clean.network.head).__name__}."
            )
        head = FlipoutLinear(clean.network.head, self.initial_std)
        trainer.train(
            head,
            clean.features,
            clean.labels,
            name="svi_ll",
            epochs=self.epochs,
            augment=False,
            penalty=lambda: head.kl() / len(clean.labels),
        )
        return self.random_passes(clean, head, head)
