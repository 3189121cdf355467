r"""Posteriors of the softmax and the layers, and their mixture of the greatest likelihood.

.. math:: \bar p = \sum_l \alpha_l\, q_l, \qquad
          \alpha = \arg\max \sum_i \log \sum_l \alpha_l\, q_l(y_i \mid x_i)

The log-likelihood is concave in :math:`\alpha`; EM maximises it. `qipf.layered.error_model` makes
the uncertainty of a prediction of class k from log-odds against it,
:math:`\log(1-\bar p_k) - \log \bar p_k` of the mixture, and the same of each posterior.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from qipf.layered.class_field import ClassField, FieldValues
from qipf.layered.error_model import Evidence
from qipf.layered.novelty import unusual_columns

#: EM stops when the mean log-likelihood is this close to its maximum, or after so many steps.
TOLERANCE, MOST_STEPS = 1e-4, 5000

#: Floor of a probability before its logarithm is taken, and floor of one that a layer gives.
TINY, TINY_IN_LAYER = 1e-300, 1e-20

#: Posteriors held at a time, 16 MB: rows times fields times widths times classes.
POSTERIORS = 2**21


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
    return posteriors.gather(2, own)[..., 0], posteriors.scatter(2, own, 0)


def weighted_mean(posteriors: Tensor, weights: Tensor) -> Tensor:  # (n, L, C), (L,) -> (n, C)
    """The mixture's probabilities, in float64."""
    return (posteriors.double() * weights.double()[:, None]).sum(1)


def log_odds(parts: Tensor) -> Tensor:  # (2, ...) -> (...)
    """Logarithm of the ratio of two probabilities, each at least `TINY`."""
    against, own = parts.clamp(min=TINY).log()
    return against - own


def log_odds_of_error(probabilities: Tensor, predicted: Tensor) -> Tensor:  # (n, C), (n,) -> (n,)
    """Log-odds against the predicted class; the others are summed, not subtracted from one.

    >>> log_odds_of_error(torch.tensor([[0.25, 0.75]]).double(), torch.tensor([1])).exp()
    tensor([0.3333], dtype=torch.float64)
    """
    own = probabilities.gather(1, predicted[:, None])[:, 0]
    others = probabilities.scatter(1, predicted[:, None], 0).sum(1)
    return log_odds(torch.stack([others, own]))


def odds_columns(own: Tensor, against: Tensor, weights: Tensor) -> Tensor:  # -> (n, 1 + L)
    """Log-odds against the predicted classes: of the mixture, of the softmax, of each layer.

    `own` and `against` (n, L) are probabilities of the predicted classes, and of all others.
    """
    parts = torch.stack([against, own])
    mixture = (parts * weights).sum(2, keepdim=True)
    floored = parts[..., 1:].clamp(min=TINY_IN_LAYER)
    return log_odds(torch.cat([mixture, parts[..., :1], floored], 2))


def evidence_of(
    logits: Tensor,  # (n, classes)
    posteriors: Tensor,  # (n, 1 + layers, classes)
    densities: Tensor,  # (n, layers) logarithms
    weights: Tensor,  # (1 + layers,)
) -> tuple[Tensor, Evidence]:
    """The mixture's probabilities (n, classes), and what the scores are computed from."""
    own, others = own_and_others(posteriors, logits.argmax(1))
    odds = odds_columns(own, others.sum(2), weights)
    return weighted_mean(posteriors, weights), Evidence(odds, unusual_columns(logits, densities))


def rows_at_once(parts: int, classes: int) -> int:
    """Number of rows whose posteriors, so many each, are held at a time.

    >>> rows_at_once(5, 10), rows_at_once(5, 2**21)
    (41943, 1)
    """
    return max(1, POSTERIORS // (parts * classes))
