"""True classes: checked, and compared with what a model predicts."""

from typing import Any

import torch
from scipy.sparse import issparse
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.validation.arrays import number_tensor, require_data
from qipf.validation.scores import checked_flags

#: Why targets that are numbers are rejected, and what works.
REGRESSION = (
    "qipf scores classifiers, not regression. What works: QIPF().fit(X, wrong=errors > tolerance) "
    "on the outputs of a layer, with the same for calibrate; or a network that predicts classes, "
    "such as intervals of the target."
)


class LabelValueError(QIPFInputError):
    """Labels of the right shape whose values are not classes of the model."""


def checked_labels(labels: Any, count: int, classes: int | None, name: str) -> Tensor:  # (count,)
    """Class indices as an integer tensor.

    `name` is what errors call the labels. With `classes` None their range is not checked.

    >>> checked_labels([0, 2], 2, 3, "y")
    tensor([0, 2])
    """
    if labels is None:
        raise QIPFInputError(f"{name} are needed: pass the index of each true class.")
    try:
        values = number_tensor(labels, name)
    except QIPFInputError as error:
        if issparse(labels):
            raise
        raise LabelValueError(
            f"{error} A label is the index of the class among the logits: for class names pass "
            "[names.index(label) for label in labels], with names in the order of the logits."
        ) from error
    require_data(values, name)
    if values.shape != (count,):
        raise QIPFInputError(
            f"{name} must have shape ({count},), one class per prediction, got "
            f"{tuple(values.shape)}."
            + (" Pass labels.reshape(-1)." if values.shape == (count, 1) else "")
        )
    missing = torch.nonzero(values.isnan()).flatten()
    if len(missing):
        raise LabelValueError(
            f"{name} hold NaN in {len(missing)} of {count} rows (first: row {int(missing[0])}), "
            "but must hold integers, the index of each true class. Drop these rows."
            + ("" if _whole(values[~values.isnan()]) else f" {REGRESSION}")
        )
    if not _whole(values):
        raise LabelValueError(
            f"{name} must hold integers, the index of each true class. {REGRESSION}"
        )
    values = values.long()
    if classes is None:
        return values
    outside = torch.nonzero((values < 0) | (values >= classes)).flatten()
    if len(outside):
        found = sorted(set(values[outside].tolist()))
        shown = ", ".join(map(str, found[:5])) + (", …" if len(found) > 5 else "")
        few = ", because one or two logits stand for two classes" if classes == 2 else ""
        raise LabelValueError(
            f"{name} must hold classes 0..{classes - 1}{few}, got {shown} in {len(outside)} of "
            f"{count} rows (first: row {int(outside[0])})."
            + (" Classes are numbered from 0: subtract 1." if _from_one(values, classes) else "")
        )
    return values


def _whole(values: Tensor) -> bool:
    """Whether all numbers are integers, of any type."""
    if values.is_complex():
        return False
    return not values.is_floating_point() or bool((values % 1 == 0).all())


def _from_one(labels: Tensor, classes: int) -> bool:
    return bool(labels.min() == 1 and labels.max() == classes)


def class_logits(rows: Tensor) -> Tensor:  # (n, 1) -> (n, 2), others unchanged
    """Logits of the classes: one logit z, of class 1 against class 0, becomes [0, z].

    >>> class_logits(torch.tensor([[3.0]]))
    tensor([[0., 3.]])
    """
    return torch.cat([torch.zeros_like(rows), rows], 1) if rows.shape[1] == 1 else rows


def symmetric_logits(rows: Tensor) -> Tensor:  # (n, 1) -> (n, 2), others unchanged
    """As `class_logits`, but one logit z becomes [-z/2, z/2]: the largest has no preferred class.

    >>> symmetric_logits(torch.tensor([[3.0]]))
    tensor([[-1.5000,  1.5000]])
    """
    return torch.cat([-rows, rows], 1) / 2 if rows.shape[1] == 1 else rows


def are_probabilities(rows: Tensor) -> bool:  # (n, d)
    """Whether every row holds several numbers from 0 to 1 that sum to 1, up to rounding in text."""
    return bool(
        len(rows)
        and rows.shape[1] > 1
        and (rows >= 0).all()
        and ((rows.double().sum(1) - 1).abs() <= 1e-3).all()
    )


def errors_of(logits: Tensor, labels: Any, name: str) -> Tensor:  # (n, classes) -> (n,)
    """True where the largest of the class logits is not that of the true class."""
    logits = class_logits(logits)
    checked = checked_labels(labels, len(logits), logits.shape[1], name)
    return logits.argmax(1) != checked.to(logits.device)


def errors_from(
    logits: Tensor,  # (n, classes)
    y: Any,  # (n,)
    wrong: Any,  # (n,)
) -> Tensor | None:  # (n,)
    """Errors of a model, from true classes `y` or given as booleans; None if neither is given."""
    if y is not None and wrong is not None:
        raise QIPFInputError("Pass y (true classes) or wrong (where the model erred), not both.")
    if wrong is not None:
        return torch.from_numpy(checked_flags(wrong, len(logits), "X"))
    return None if y is None else errors_of(logits, y, "y")
