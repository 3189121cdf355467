r"""Posteriors of the softmax and the layers, and their mixture of the greatest likelihood.

.. math:: \bar p = \sum_l \alpha_l\, q_l, \qquad
          \alpha = \arg\max \sum_i \log \sum_l \alpha_l\, q_l(y_i \mid x_i)

The log-likelihood is concave in :math:`\alpha`; EM maximises it. The score of a prediction of
class k is the log-odds of an error, :math:`\log(1-\bar p_k) - \log \bar p_k`.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from qipf.layered.class_field import ClassField, FieldValues

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


def posteriors_of(
    logits: Tensor,  # (n, classes)
    fields: Iterable[ClassField],
    values: Iterable[FieldValues],  # of the fields, each at n rows
) -> Tensor:  # (n, 1 + fields, classes)
    """Posteriors of the softmax, first, and of the fields.

    In a field, classes without centres have the softmax's probability.
    """
    softmax = torch.softmax(logits.double(), 1)
    found = [softmax]
    for field, (posterior, _) in zip(fields, values, strict=True):
        posterior = posterior.double()
        if not field.complete:
            left = torch.where(field.known, 0.0, softmax).sum(1, keepdim=True)
            posterior = torch.where(field.known, posterior * (1 - left), softmax)
        found.append(posterior)
    return torch.stack(found, 1)


def own_and_others(posteriors: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:  # (n, L, C)
    """Probabilities of the predicted classes (n, L), and all with those set to zero (n, L, C)."""
    own = predicted[:, None, None].expand(-1, posteriors.shape[1], 1)
    return posteriors.gather(2, own)[..., 0], posteriors.scatter(2, own, 0.0)


def weighted_mean(posteriors: Tensor, weights: Tensor) -> Tensor:  # (n, L, C), (L,) -> (n, C)
    """The mixture's probabilities, in float64."""
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
