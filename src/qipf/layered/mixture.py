r"""Posteriors of the softmax and the layers, and their mixture of the greatest likelihood.

.. math:: \bar p = \sum_l \alpha_l\, q_l, \qquad
          \alpha = \arg\max \sum_i \log \sum_l \alpha_l\, q_l(y_i \mid x_i)

The log-likelihood is concave in :math:`\alpha`; EM maximises it. The score of a prediction of
class k is the log-odds of an error, :math:`\log(1-\bar p_k) - \log \bar p_k`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qipf.errors import warn
from qipf.layered.class_field import ClassField, FieldValues
from qipf.layered.holdout import FEWEST, Tuning
from qipf.metrics.error_detection import roc_auc
from qipf.network.features import LayerSite
from qipf.progress import progress

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


#: Factors on a layer's bandwidth among which the weights choose, for all layers at once: chosen for
#: each layer alone, bandwidths come out wider.
WIDTHS = (0.5, 0.5**0.5, 1.0, 2**0.5)

#: Layers with a smaller weight are left out.
LEAST = 0.05

#: Largest number of tuning rows.
MOST_ROWS = 12_000

#: Posteriors held at a time, 16 MB: rows times fields times widths times classes.
POSTERIORS = 2**21


@dataclass(frozen=True)
class TuningPosteriors:
    """Posteriors of the softmax, first, and of fields for tuning rows, a column each."""

    truth: Tensor  # (n, 1 + fields) probability of the true class
    own: Tensor  # (n, 1 + fields) of the predicted class
    against: Tensor  # (n, 1 + fields) of all other classes
    wrong: Tensor  # (n,) where the network errs
    sets: Tensor  # (n,) which set a row is of

    def __getitem__(self, columns: list[int]) -> "TuningPosteriors":
        truth, own, against = (p[:, columns] for p in (self.truth, self.own, self.against))
        return TuningPosteriors(truth, own, against, self.wrong, self.sets)

    def gains(self, weights: Tensor) -> list[float]:
        """ROC-AUC of the mixture's errors minus the softmax's, for each set with errors."""
        mixture = log_odds(self.against @ weights, self.own @ weights)
        softmax = log_odds(self.against[:, 0], self.own[:, 0])
        found = []
        for number in self.sets.unique():
            member = self.sets == number
            wrong, *scores = (v[member].cpu().numpy() for v in (self.wrong, mixture, softmax))
            if wrong.any() and not wrong.all():
                found.append(roc_auc(scores[0], wrong) - roc_auc(scores[1], wrong))
        return found


def fit_mixture(
    fields: Mapping[LayerSite, ClassField], tuning: Tuning, least: float = LEAST
) -> tuple[dict[LayerSite, ClassField], Tensor]:  # (1 + layers,)
    """The fields that the mixture keeps, at their best bandwidths, and its weights.

    The weights maximise the likelihood of the true classes with all layers at all `WIDTHS`; each
    layer keeps the bandwidth with the largest weight, and layers below the `least` weight are left
    out. The softmax is used alone, with a warning, if there are too few examples or no errors, or
    if the mixture does not detect errors better on average.
    """
    if not fields:
        return _softmax_alone()
    if not tuning.sets:
        return _softmax_alone(f"fewer than {FEWEST} examples were left to weight the layers")
    found = _tuning_posteriors(fields, tuning)
    by_width = likeliest_weights(found.truth)[1:].view(len(fields), len(WIDTHS))
    best = {site: int(own.argmax()) for site, own in zip(fields, by_width, strict=True)}
    columns = {site: 1 + i * len(WIDTHS) + best[site] for i, site in enumerate(fields)}
    weights = likeliest_weights(found[[0, *columns.values()]].truth)[1:].tolist()
    least = min(least, max(weights))  # the layer with the largest weight always stays
    kept = [site for site, weight in zip(fields, weights, strict=True) if weight >= least]
    found = found[[0, *(columns[site] for site in kept)]]
    final = likeliest_weights(found.truth)
    gains = found.gains(final)
    if not gains:
        return _softmax_alone("the network makes no errors to learn from, even on perturbed inputs")
    if sum(gains) <= 0:
        return _softmax_alone("they detect the network's errors no better than its softmax does")
    at_best = {s: fields[s].at(WIDTHS[best[s]] * fields[s].bandwidth) for s in kept}
    return at_best, final.cpu()


def _tuning_posteriors(fields: Mapping[LayerSite, ClassField], tuning: Tuning) -> TuningPosteriors:
    """Posteriors of all fields at all `WIDTHS` for at most about `MOST_ROWS` tuning rows."""
    step = max(1, -(-len(tuning.sets) * len(tuning.labels) // MOST_ROWS))
    every = [field for field in fields.values() for _ in WIDTHS]
    parts = []
    for number, (logits, rows) in enumerate(progress(tuning.sets.values(), "weighting layers")):
        size = max(1, POSTERIORS // (len(every) + 1) // logits.shape[1])
        for part in torch.arange(0, len(logits), step, device=logits.device).split(size):
            values = [
                found
                for site, field in fields.items()
                for found in field.at_bandwidths(
                    rows[site][part], [width * field.bandwidth for width in WIDTHS]
                )
            ]
            posteriors = posteriors_of(logits[part], every, values)
            labels, predicted = tuning.labels[part], logits[part].argmax(1)
            truth, _ = own_and_others(posteriors, labels)
            own, others = own_and_others(posteriors, predicted)
            sets = torch.full_like(labels, number)
            parts.append((truth, own, others.sum(2), predicted != labels, sets))
    return TuningPosteriors(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _softmax_alone(reason: str | None = None) -> tuple[dict[LayerSite, ClassField], Tensor]:
    if reason is not None:
        warn(f"The layers are not used: {reason}. The uncertainty is that of the softmax alone.")
    return {}, torch.ones(1, dtype=torch.float64)
