"""Scores that need nothing but the logits."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qipf.bench.methods.protocol import Batch, CleanData, Method, check_positive, to_double


@dataclass
class Softmax(Method):
    r"""One minus the largest class probability, :math:`1 - \max_k p_k`."""

    name = "softmax"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Between 0 and 1 - 1/classes."""
        # 1 - exp(t) near t = 0 would lose the digits that rank confident predictions
        return -torch.expm1(torch.log_softmax(to_double(batch.logits), dim=1).amax(dim=1))

    def facts(self, batch: Batch, labels: Tensor) -> dict[str, float]:
        """The accuracy that the probabilities promise."""
        return {"estimated_accuracy": float(1 - self.score(batch).mean())}


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


@dataclass
class GEN(Method):
    r"""Generalised entropy of the class probabilities (Liu et al., 2023).

    .. math:: \sum_k p_k^\gamma (1 - p_k)^\gamma

    over the `classes` largest probabilities; both defaults are the authors' choice.
    """

    gamma: float = 0.1
    classes: int = 100
    name = "gen"

    def __post_init__(self) -> None:
        check_positive(self.name, gamma=self.gamma, classes=self.classes)

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Not negative."""
        log_p = torch.log_softmax(to_double(batch.logits), dim=1)
        log_p = log_p.topk(min(self.classes, log_p.shape[1]), dim=1).values
        return (self.gamma * (log_p + _log_complement(log_p))).exp().sum(dim=1)


@dataclass
class Doctor(Method):
    r"""Logarithm of the odds that a class drawn from p differs from another (Granese et al., 2021).

    .. math:: \log \frac{1 - \sum_k p_k^2}{\sum_k p_k^2}

    which ranks as the authors' :math:`D_\alpha`.
    """

    name = "doctor"

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """At most log(classes - 1)."""
        log_p = torch.log_softmax(to_double(batch.logits), dim=1)
        differ = torch.logsumexp(log_p + _log_complement(log_p), dim=1)
        return differ - torch.logsumexp(2 * log_p, dim=1)


@dataclass
class KLMatching(Method):
    r"""Divergence from the nearest typical posterior (Hendrycks et al., 2022).

    .. math:: \min_k \sum_j p_j (\log p_j - \log d_{kj})

    :math:`d_k`: mean class probabilities of the training examples predicted as k.
    """

    name = "kl_matching"
    _log_typical: Tensor | None = field(default=None, init=False, repr=False)  # (K, classes)

    def fit(self, clean: CleanData) -> "KLMatching":
        """Mean probabilities of each predicted class."""
        log_p = torch.log_softmax(to_double(clean.logits), dim=1)
        predicted = log_p.argmax(dim=1)
        typical = [
            torch.logsumexp(rows, dim=0) - math.log(len(rows))
            for rows in (log_p[predicted == k] for k in predicted.unique())
        ]
        self._log_typical = torch.stack(typical)
        return self

    def score(self, batch: Batch) -> Tensor:  # (n,)
        """Not negative, up to rounding."""
        log_p = torch.log_softmax(to_double(batch.logits), dim=1)
        p = log_p.exp()
        cross = p @ self._learned(self._log_typical).T  # (n, K)
        return (p * log_p).sum(dim=1) - cross.amax(dim=1)


def _log_complement(log_p: Tensor) -> Tensor:
    """log(1 - p), finite for p = 1: float64 holds no p between 1 - 1e-16 and 1."""
    return torch.log((-torch.expm1(log_p)).clamp(min=1e-300))
