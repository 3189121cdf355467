r"""Bandwidth of the kernel: Silverman's rule, times a factor chosen on held-out data.

.. math:: \sigma = \mathrm{factor} \times \bar s \left(\frac{4}{(d+2)N}\right)^{1/(d+4)}

with :math:`\bar s` the mean standard deviation per dimension. Where true classes are known, the
factor is the one whose uncertainty best detects the held-out predictions that are nearest to an
error, measured by

.. math:: \nu = \begin{cases} +\infty & \text{where the model erred} \\
                             -(z_{(1)} - z_{(2)}) & \text{where it was right} \end{cases}

with :math:`z_{(1)} \ge z_{(2)}` the two largest logits: all errors, and while those are few, the
correct predictions with the smallest margin between the two. A network that fits its training data
well makes too few errors there to choose a factor by errors alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.field.kernel import Coreset, field_of
from qipf.field.potential import bare_modes
from qipf.metrics.error_detection import roc_auc
from qipf.progress import progress
from qipf.validation.labels import class_logits

#: With fewer predictions to detect than this, the ROC-AUC of a factor is too noisy (its standard
#: error, about 0.3/√errors, exceeds the differences between factors), and the likelihood is used.
FEWEST_ERRORS = 10

#: Near errors are added up to this many predictions: by the same formula the standard error is
#: then about 0.05. At most one in so many held-out rows is taken, so that they are near an error.
ENOUGH_ERRORS, ROWS_PER_ERROR = 30, 10

#: Factors on Silverman's width: from a quarter to eight times, in steps of √2.
FACTORS: tuple[float, ...] = tuple(float(2 ** (k / 2)) for k in range(-4, 7))


#: Of many held-out rows, this many of those to detect and of the others compare all factors; the
#: best `FINALISTS` are then compared on all rows.
SCREENED, FINALISTS = 500, 2


class Split(NamedTuple):
    """Centres of a field, and rows that are not among them."""

    inside: Coreset
    held_out: Tensor  # (H, d)


class Choice(NamedTuple):
    """A chosen factor, the criterion, and its scores."""

    factor: float
    criterion: str  # "error detection", "errors and near errors" or "likelihood"
    scores: dict[float, float]  # by factor, on all rows: ROC-AUC, or mean log-likelihood
    uncertainty: np.ndarray  # (H,) of the held-out rows by that factor, without energies
    wanted: np.ndarray | None  # (H,) those that were to be detected


def silverman(
    centers: Tensor,  # (N, d)
    log_weights: Tensor | None = None,  # (N,)
    count: float | None = None,
    spread: float = 0.0,
) -> float:
    """Silverman's width for these centres; weighted ones may stand for `count` rows.

    `spread` is the standard deviation of those rows about their centres, per dimension.

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
        deviation = torch.hypot(deviation, deviation.new_tensor(spread / largest))
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
    splits: Sequence[Split],
    nearness: np.ndarray | None,  # (H,) of all held-out rows to an error, if known
    *,
    orders: Sequence[int],
    softening: float,
    normalization: str,
    engine: str,
    factors: Sequence[float] = FACTORS,
) -> Choice:
    r"""Choose the factor on Silverman's width whose field is best on the held-out predictions.

    Where `nearness` is known: the best ROC-AUC of the uncertainty in detecting the errors and,
    while they are few, the near errors (`to_detect`); ties are broken by likelihood. Where it is
    not, or fewer than ten are to be detected or not to be detected: the best mean log-likelihood,
    :math:`\log\rho - d\log\sigma`. Of many held-out rows, a sample selects the best factors first.
    """
    wanted, criterion = (None, "likelihood") if nearness is None else to_detect(nearness)
    fields = [(split, silverman_of(split.inside)) for split in splits]

    def evaluated(
        factor: float, rows: Tensor | None, wanted: np.ndarray | None
    ) -> tuple[tuple[float, float], np.ndarray]:
        """ROC-AUC and mean log-likelihood of a factor, and the uncertainties of the rows."""
        likelihoods, parts = [], []
        for (inside, held_out), width in fields:
            sigma = factor * width
            field = field_of(engine, inside.centers, sigma, inside.log_weights, inside.spread)
            moments = field(held_out if rows is None else held_out[rows])
            likelihoods.append(moments.log_density - held_out.shape[1] * np.log(sigma))
            # ground energies shift all uncertainties equally, which does not change their ranks
            parts.append(bare_modes(moments, sigma, orders, softening, normalization).mean(1))
        uncertainty = torch.cat(parts).cpu().numpy()
        found = 0.0 if wanted is None else float(roc_auc(uncertainty, wanted))
        return (found, float(torch.cat(likelihoods).mean())), uncertainty

    if len(splits) == 1 and len(splits[0].held_out) > 2 * SCREENED and len(factors) > FINALISTS:
        rows = _screening_rows(wanted)
        part = None if wanted is None else wanted[rows]
        chosen = torch.from_numpy(rows).to(splits[0].held_out.device)
        screened = {
            factor: evaluated(factor, chosen, part)[0]
            for factor in progress(factors, "choosing the bandwidth")
        }
        factors = sorted(factors, key=screened.__getitem__)[-FINALISTS:]
    found = {
        factor: evaluated(factor, None, wanted)
        for factor in progress(factors, "choosing the bandwidth")
    }
    best = max(factors, key=lambda factor: found[factor][0])
    used = 1 if wanted is None else 0
    scores = {factor: pair[used] for factor, (pair, _) in found.items()}
    return Choice(best, criterion, scores, found[best][1], wanted)


