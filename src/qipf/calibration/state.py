"""Calibration sets, error detection and accept rules in files, checked when they are read."""

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch

from qipf.calibration.conformal import MOST_SCORES, Calibration
from qipf.calibration.detection import ErrorDetection
from qipf.calibration.mixin import CalibrationMixin
from qipf.calibration.rule import AcceptRule
from qipf.calibration.training_rows import KEPT_ROWS, TrainingSample
from qipf.errors import QIPFFileError, QIPFInputError
from qipf.io.container import Arrays
from qipf.io.schema import refuse, require_keys

#: Arrays that a calibrated model adds to a file.
ARRAYS = {
    "calibration",
    "calibration_wrong",
    "calibration_novelty",
    "calibration_class_counts",
    "training",
}


def calibration_state(model: CalibrationMixin) -> tuple[dict[str, Any], Arrays]:
    """Header entries and arrays of a model's calibration set, error detection and accept rule."""
    arrays: Arrays = {}
    held_out = model.calibration_
    if held_out is not None:
        arrays["calibration"] = held_out.scores
        if held_out.wrong is not None:
            arrays["calibration_wrong"] = held_out.wrong.astype(np.float32)
        if held_out.novelty is not None:
            arrays["calibration_novelty"] = held_out.novelty
        if held_out.class_counts is not None:
            arrays["calibration_class_counts"] = held_out.class_counts.astype(np.float64)
    training = model.training_sample()
    if training is not None:
        # a file has no half precision
        exact = torch.promote_types(training.rows.dtype, torch.float32)
        arrays["training"] = training.rows.detach().cpu().to(exact).numpy()
    detection = None if model.detection_ is None else asdict(model.detection_)
    rule = None if model.rule_ is None else rule_values(model.rule_)
    total = None if training is None else training.total
    return {"rule": rule, "detection": detection, "training_rows": total}, arrays


def restore_calibration(
    model: CalibrationMixin, header: Mapping[str, Any], arrays: Arrays, path: str
) -> None:
    """Set a model's calibration set, error detection and accept rule from a file's content."""
    if "calibration" in arrays:
        model.calibration_ = _calibration(path, arrays, model.score_origin())
    elif any(name.startswith("calibration_") for name in arrays):
        refuse(
            path,
            "it has errors, novelties or classes of held-out predictions, but not their scores",
        )
    if "training" in arrays:
        model._training = _training(path, arrays["training"], header["training_rows"])
    if header["rule"] is not None:
        model.rule_ = restored_rule(header["rule"], path)
    if header["detection"] is not None:
        model.detection_ = _detection(path, header["detection"])


def rule_values(rule: AcceptRule) -> dict[str, Any]:
    """The rule as JSON values; JSON has no infinity, so a threshold of -inf becomes null."""
    values = asdict(rule)
    return values | ({"threshold": None} if math.isinf(rule.threshold) else {})


def restored_rule(values: Any, path: str) -> AcceptRule:
    """The rule from its JSON values; `path` is what errors call the file."""
    require_keys(path, "accept rule", values, [field.name for field in fields(AcceptRule)])
    threshold = values["threshold"]
    try:
        return AcceptRule(**{**values, "threshold": -math.inf if threshold is None else threshold})
    except QIPFInputError as error:
        raise QIPFFileError(f"{path} cannot be used: {error}") from error


def _calibration(path: str, arrays: Arrays, origin: float) -> Calibration:
    scores, wrong = arrays["calibration"], arrays.get("calibration_wrong")
    if scores.dtype != np.float64 or scores.ndim != 1 or not 0 < len(scores) <= MOST_SCORES:
        refuse(path, f"its held-out scores are {scores.dtype} of shape {scores.shape}")
    if not np.isfinite(scores).all() or (np.diff(scores) < 0).any():
        refuse(path, "its held-out scores are not finite and sorted")
    if wrong is not None:
        if wrong.dtype != np.float32 or wrong.shape != scores.shape:
            refuse(path, f"its held-out errors are {wrong.dtype} of shape {wrong.shape}")
        if not np.isin(wrong, (0, 1)).all():
            refuse(path, "its held-out errors are not all 0 or 1")
    novelty = arrays.get("calibration_novelty")
    if novelty is not None:
        if novelty.dtype != np.float64 or novelty.shape != scores.shape:
            refuse(path, f"its held-out novelties are {novelty.dtype} of shape {novelty.shape}")
        if not np.isfinite(novelty).all():
            refuse(path, "its held-out novelties are not finite")
    counts = arrays.get("calibration_class_counts")
    if counts is not None:
        if counts.ndim != 1 or not (counts >= 0).all() or not 0 < counts.sum() < 2**53:
            refuse(path, f"its held-out counts of classes are {counts.tolist()!s:.80}")
        counts = counts.astype(np.int64)
    return Calibration(scores, wrong, origin, novelty, counts)


def _training(path: str, rows: Any, total: Any) -> TrainingSample:
    if rows.ndim != 2 or not 0 < len(rows) <= KEPT_ROWS or not np.isfinite(rows).all():
        refuse(path, f"its sample of training rows has shape {rows.shape}, or is not finite")
    if type(total) is not int or total < len(rows):
        refuse(path, f"its number of training rows is {total!r:.80}")
    return TrainingSample(torch.from_numpy(rows), total)


def _detection(path: str, values: Any) -> ErrorDetection:
    require_keys(path, "detection", values, [field.name for field in fields(ErrorDetection)])
    count, errors = values["count"], values["errors"]
    if type(count) is not int or type(errors) is not int or not 0 < errors < count:
        refuse(path, f"its detection counts {errors!r:.80} errors of {count!r:.80}")
    for name in ("uncertainty", "entropy", "max_logit"):
        area = values[name]
        if area is None and name != "uncertainty":
            continue
        if type(area) is not float or not 0 <= area <= 1:
            refuse(path, f"its ROC-AUC of {name} is {area!r:.80}")
    if not isinstance(values["rows"], str) or len(values["rows"]) > 80:
        refuse(path, f"its detection is of {values['rows']!r:.80}")
    return ErrorDetection(**values)
