r"""Uncertainty and novelty of predictions from what the softmax and the layers say of them.

The uncertainty is a log-odds of error, from log-odds against the predicted class k:

.. math:: u = (1 - g)\,\Bigl(a + b\,o + \sum_l b_l\, o_l\Bigr) + g\,(a' + b'\,o), \qquad
          o = \log \sum_{c \ne k} \bar p_c - \log \bar p_k

with :math:`o` of the mixture and :math:`o_l` of the softmax and of each layer, and the probability
g, by the energy :math:`-\log\sum_c e^{z_c}` of the logits z, that the input is perturbed. All parts
are logistic regressions on the tuning rows. Near the training data single layers and the softmax
are added up; far from it each of them can be wrong with certainty, and the bounded mixture is
better (research/README.md). :math:`1 / (1 + e^{-u})` estimates the probability of an error.

The novelty is the log-odds that an input is perturbed, from its energy, the last layer's log
density and the Mahalanobis distance of the energy and all layers' log densities from those of clean
rows. The distance has two sides: smooth images have a high density in early layers.

No slope is negative: more evidence against the predicted class never lowers the uncertainty.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.covariance import ledoit_wolf
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
        # not a matrix product: ONNX Runtime has none of no rows
        return (columns * self.slopes.to(columns)).sum(1) + self.constant

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
    unusual: Tensor  # (n, 1 + layers) the energy, and minus the layers' log densities


@dataclass(frozen=True)
class ErrorModel:
    """The uncertainty: one log-odds near the training data, another one far from it."""

    gate: LogOdds  # of a perturbed input, by the energy
    far: LogOdds  # of an error, by the mixture
    near: LogOdds  # of an error, by the mixture, the softmax and the layers

    def __call__(self, evidence: Evidence) -> Tensor:  # (n,)
        """The uncertainty of each prediction."""
        near, far = self._shares(evidence)
        return near * self.near(evidence.odds) + far * self.far(evidence.odds[:, :1])

    def terms(self, evidence: Evidence) -> Tensor:  # (n, 3 + layers)
        """What the uncertainty is the sum of: constant, mixture, softmax and layers."""
        near, far = (share[:, None] for share in self._shares(evidence))
        terms = near * evidence.odds * self.near.slopes.to(evidence.odds)
        terms[:, :1] += far * evidence.odds[:, :1] * self.far.slopes.to(terms)
        return torch.cat([near * self.near.constant + far * self.far.constant, terms], 1)

    def _shares(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        gate = self.gate(evidence.unusual[:, :1])
        return torch.sigmoid(-gate), torch.sigmoid(gate)

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
        """The mixture's log-odds: without tuning rows, and in files of earlier versions."""
        slopes = torch.zeros(2 + layers).double()
        slopes[0] = 1
        return cls(LogOdds(0.0, slopes[1:2]), LogOdds(0.0, slopes[:1]), LogOdds(0.0, slopes))

    def to(self, device: torch.device) -> "ErrorModel":
        """The same on another device."""
        return ErrorModel(*(part.to(device) for part in (self.gate, self.far, self.near)))


