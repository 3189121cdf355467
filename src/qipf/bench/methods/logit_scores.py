"""Scores that need nothing but the logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qipf.bench.methods.protocol import Batch, Method, check_positive, to_double


@dataclass
class Softmax(Method):
    r"""One minus the largest class probability, :math:`1 - \max_k p_k`."""

    name = "softmax"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and 1 - 1/classes."""
        # 1 - exp(t) near t = 0 would lose the digits that rank confident predictions
        return -torch.expm1(torch.log_softmax(to_double(batch.logits), dim=1).amax(dim=1))


@dataclass
class Entropy(Method):
    r"""Entropy of the class probabilities, :math:`-\sum_k p_k \log p_k`, in nats."""

    name = "entropy"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and log(classes)."""
        log_p = torch.log_softmax(to_double(batch.logits), dim=1)
        return -(log_p.exp() * log_p).sum(dim=1)


@dataclass
class MaxLogit(Method):
    r"""Minus the largest logit, :math:`-\max_k z_k` (Hendrycks et al., 2022)."""

    name = "max_logit"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        return -to_double(batch.logits).amax(dim=1)


@dataclass
class Energy(Method):
    r"""Free energy of the logits, :math:`-T \log \sum_k e^{z_k / T}` (Liu et al., 2020)."""

    temperature: float = 1.0
    name = "energy"

    def __post_init__(self) -> None:
        check_positive(self.name, temperature=self.temperature)

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Any real number."""
        scaled = to_double(batch.logits) / self.temperature
        return -self.temperature * torch.logsumexp(scaled, dim=1)
