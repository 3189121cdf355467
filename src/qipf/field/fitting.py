"""Building a field from its training rows: bandwidth, centres, energies, and a check of its score.

Where the model's errors are known, the field's uncertainty is compared with the softmax entropy on
held-out rows. On few classes the density of logits says little about errors: correct, sure
predictions of a two-class model are the rare ones. There the entropy is used instead.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from qipf.calibration.detection import error_detection, warn_of_labels
from qipf.errors import QIPFScoreWarning, warn
from qipf.field.bandwidth import FACTORS, Choice, Split, choose_factor, silverman_of
from qipf.field.engines import Engine, Moments
from qipf.field.kernel import Coreset, field_of
from qipf.field.parameters import require_bandwidth
from qipf.field.potential import bare_modes, curvature, ground_energies, log_kernel_constant
from qipf.field.reservoir import TrainingRows

if TYPE_CHECKING:
    from qipf.field.estimator import QIPF

#: Fewer rows than this are not split: Silverman's bandwidth is used.
FEWEST_TO_SPLIT = 10

#: The density of rows of more numbers says little; without labels that is only warned of.
MOST_COLUMNS = 64

#: Up to so many rows are held out in turn, in five folds; of more rows a part is held out once.
MOST_IN_FOLDS, FOLDS = 2500, 5

#: The entropy replaces the field's score if its ROC-AUC on held-out rows is higher by more than
#: this; with fewer than `ENOUGH_ROWS` training rows by proportionally less, and where too few
#: predictions can be detected to measure it. Near errors favour the entropy, which grows as the
#: margin shrinks: on the digits of scikit-learn a field better on test data was 0.07 behind.
LARGEST_DEFICIT, ENOUGH_ROWS = 0.1, 1000


def build_field(field: "QIPF", rows: TrainingRows, device: torch.device) -> Engine:
    """Choose the bandwidth, then the centres, and find the energies at the centres.

    Sets the learned attributes except for the offset; returns the engine on `device`.
    """
    factor, criterion, width = 1.0, "silverman", silverman_of(rows.weighted_rows(0, device))
    choice = None
    if not isinstance(field.bandwidth, str):
        factor, criterion = float(field.bandwidth) / width, "given"
    elif rows.count < FEWEST_TO_SPLIT:
        warn(
            f"The field rests on {rows.count} rows only: its uncertainties mean little.",
            QIPFScoreWarning,
        )
    splits, held_out = _splits(rows, device)
    nearness = rows.sample_nearness()
    if splits and (field.bandwidth == "cv" or nearness is not None):
        choice = choose_factor(
            splits,
            None if nearness is None else nearness[-len(held_out) :],
            orders=field.orders,
            softening=field.softening,
            normalization=field.normalization,
            engine=field.engine,
            factors=FACTORS if field.bandwidth == "cv" else (factor,),
        )
        if field.bandwidth == "cv":
            factor, criterion = choice.factor, choice.criterion
    sigma = factor * width
    if criterion == "given":
        sigma = float(field.bandwidth)
    require_bandwidth(sigma)
    # the held-out rows join the field once the factor is known, if there is room for them
    whole = rows.condensed(0, device, sigma)
    equal = bool((whole.weights == whole.weights[0]).all())
    log_weights = None if equal else whole.log_weights
    engine = field_of(field.engine, whole.centers, sigma, log_weights, whole.spread)
    inside = engine(whole.centers)
    modes = bare_modes(inside, sigma, field.orders, field.softening, field.normalization)
    field.centers_ = whole.centers.cpu().numpy()
    field.log_weights_ = None if log_weights is None else log_weights.cpu().numpy()
    field.spread_, field.bandwidth_ = whole.spread, sigma
    field.bandwidth_factor_, field.bandwidth_criterion_ = factor, criterion
    field.energies_ = ground_energies(modes).cpu().numpy()
    field.ground_energy_ = -float(curvature(inside, sigma).min())
    _warn_of_softening(field, inside)
    _check_score(field, rows, held_out, choice)
    _warn_of_edge(field)
    return engine


def _splits(rows: TrainingRows, device: torch.device) -> tuple[list[Split], torch.Tensor]:
    """Splits of the training rows, and the rows that are held out in them, the last of the sample.

    The fields have the rows that a coreset would be made of: a coreset fits one bandwidth.
    """
    sample = rows.sample
    if rows.count < FEWEST_TO_SPLIT:
        return [], sample[:0]
    if rows.count > MOST_IN_FOLDS:
        held_out = sample[sample.shape[0] - rows.held_out() :]
        inside = rows.weighted_rows(len(held_out), device)
        return [Split(inside, held_out.to(device))], held_out
    folds = sample.to(device).tensor_split(FOLDS)
    others = (torch.cat([*folds[:k], *folds[k + 1 :]]) for k in range(FOLDS))
    most = rows.max_centers
    return [
        Split(Coreset.of_rows(inside[:most]), fold)
        for inside, fold in zip(others, folds, strict=True)
    ], sample


def _check_score(
    field: "QIPF", rows: TrainingRows, held_out: torch.Tensor, choice: Choice | None
) -> None:
    """Compare the field's uncertainty with the entropy, and use the entropy if it is far better.

    Sets `score_` and `detection_`; warns where the field should not be trusted.
    """
    field.score_ = "modes"
    nearness, columns = rows.sample_nearness(), rows.sample.shape[1]
    if columns == 1 and rows.are_logits and bool(((rows.sample >= 0) & (rows.sample <= 1)).all()):
        warn(
            "All rows are one number from 0 to 1. If it is the probability of class 1, pass two "
            "columns, [1 - p, p], or the logit log(p / (1 - p)), which is above 0 for class 1; of "
            "a network, leave out its last activation.",
            QIPFScoreWarning,
        )
    if nearness is None:
        if columns <= 2 or columns > MOST_COLUMNS:
            classes = "two" if columns <= 2 else "so many"
            warn(
                f"The rows have {columns} columns and no labels. If they are the logits of a model "
                f"of {classes} classes, the field may rank sure predictions as uncertain: pass "
                "labels, so that this is measured.",
                QIPFScoreWarning,
            )
        return
    if choice is not None:
        _set_detection(field, rows, held_out, choice)
    found, measured = field.detection_, choice is not None and choice.wanted is not None
    if not rows.are_logits:
        if found is not None and found.uncertainty + found.noise() < 0.5:
            warn(
                f"The field detects errors worse than chance ({found}). Use another layer, or "
                "LayeredQIPF, which weights all layers.",
                QIPFScoreWarning,
            )
        return
    deficit = 0.0 if found is None else found.behind()
    comparison = "" if found is None else f" ({found})"
    allowed = LARGEST_DEFICIT * min(1.0, rows.count / ENOUGH_ROWS)
    if columns <= 2:
        reason = "The logits of two classes differ only by their margin"
    elif not measured:
        reason = "There are too few errors and near errors to compare the field with the entropy"
    elif deficit > 0:
        reason = "The field detects errors worse than the entropy of the softmax"
    else:
        return
    if field.fallback and (columns <= 2 or not measured or deficit > allowed):
        field.score_ = "entropy"
        if found is not None and found.entropy is not None:
            field.detection_ = replace(found, uncertainty=found.entropy)
        warn(
            f"{reason}{comparison}, so uncertainty is the entropy of the softmax. "
            "fallback=False (--no-fallback) keeps the field. For a network, LayeredQIPF may do "
            "better.",
            QIPFScoreWarning,
        )
    else:
        warn(
            f"{reason}{comparison}. Compare it with the entropy on a calibration set, with "
            "calibrate(X, y). For a network, LayeredQIPF may do better.",
            QIPFScoreWarning,
        )


def _warn_of_softening(field: "QIPF", inside: Moments) -> None:
    """Warn if the softening exceeds ψ at most centres: softened modes fall there as ψ falls."""
    constant = log_kernel_constant(field.normalization, field.bandwidth_, inside.dimension)
    typical = math.exp((float(inside.log_density.median()) + constant) / 2)
    if field.softening > typical:
        warn(
            f"softening={float(field.softening):g} exceeds the wave function at most centres "
            f"(median {typical:.2g}), so that the modes fall where they should rise. Set "
            "softening=0: with normalization='standard', orders up to 4 have no poles in two "
            "or more dimensions.",
            QIPFScoreWarning,
        )


def _warn_of_edge(field: "QIPF") -> None:
    """Warn if the search ended at the smallest or largest factor: a better one may lie outside."""
    searched = field.bandwidth_criterion_ not in ("given", "silverman")
    at_edge = field.bandwidth_factor_ in (FACTORS[0], FACTORS[-1])
    if searched and at_edge and field.score_ == "modes":
        warn(
            f"The chosen bandwidth is at the edge of the search, {field.bandwidth_factor_:g} times "
            "Silverman's. Compare with others: bandwidth=NUMBER (--bandwidth).",
            QIPFScoreWarning,
        )


def _set_detection(
    field: "QIPF", rows: TrainingRows, held_out: torch.Tensor, choice: Choice
) -> None:
    """Measure how well errors of the held-out rows, and near errors if so chosen, are detected."""
    nearness = rows.sample_nearness()
    assert nearness is not None  # the caller checked it
    wrong = np.isposinf(nearness[-len(held_out) :])
    if rows.are_logits:
        warn_of_labels(torch.from_numpy(wrong), held_out)
    wanted, logits = choice.wanted, held_out if rows.are_logits else None
    found = error_detection(choice.uncertainty, wrong if wanted is None else wanted, logits)
    if found is not None:
        near = "errors and near errors"
        what = near if choice.criterion == near else "errors"
        field.detection_ = replace(found, rows=f"{what} of held-out training rows")