@dataclass(frozen=True)
class NoveltyModel:
    """The novelty, from the energy and the layers' log densities."""

    log_odds: LogOdds  # of a perturbed input, by energy, last layer's log density, and distance
    mean: Tensor  # (1 + layers,) of clean rows
    whiten: Tensor  # (1 + layers, 1 + layers) to unit covariance of clean rows

    def columns(self, unusual: Tensor) -> Tensor:  # (n, 1 + layers) -> (n, 3)
        """The energy, minus the last layer's log density, and the distance from clean rows."""
        offsets = unusual - self.mean.to(unusual)
        distance = (offsets[:, :, None] * self.whiten.to(unusual)).sum(1).square().sum(1).sqrt()
        return torch.stack([unusual[:, 0], unusual[:, -1], distance], 1)

    def __call__(self, unusual: Tensor) -> Tensor:  # (n, 1 + layers) -> (n,)
        """The novelty of each input."""
        return self.log_odds(self.columns(unusual))

    def terms(self, unusual: Tensor) -> Tensor:  # (n, 4)
        """What the novelty is the sum of: constant, energy, last layer, distance."""
        found = self.columns(unusual) * self.log_odds.slopes.to(unusual)
        return torch.cat([torch.full_like(found[:, :1], self.log_odds.constant), found], 1)

    def parameters(self) -> tuple[float, ...]:
        """Constant and slopes, then mean and whitening."""
        return (*self.log_odds.parameters(), *self.mean.tolist(), *self.whiten.flatten().tolist())

    @classmethod
    def of(cls, parameters: Tensor, layers: int) -> "NoveltyModel":
        """The inverse of `parameters`."""
        odds, mean, whiten = parameters.split([4, 1 + layers, (1 + layers) ** 2])
        return cls(LogOdds.of(odds), mean, whiten.view(1 + layers, 1 + layers))

    @classmethod
    def unfitted(cls, layers: int) -> "NoveltyModel":
        """Minus the last layer's log density, or the energy if there are no layers."""
        slopes, columns = torch.tensor([0.0, 1.0, 0.0]).double(), 1 + layers
        zeros = torch.zeros(columns, columns).double()
        return cls(LogOdds(0.0, slopes), zeros[0], zeros)

    def to(self, device: torch.device) -> "NoveltyModel":
        """The same on another device."""
        return NoveltyModel(self.log_odds.to(device), self.mean.to(device), self.whiten.to(device))


def unusual_columns(
    logits: Tensor,  # (n, classes)
    densities: Tensor,  # (n, layers) logarithms
) -> Tensor:  # (n, 1 + layers)
    """The energy of the logits, and minus the log densities of the layers."""
    energy = -torch.logsumexp(logits.double(), 1, keepdim=True)
    return torch.cat([energy, -densities.double()], 1)


def fit_error_model(
    evidence: Evidence,
    wrong: Tensor,  # (n,) booleans
    perturbed: Tensor,  # (n,) booleans
) -> ErrorModel | None:
    """The uncertainty that is fitted to the errors; None if they cannot be distinguished.

    The regressions near and far are fitted with the rows' probabilities of being there, and then
    both are scaled alike to the likeliest log-odds on all rows.
    """
    energy = evidence.unusual[:, :1]
    gate = fit_log_odds(energy, perturbed, balanced(perturbed)) or LogOdds(
        0.0, torch.zeros(1).double()
    )
    far_share = torch.sigmoid(gate(energy.cpu()))
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


def fit_novelty_model(unusual: Tensor, perturbed: Tensor) -> NoveltyModel:  # (n, 1 + layers), (n,)
    """The novelty that tells perturbed rows from clean ones.

    Without perturbed rows, or if no column tells them apart, the mean of the standardised columns.
    """
    unusual, perturbed = unusual.double().cpu(), perturbed.cpu()
    clean = unusual[~perturbed]
    mean, deviation = clean.mean(0), clean.std(0, correction=0)
    varies = deviation > CONSTANT * clean.abs().amax(0).clamp(min=1)
    scale = torch.where(varies, 1 / deviation, 0.0)
    covariance = torch.from_numpy(ledoit_wolf(((clean - mean) * scale).numpy())[0])
    values, vectors = torch.linalg.eigh(covariance)
    usable = values > CONSTANT
    whiten = scale[:, None] * vectors * torch.where(usable, values.clamp(min=CONSTANT).rsqrt(), 0.0)
    found = NoveltyModel(LogOdds(0.0, torch.zeros(3).double()), mean, whiten)
    columns = found.columns(unusual)
    fitted = fit_log_odds(columns, perturbed, balanced(perturbed))
    return NoveltyModel(fitted or standardised_mean(columns[~perturbed]), mean, whiten)


def standardised_mean(columns: Tensor) -> LogOdds:  # (n, columns)
    """The mean of the columns, each standardised by these rows.

    >>> rows = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
    >>> standardised_mean(rows)(torch.tensor([[1.0, 5.0]]))
    tensor([0.5000])
    """
    columns = columns.double().cpu()
    deviation = columns.std(0, correction=0)
    varies = deviation > CONSTANT * columns.abs().amax(0).clamp(min=1)
    slopes = torch.where(varies, 1 / deviation, 0.0) / len(deviation)
    return LogOdds(-float(slopes @ columns.mean(0)), slopes)


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
