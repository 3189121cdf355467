r"""Layers whose weights are drawn anew at every pass, with signs that decorrelate the examples.

A weight matrix has the posterior :math:`W_{ij} \sim N(\mu_{ij}, \sigma_{ij}^2)`,
:math:`\sigma = \text{softplus}(\rho)`. One draw :math:`\Delta = \sigma\varepsilon` serves a whole
batch; example n sees it through random signs (Wen et al., 2018):

.. math:: y_n = \mu x_n + r_n \circ \Delta (s_n \circ x_n) + b, \quad r_n, s_n \in \{-1, 1\}

:math:`\varepsilon` is symmetric, so each example by itself sees exactly the posterior, while two
examples are uncorrelated. The bias has no posterior and is an ordinary parameter.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from qipf.errors import QIPFInputError

#: The posterior's first standard deviation, in units of the prior's.
INITIAL_STD = 0.1


class Flipout(nn.Module, ABC):
    r"""A layer with a Gaussian posterior and a Gaussian prior over its weight.

    Both start from the weights :math:`w` of a trained `layer`. The prior is empirical Bayes,
    :math:`N(w_{ij}, s^2)`: centred where the data has put the weights, with the one standard
    deviation :math:`s^2 = \text{mean}(w^2)` that explains the layer's weights best. The posterior
    starts at :math:`N(w_{ij}, (\text{initial\_std} \cdot s)^2)`.
    """

    prior_mean: Tensor
    prior_std: Tensor  # ()

    def __init__(self, layer: nn.Linear | nn.Conv2d, initial_std: float = INITIAL_STD) -> None:
        super().__init__()
        weight = layer.weight.detach()
        self.register_buffer("prior_mean", weight.clone())
        # in float64 on the CPU: the same number on any device, so that a training continues there
        std = weight.double().cpu().square().mean().sqrt()
        self.register_buffer("prior_std", std.to(weight))
        if not float(self.prior_std) > 0:
            raise QIPFInputError(
                "layer has no weight other than zero, so no prior can be learned from it. "
                "Train it first."
            )
        start = initial_std * float(self.prior_std)
        self.weight_mean = nn.Parameter(weight.clone())
        self.weight_rho = nn.Parameter(torch.full_like(weight, math.log(math.expm1(start))))
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())

    @property
    def weight_std(self) -> Tensor:
        """Standard deviations of the posterior."""
        return functional.softplus(self.weight_rho)

    def kl(self) -> Tensor:  # ()
        r"""Divergence of the posterior from the prior, summed over all weights, in nats.

        .. math:: \sum_{ij} \log\frac{s}{\sigma_{ij}}
                  + \frac{\sigma_{ij}^2 + (\mu_{ij} - w_{ij})^2}{2 s^2} - \frac12
        """
        std, prior = self.weight_std, self.prior_std
        offset = self.weight_mean - self.prior_mean
        squares = (std.square() + offset.square()) / (2 * prior.square())
        return (torch.log(prior / std) + squares - 0.5).sum()

    def forward(self, inputs: Tensor) -> Tensor:
        """Mean plus perturbation, the latter with one pair of sign vectors per example."""
        delta = self.weight_std * torch.randn_like(self.weight_std)
        perturbation = self._linear(inputs * _signs(inputs), delta, None)
        mean = self._linear(inputs, self.weight_mean, self.bias)
        return mean + perturbation * _signs(perturbation)

    @abstractmethod
    def _linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's own linear map."""


class FlipoutLinear(Flipout):
    """A dense layer with Flipout; signs per example and unit.

    >>> FlipoutLinear(nn.Linear(3, 2))(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def _linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(inputs, weight, bias)


class FlipoutConv2d(Flipout):
    """A convolution with Flipout; signs per example and channel, shared over the image's area.

    >>> FlipoutConv2d(nn.Conv2d(1, 2, 3))(torch.ones(5, 1, 8, 8)).shape
    torch.Size([5, 2, 6, 6])
    """

    def __init__(self, layer: nn.Conv2d, initial_std: float = INITIAL_STD) -> None:
        super().__init__(layer, initial_std)
        if layer.padding_mode != "zeros":
            raise QIPFInputError(
                f"layer has padding_mode {layer.padding_mode!r}; Flipout here knows 'zeros' only."
            )
        self.stride, self.padding = layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups

    def _linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(
            inputs, weight, bias, self.stride, self.padding, self.dilation, self.groups
        )


def _signs(like: Tensor) -> Tensor:  # (n, channels, 1, …)
    """Random signs per example and channel, of which images share each over their area."""
    shape = (*like.shape[:2], *(1 for _ in like.shape[2:]))
    return torch.randint(0, 2, shape, device=like.device, dtype=like.dtype) * 2 - 1
