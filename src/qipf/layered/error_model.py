r"""Two log-odds by logistic regression without negative slopes: of an error, and of novelty.

.. math:: \text{uncertainty} = a + b\,\Bigl(\log \sum_{c \ne k} \bar p_c - \log \bar p_k\Bigr)

for the predicted class k and the mixture :math:`\bar p`, fitted to the network's errors on the
tuning rows. So :math:`1 / (1 + e^{-\text{uncertainty}})` estimates the probability of an error.
Log-odds of single layers as further columns help under some corruptions and mislead under others
(research/README.md).

.. math:: \text{novelty} = a' - b'\log\sum_c e^{z_c} - \sum_l b'_l \log\rho_l

with the logits z and the layers' densities :math:`\rho_l` is fitted to tell perturbed rows from
clean ones. The densities are those of directions; the logits carry the length of the last layer's
rows. No slope is negative: the uncertainty orders predictions as the mixture does, and a lower
density never lowers the novelty, also far from all rows of the fit.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

#: Penalty on the squared slopes of standardised columns, relative to the mean log-likelihood.
PENALTY = 1e-3

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

    def terms(self, columns: Tensor) -> Tensor:  # (n, columns) -> (n, 1 + columns)
        """The constant and the terms whose sum is the log-odds."""
        found = columns * self.slopes.to(columns)
        return torch.cat([torch.full_like(found[:, :1], self.constant), found], 1)

    def parameters(self) -> tuple[float, ...]:
        """The constant, and the slopes."""
        return (self.constant, *self.slopes.tolist())


def unfitted_scores(layers: int) -> tuple[LogOdds, LogOdds]:
    """Uncertainty and novelty without tuning rows, and in files written before these were fitted.

    The uncertainty is the mixture's log-odds. The novelty is minus the sum of the log densities, or
    the energy if there are no layers.
    """
    error, novelty = torch.ones(1).double(), torch.ones(1 + layers).double()
    if layers:
        novelty[0] = 0.0
    return LogOdds(0.0, error), LogOdds(0.0, novelty)


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


def evidence_of_novelty(
    logits: Tensor,  # (n, classes)
    densities: Tensor,  # (n, layers) logarithms
) -> Tensor:  # (n, 1 + layers)
    """The energy of the logits, and minus the log densities of the layers."""
    energy = -torch.logsumexp(logits.double(), 1, keepdim=True)
    return torch.cat([energy, -densities.double()], 1)


def fit_log_odds(
    columns: Tensor,  # (n, columns)
    positive: Tensor,  # (n,) booleans
    balanced: bool = False,
) -> LogOdds | None:
    """The likeliest log-odds of the positive rows.

    None if all rows are positive, or none, or if no column tells them apart. `balanced` gives the
    positive rows and the others the same weight.
    """
    x, y = columns.double().cpu().numpy(), positive.cpu().numpy()
    if y.all() or not y.any():
        return None
    deviation = x.std(0)
    varies = deviation > CONSTANT * np.maximum(np.abs(x).max(0), 1.0)
    scale = np.where(varies, deviation, 1.0)
    mean = x.mean(0)
    x = np.where(varies, (x - mean) / scale, 0.0)
    shares = np.where(y, y.sum(), (~y).sum()) * 2.0 if balanced else np.full(len(y), float(len(y)))
    weights, signs = 1 / shares, np.where(y, 1.0, -1.0)

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        constant, slopes = parameters[0], parameters[1:]
        margins = signs * (x @ slopes + constant)
        value = weights @ np.logaddexp(0, -margins) + PENALTY / 2 * slopes @ slopes
        pull = -weights * signs * np.exp(-np.logaddexp(0, margins))
        return float(value), np.append(pull.sum(), pull @ x + PENALTY * slopes)

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
