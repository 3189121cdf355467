r"""Several posteriors on the class, weighed by how likely they make the truth.

.. math:: \bar p = \sum_l \alpha_l\, q_l, \qquad
          \alpha = \arg\max \sum_i \log \sum_l \alpha_l\, q_l(y_i \mid x_i)

The likelihood is concave in :math:`\alpha`; EM climbs it. The score of a prediction of class k is
the log_odds_of_error :math:`\log(1-\bar p_k) - \log \bar p_k`.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: EM stops when the mean log-likelihood is less than this below its maximum, or after so many
#: steps.
SETTLED, MOST_STEPS = 1e-4, 5000

#: The smallest probability that is told from none.
TINY = 1e-300


def likeliest_weights(likelihoods: Tensor) -> Tensor:  # (n, L) -> (L,)
    """Weights of the posteriors; each row holds what every posterior gave the truth.

    >>> likeliest_weights(torch.tensor([[0.9, 0.1], [0.8, 0.2]]).double()).round(decimals=3)
    tensor([1., 0.], dtype=torch.float64)
    """
    likelihoods = likelihoods.double().clamp(min=TINY)
    weights = likelihoods.new_full((likelihoods.shape[1],), 1 / likelihoods.shape[1])
    for _ in range(MOST_STEPS):
        # the likelihood's slopes: all of them at most 1 at the maximum, which is that near then
        slopes = (likelihoods / (likelihoods @ weights)[:, None]).mean(0)
        if float(slopes.max()) <= 1 + SETTLED:
            break
        weights = weights * slopes
    return weights


def mixed(posteriors: Tensor, weights: Tensor) -> Tensor:  # (n, L, C), (L,) -> (n, C)
    """The weighted mean of the posteriors, in float64."""
    return torch.einsum("nlc,l->nc", posteriors.double(), weights.double())


def log_odds(against: Tensor, own: Tensor) -> Tensor:
    """How much likelier one is than the other, as a logarithm; none is told from next to none."""
    return against.clamp(min=TINY).log() - own.clamp(min=TINY).log()


def log_odds_of_error(probabilities: Tensor, predicted: Tensor) -> Tensor:  # (n, C), (n,) -> (n,)
    """The log-odds against the predicted class; the others are summed, not subtracted from one.

    >>> log_odds_of_error(torch.tensor([[0.25, 0.75]]).double(), torch.tensor([1])).exp()
    tensor([0.3333], dtype=torch.float64)
    """
    own = probabilities.gather(1, predicted[:, None])[:, 0]
    others = probabilities.scatter(1, predicted[:, None], 0).sum(1)
    return log_odds(others, own)