def _screening_rows(wanted: np.ndarray | None) -> np.ndarray:
    """The first rows of each kind; held-out rows are in random order."""
    if wanted is None:
        return np.arange(2 * SCREENED)
    kinds = (np.flatnonzero(wanted), np.flatnonzero(~wanted))
    return np.concatenate([kind[:SCREENED] for kind in kinds])


def silverman_of(rows: Coreset) -> float:
    """Silverman's bandwidth for the rows that a coreset stands for."""
    return silverman(rows.centers, rows.log_weights, rows.count, rows.spread)


def nearness_to_error(
    wrong: np.ndarray,  # (n,) bool: where the model erred
    logits: Tensor | None = None,  # (n, d), if known
) -> np.ndarray:  # (n,)
    r"""Nearness of each prediction to an error, :math:`\nu` of this module's docstring.

    :math:`-\infty` where the model was right and the margin is not known.

    >>> nearness_to_error(np.array([False, True]), torch.tensor([[3.0, 1.0, 0.5], [0.0, 4.0, 1.0]]))
    array([-2., inf])
    >>> nearness_to_error(np.array([False, True]))
    array([-inf,  inf])
    """
    margins = np.full(wrong.shape, np.inf)
    if logits is not None:
        best, second = class_logits(logits.detach()).topk(2, dim=1).values.cpu().double().unbind(1)
        margins = (best - second).numpy()
        margins[np.isnan(margins)] = np.inf  # infinite logits, while the field is over a layer
    return np.where(wrong, np.inf, -margins)


def to_detect(
    nearness: np.ndarray,  # (H,)
) -> tuple[np.ndarray | None, str]:  # (H,) bool
    """Predictions whose detection chooses a factor, and the name of that criterion.

    All errors; if they are fewer than ``min(30, H // 10)``, also the nearest to an error, up to
    that number. Equally near predictions are taken together or not at all, so the order of the
    rows does not matter. None where they are too few to distinguish factors.

    >>> nearness = -np.arange(150.0)  # no error; margins of 0, 1, 2, …
    >>> wanted, criterion = to_detect(nearness)
    >>> int(wanted.sum()), float(nearness[wanted].min()), criterion
    (15, -14.0, 'errors and near errors')
    """
    wrong = np.isposinf(nearness)
    enough = min(ENOUGH_ERRORS, nearness.size // ROWS_PER_ERROR)
    first_left_out = np.sort(nearness)[-enough - 1]
    wanted = wrong | (nearness > first_left_out)
    if min(wanted.sum(), (~wanted).sum()) < FEWEST_ERRORS:
        return None, "likelihood"
    return wanted, "errors and near errors" if (wanted & ~wrong).any() else "error detection"
