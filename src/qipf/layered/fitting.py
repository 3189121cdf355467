"""Fitting the fields of layers, their mixture and its scores to examples and tuning sets.

`LayeredQIPF` and `FeatureQIPF` differ in how they get these.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qipf.calibration.detection import error_detection, mean_detection, warn_of_labels
from qipf.calibration.training_rows import KEPT_ROWS, TrainingSample
from qipf.field.engines.base import blocks, full_precision
from qipf.layered.distillation import WIDER, distilled_mixture, is_fitted
from qipf.layered.effort import EFFORTS
from qipf.layered.error_model import ErrorModel, Evidence, fit_error_model
from qipf.layered.holdout import PLACES, Examples
from qipf.layered.mixture import rows_at_once
from qipf.layered.mixture_fit import LEAST, MOST_CENTERS, TuningPosteriors, fit_mixture, thinning
from qipf.layered.novelty import NoveltyModel, RowLengths, fit_novelty_model
from qipf.layered.selection import chosen_fields
from qipf.layered.tuning import Tuning
from qipf.network.features import LayerSite, Rows
from qipf.validation.labels import class_logits

if TYPE_CHECKING:
    from qipf.layered.base import LayeredModel


def fits_centers(model: "LayeredModel", examples: int, classes: int) -> bool:
    """Whether the model's centres are fitted to the classes; see `is_fitted`."""
    seed, size = model._distillation_seed(), model._condensed(classes)
    return seed is not None and size is not None and is_fitted(size, examples, classes)


def fit_layers(
    model: "LayeredModel",
    examples: Examples,
    tuning: Tuning,
    sites: Sequence[LayerSite],
    classes: int,
    count: int,
    *,
    every_length: bool = False,
) -> None:
    """Set the learned attributes of a model: fields of these examples, their weights, the scores.

    `count` is the number of training examples. With `every_length` the novelty reads the lengths of
    the rows of all layers, if any has a field; without, those of the layers with fields.
    """
    seed, size = model._distillation_seed(), model._condensed(classes)
    effort, dimension = EFFORTS[model.effort], int(model.max_dimension)
    fitted = fits_centers(model, len(examples[PLACES]), classes)
    wide, few = WIDER * dimension if fitted else dimension, size if seed is None else None
    # named layers are all kept
    least, most = (LEAST, model._most_layers()) if isinstance(model.layers, str) else (0.0, None)
    with torch.no_grad(), full_precision(tuning.labels.device):
        every = chosen_fields(examples, tuning, sites, classes, wide, few, effort)
        mixture = fit_mixture(every, tuning, least, most, MOST_CENTERS if fitted else None)
        if seed is not None and size is not None and tuning.sets:
            mixture = distilled_mixture(mixture, tuning, size, dimension, seed, effort)
        fields, model.weights_, posteriors = mixture
        model.layers_, model.fields_ = tuple(fields), tuple(fields.values())
        measured = sites if every_length and fields else model.layers_
        metrics = {site: field.metric for site, field in fields.items()}
        model.lengths_ = RowLengths.of(examples, measured, metrics)
        fit_scores(model, tuning, posteriors, count)


def fit_scores(
    model: "LayeredModel", tuning: Tuning, posteriors: TuningPosteriors | None, count: int
) -> None:
    """Fit both scores on the tuning rows, and measure error detection on the same.

    The uncertainty is the log-odds of an error, the novelty that of a perturbed row or a
    pseudo-outlier among clean ones. The ROC-AUC is the mean over the sets that have errors.
    `count` is the number of training examples.
    """
    model._clear_calibration()
    model._training = None
    layers = len(model.layers_)
    model.error_model_ = ErrorModel.unfitted(layers)
    model.novelty_model_ = NoveltyModel.unfitted(layers, model.lengths_.count)
    if posteriors is None:
        return
    clean, _ = tuning.sets["clean"]
    model._training = TrainingSample(class_logits(clean)[:KEPT_ROWS].cpu(), count)
    warn_of_labels((clean.argmax(1) != tuning.labels).cpu(), clean.cpu())
    step, evidence = thinning(tuning), posteriors.evidence(model.weights_.to(clean.device))
    model.lengths_ = model.lengths_.to(clean.device)
    lengths = torch.cat(
        [
            model.lengths_(logits[::step], {s: rows[s][::step] for s in model.lengths_.sites})
            for logits, rows in tuning.sets.values()
        ]
    )
    unusual = torch.cat([evidence.unusual, lengths], 1)
    odds = evidence.odds.cpu()
    if not model.weights_[1:].any():
        odds[:, 2:] = 0  # the uncertainty does not use the layers either
    evidence = Evidence(odds, unusual.cpu())
    wrong, sets = posteriors.wrong.cpu(), posteriors.sets.cpu()
    perturbed = sets > 0
    model.error_model_ = fit_error_model(evidence, wrong, perturbed) or model.error_model_
    outliers = [
        _evidence(model, logits[::step], {site: own[::step] for site, own in rows.items()})
        for logits, rows in tuning.outliers.values()
    ]
    joined = Evidence(*map(torch.cat, zip(*outliers, strict=True))) if outliers else None
    model.novelty_model_ = fit_novelty_model(evidence, perturbed, layers, joined)
    uncertainty = model.error_model_(evidence)
    found = [
        error_detection(uncertainty[sets == i], wrong[sets == i], logits[::step].cpu())
        for i, (logits, _) in enumerate(tuning.sets.values())
    ]
    model.detection_ = mean_detection(
        [part for part in found if part is not None],
        "errors of held-out training inputs and perturbed copies",
    )


def _evidence(model: "LayeredModel", logits: Tensor, rows: Rows) -> Evidence:
    """What both scores are computed from; in parts, as the posteriors take much memory."""
    scorer = model._scorer(logits.device)
    size = rows_at_once(len(model.weights_), logits.shape[1])
    parts = [
        scorer.evidence(logits[part], {site: own[part] for site, own in rows.items()})[1]
        for part in blocks(len(logits), size)
    ]
    return Evidence(*map(torch.cat, zip(*parts, strict=True)))
