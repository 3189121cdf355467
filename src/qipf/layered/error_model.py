r"""Uncertainty of predictions from the log-odds of the softmax and the layers.

The uncertainty is a log-odds of error, from log-odds against the predicted class k:

.. math:: u = (1 - g)\,\Bigl(a + b\,o + \sum_l b_l\, o_l\Bigr) + g\,(a' + b'\,o), \qquad
          o = \log \sum_{c \ne k} \bar p_c - \log \bar p_k

with :math:`o` of the mixture and :math:`o_l` of the softmax and of each layer, and the probability
g, by the energy :math:`-\log\sum_c e^{z_c}` of the logits z, that the input is perturbed. All parts
are logistic regressions on the tuning rows. Near the training data single layers and the softmax
are added up; far from it each of them can be wrong with certainty, and the bounded mixture is
better (research/README.md). :math:`1 / (1 + e^{-u})` estimates the probability of an error.

No slope is negative: more evidence against the predicted class never lowers the uncertainty.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

#: Penalty on the squared slopes of standardised columns, relative to the mean log-likelihood, and
#: on the slope by which a finished log-odds is scaled.
PENALTY, SMALL_PENALTY = 0.03, 1e-3

#: A column varies if its standard deviation is at least this share of its largest number.
CONSTANT = 1e-9

MOST_STEPS = 500


@dataclass(frozen=True)
class LogOdds:
    """A constant and slopes: the log-odds of what they were fitted to."""

    constant: float
    slopes: Tensor  # (columns,) float64, none negative

    def __call__(self, columns: Tensor) -> Tensor:  # (n, columns) -> (n,)
        """The log-odds at each row.

        >>> LogOdds(1.0, torch.tensor([2.0, 0.0]))(torch.tensor([[3.0, 9.0]]))
        tensor([7.])
        """
        return combined(columns, self.slopes.to(columns)[:, None])[:, 0] + self.constant

    def scaled(self, scale: float, shift: float = 0.0) -> "LogOdds":
        """``shift + scale * self``."""
        return LogOdds(shift + scale * self.constant, scale * self.slopes)

    def parameters(self) -> tuple[float, ...]:
        """The constant, and the slopes."""
        return (self.constant, *self.slopes.tolist())

    @classmethod
    def of(cls, parameters: Tensor) -> "LogOdds":
        """The inverse of `parameters`."""
        return cls(float(parameters[0]), parameters[1:].double())

    def to(self, device: torch.device) -> "LogOdds":
        """The same on another device."""
        return LogOdds(self.constant, self.slopes.to(device))


class Evidence(NamedTuple):
    """What the scores of some predictions are computed from."""

    odds: Tensor  # (n, 2 + layers) against the predicted class: mixture, softmax, layers
    unusual: Tensor  # (n, columns) the energy, first, and what `qipf.layered.novelty` adds

    def beside(self, columns: Tensor) -> "Evidence":  # (n, more)
        """The evidence with more columns that tell what is unusual."""
        return Evidence(self.odds, torch.cat([self.unusual, columns], 1))


@dataclass(frozen=True)
class ErrorModel:
    """The uncertainty: one log-odds near the training data, another one far from it."""

    gate: LogOdds  # of a perturbed input, by the energy
    far: LogOdds  # of an error, by the mixture
    near: LogOdds  # of an error, by the mixture, the softmax and the layers

    def __call__(self, evidence: Evidence) -> Tensor:  # (n,)
        """The uncertainty of each prediction."""
        near, far = self.near(evidence.odds), self.far(evidence.odds[:, :1])
        return torch.lerp(near, far, torch.sigmoid(self.gate(evidence.unusual[:, :1])))

    def terms(self, evidence: Evidence) -> Tensor:  # (n, 3 + layers)
        """What the uncertainty is the sum of: constant, mixture, softmax and layers."""
        gate = self.gate(evidence.unusual[:, :1])[:, None]
        near, far = torch.sigmoid(-gate), torch.sigmoid(gate)
        terms = near * evidence.odds * self.near.slopes.to(evidence.odds)
        terms[:, :1] += far * evidence.odds[:, :1] * self.far.slopes.to(terms)
        return torch.cat([near * self.near.constant + far * self.far.constant, terms], 1)

    def parameters(self) -> tuple[float, ...]:
        """Constants and slopes of gate, far and near."""
        return (*self.gate.parameters(), *self.far.parameters(), *self.near.parameters())

    @classmethod
    def of(cls, parameters: Tensor) -> "ErrorModel":
        """The inverse of `parameters`."""
        return cls(
            *(LogOdds.of(part) for part in (parameters[:2], parameters[2:4], parameters[4:]))
        )

    @classmethod
    def unfitted(cls, layers: int) -> "ErrorModel":
        """The mixture's log-odds, where nothing can be fitted."""
        slopes = torch.zeros(2 + layers).double()
        slopes[0] = 1
        return cls(LogOdds(0.0, slopes[1:2]), LogOdds(0.0, slopes[:1]), LogOdds(0.0, slopes))

    def to(self, device: torch.device) -> "ErrorModel":
        """The same on another device."""
        return ErrorModel(*(part.to(device) for part in (self.gate, self.far, self.near)))


