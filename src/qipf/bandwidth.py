r"""The kernel's width: Silverman's rule, and a factor on it chosen on held-out data.

.. math:: \sigma = \mathrm{factor} \times \bar s \left(\frac{4}{(d+2)N}\right)^{1/(d+4)}

with :math:`\bar s` the mean standard deviation of a dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from qipf.coreset import field_of
from qipf.errors import QIPFInputError
from qipf.potential import bare_modes
from qipf.progress import progress

#: With fewer errors than this, the ROC-AUC of a factor is mostly luck (its standard error is about
#: 0.3/√errors, more than the factors differ by), and the likelihood decides.
FEWEST_ERRORS = 10

#: Factors tried on Silverman's width: from a quarter to eight times, in steps of √2.
FACTORS: tuple[float, ...] = tuple(float(2 ** (k / 2)) for k in range(-4, 7))


class Choice(NamedTuple):
    """A chosen factor, and what spoke for it."""

    factor: float
    criterion: str  # "error detection" or "likelihood"
    scores: dict[float, float]  # by factor: ROC-AUC, or mean log-likelihood


def silverman(
    centers: Tensor,  # (N, d)
    log_weights: Tensor | None = None,  # (N,)
    count: float | None = None,
    spread: float = 0.0,
) -> float:
    """Silverman's width for these centres; weighted ones may stand for `count` rows.

    `spread` is how far those rows lie from their centres, in each dimension.

    >>> round(silverman(torch.tensor([[0.0], [1.0], [2.0]])), 4)
    0.6943
    """
    rows = centers.double()
    largest = float(rows.abs().max()) or 1.0
    rows = rows / largest  # squares of the largest and smallest numbers stay in range
    if log_weights is None:
        deviation = rows.std(0, correction=0)
    else:
        weights = torch.softmax(log_weights.double(), 0)
        deviation = (weights @ (rows - weights @ rows).square()).sqrt()
    if spread:
        deviation = torch.hypot(deviation, torch.as_tensor(spread / largest).to(deviation))
    dimension = rows.shape[1]
    shrinkage = (4 / ((dimension + 2) * (count or rows.shape[0]))) ** (1 / (dimension + 4))
    width = float(deviation.mean()) * shrinkage * largest
    if not 0 < width < float("inf"):
        raise QIPFInputError(
            "The rows are all alike, so Silverman's bandwidth is zero. Pass predictions that "
            "differ from each other, or bandwidth=<positive number>."
        )
    return width


def choose_factor(
    centers: Tensor,  # (N, d)
    held_out: Tensor,  # (H, d), not among the centres
    wrong: np.ndarray | None,  # (H,) bool: where the model erred
    *,
    width: float,
    orders: Sequence[int],
    softening: float,
    engine: str,
    log_weights: Tensor | None = None,
    spread: float = 0.0,
    factors: Sequence[float] = FACTORS,
) -> Choice:
    r"""The factor on `width` whose field judges the held-out predictions best.

    Where the model's errors are known and there are at least ten (and ten correct predictions), the
    best ROC-AUC of the uncertainty in detecting them, the likelihood deciding between equals; else
    the best mean log-likelihood, :math:`\log\rho - d\log\sigma`. Each factor costs one
    evaluation of the field.
    """
    likelihoods: dict[float, float] = {}
    detections: dict[float, float] = {}
    detectable = wrong is not None and min(wrong.sum(), (~wrong).sum()) >= FEWEST_ERRORS
    for factor in progress(factors, "choosing the bandwidth"):
        sigma = factor * width
        moments = field_of(engine, centers, sigma, log_weights, spread)(held_out)
        likelihood = moments.log_density.mean() - held_out.shape[1] * np.log(sigma)
        likelihoods[factor] = float(likelihood)
        if detectable:
            # ground energies shift every uncertainty alike: ranks do not need them
            doubt = bare_modes(moments, sigma, orders, softening).mean(1)
            detections[factor] = float(roc_auc_score(wrong, doubt.cpu().numpy()))
    if detectable:
        best = max(factors, key=lambda factor: (detections[factor], likelihoods[factor]))
        return Choice(best, "error detection", detections)
    return Choice(max(factors, key=likelihoods.__getitem__), "likelihood", likelihoods)
