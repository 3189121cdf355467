r"""A mixture of posteriors, with the weights that maximise the likelihood of the true classes.

.. math:: \bar p = \sum_l \alpha_l\, q_l, \qquad
          \alpha = \arg\max \sum_i \log \sum_l \alpha_l\, q_l(y_i \mid x_i)

The log-likelihood is concave in :math:`\alpha`; EM maximises it. The score of a prediction of
class k is the log-odds of an error, :math:`\log(1-\bar p_k) - \log \bar p_k`.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: EM stops when the mean log-likelihood is this close to its maximum, or after so many steps.
TOLERANCE, MOST_STEPS = 1e-4, 5000

#: Floor of a probability before its logarithm is taken.
TINY = 1e-300


def likeliest_weights(likelihoods: Tensor) -> Tensor:  # (n, L) -> (L,)
    """Weights of the posteriors; a row holds the probability of its true class under each.

    >>> likeliest_weights(torch.tensor([[0.9, 0.1], [0.8, 0.2]]).double()).round(decimals=3)
    tensor([1., 0.], dtype=torch.float64)
    """
    likelihoods = likelihoods.double().clamp(min=TINY)
    weights = likelihoods.new_full((likelihoods.shape[1],), 1 / likelihoods.shape[1])
    for _ in range(MOST_STEPS):
        # at most 1 at the maximum; their excess over 1 bounds the distance to it
        gradient = (likelihoods / (likelihoods @ weights)[:, None]).mean(0)
        if float(gradient.max()) <= 1 + TOLERANCE:
            break
        weights = weights * gradient
    return weights


def mixed(posteriors: Tensor, weights: Tensor) -> Tensor:  # (n, L, C), (L,) -> (n, C)
    """The weighted mean of the posteriors, in float64."""
    return torch.einsum("nlc,l->nc", posteriors.double(), weights.double())


def log_odds(against: Tensor, own: Tensor) -> Tensor:
    """Logarithm of the ratio of two probabilities, each at least `TINY`."""
    return against.clamp(min=TINY).log() - own.clamp(min=TINY).log()


def log_odds_of_error(probabilities: Tensor, predicted: Tensor) -> Tensor:  # (n, C), (n,) -> (n,)
    """Log-odds against the predicted class; the others are summed, not subtracted from one.

    >>> log_odds_of_error(torch.tensor([[0.25, 0.75]]).double(), torch.tensor([1])).exp()
    tensor([0.3333], dtype=torch.float64)
    """
    own = probabilities.gather(1, predicted[:, None])[:, 0]
    others = probabilities.scatter(1, predicted[:, None], 0).sum(1)
    return log_odds(others, own)