def combined(columns: Tensor, slopes: Tensor) -> Tensor:  # (n, k), (k, m) -> (n, m)
    """The product of both; in a graph a sum, since ONNX Runtime fails for products of no rows."""
    if torch.compiler.is_compiling():
        return (columns[:, :, None] * slopes).sum(1)
    return columns @ slopes


def energy(logits: Tensor) -> Tensor:  # (n, classes) -> (n, 1)
    """Minus the logarithm of the sum of the exponentials of the logits, in float64."""
    logits = logits.double()
    top = logits.amax(1, keepdim=True)
    return -(top + (logits - top).exp().sum(1, keepdim=True).log())  # faster than logsumexp


def fit_error_model(
    evidence: Evidence,
    wrong: Tensor,  # (n,) booleans
    perturbed: Tensor,  # (n,) booleans
) -> ErrorModel | None:
    """The uncertainty that is fitted to the errors; None if they cannot be distinguished.

    The regressions near and far are fitted with the rows' probabilities of being there, and then
    both are scaled alike to the likeliest log-odds on all rows.
    """
    by_energy = evidence.unusual[:, :1]
    gate = fit_log_odds(by_energy, perturbed, balanced(perturbed)) or LogOdds(
        0.0, torch.zeros(1).double()
    )
    far_share = torch.sigmoid(gate(by_energy.cpu()))
    near = fit_log_odds(evidence.odds, wrong, 1 - far_share)
    far = fit_log_odds(evidence.odds[:, :1], wrong, far_share)
    if near is None or far is None:  # the mixture tells nothing in one of the two
        far = fit_log_odds(evidence.odds[:, :1], wrong)
        if far is None:
            return None
        others = torch.zeros(evidence.odds.shape[1] - 1).double()
        near = LogOdds(far.constant, torch.cat([far.slopes, others]))
    found = ErrorModel(gate, far, near)
    scaling = fit_log_odds(found(evidence)[:, None], wrong, penalty=SMALL_PENALTY)
    if scaling is None:
        return None
    scale, shift = float(scaling.slopes[0]), scaling.constant
    return ErrorModel(gate, far.scaled(scale, shift), near.scaled(scale, shift))


def balanced(positive: Tensor) -> Tensor:  # (n,)
    """Weights that give the positive rows and the others the same sum.

    >>> balanced(torch.tensor([True, False, False]))
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    count = positive.sum().double()
    return torch.where(positive, 1 / count, 1 / (len(positive) - count))


def fit_log_odds(
    columns: Tensor,  # (n, columns)
    positive: Tensor,  # (n,) booleans
    weights: Tensor | None = None,  # (n,) by default all 1
    penalty: float = PENALTY,
) -> LogOdds | None:
    """The likeliest log-odds of the positive rows, with a penalty on slopes.

    None if all rows are positive, or none, or if no column tells them apart.
    """
    x, y = columns.double().cpu().numpy(), positive.cpu().numpy()
    if y.all() or not y.any():
        return None
    shares = np.ones(len(y)) if weights is None else weights.double().cpu().numpy()
    shares = shares / shares.sum()
    mean = shares @ x
    deviation = np.sqrt(shares @ np.square(x - mean))
    varies = deviation > CONSTANT * np.maximum(np.abs(x).max(0), 1.0)
    scale = np.where(varies, deviation, 1.0)
    x = np.where(varies, (x - mean) / scale, 0.0)
    signs = np.where(y, 1.0, -1.0)

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        constant, slopes = parameters[0], parameters[1:]
        margins = signs * (x @ slopes + constant)
        value = shares @ np.logaddexp(0, -margins) + penalty / 2 * slopes @ slopes
        pull = -shares * signs * np.exp(-np.logaddexp(0, margins))
        return float(value), np.append(pull.sum(), pull @ x + penalty * slopes)

    bounds = [(None, None), *[(0, None)] * x.shape[1]]
    found = minimize(
        loss,
        np.zeros(1 + x.shape[1]),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": MOST_STEPS, "ftol": 1e-12, "gtol": 1e-8},
    ).x
    slopes = np.where(varies, found[1:] / scale, 0.0)
    if not slopes.any():
        return None
    return LogOdds(float(found[0] - slopes @ mean), torch.from_numpy(slopes))
