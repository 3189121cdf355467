"""Checks of uncertainties and of the flags that mark wrong predictions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.validation.arrays import require_data
from qipf.validation.parameters import is_number


def checked_outcomes(
    uncertainty: Any,  # (n,)
    wrong: Any,  # (n,)
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Finite uncertainties, and 1 where the prediction is wrong, else 0."""
    scores = finite_scores(uncertainty, "uncertainty")
    return scores, checked_flags(wrong, len(scores), "uncertainty").astype(np.int64)


def finite_scores(values: Any, name: str) -> NDArray[np.float64]:  # (n,)
    """One finite number per prediction, as float64, and at least one."""
    scores = checked_scores(values, name)
    if not len(scores):
        raise QIPFInputError(f"{name} is empty: at least one uncertainty is needed.")
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise QIPFInputError(
            f"{name} has {len(bad)} values that are not finite (first: row {bad[0]}, "
            f"{scores[bad[0]]}). Drop these predictions."
        )
    return scores


def checked_scores(values: Any, name: str) -> NDArray[np.float64]:  # (n,)
    """One real number per prediction, as float64; a single number is one prediction."""
    array = real_numbers(values, name)
    if array.ndim > 1:
        raise QIPFInputError(
            f"{name} must have one dimension, one number per prediction, got shape {array.shape}."
        )
    return np.atleast_1d(array).astype(np.float64)


def checked_counts(values: Any, name: str) -> NDArray[np.int64]:  # (k,)
    """Whole numbers, none negative and not all 0."""
    counts = _array(values, name)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any() or not counts.any():
        raise QIPFInputError(
            f"{name} must hold whole numbers in one dimension, none negative and not all 0, got "
            f"{counts.dtype} of shape {counts.shape}. Count with np.bincount(classes)."
        )
    return counts.astype(np.int64)


def checked_flags(wrong: Any, length: int, beside: str) -> NDArray[np.bool_]:  # (length,)
    """True where the prediction is wrong, one for each entry of the array called `beside`."""
    array = _array(wrong, "wrong")
    if array.shape != (length,):
        raise QIPFInputError(
            f"wrong must have the shape of {beside}, ({length},); got {array.shape}."
        )
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise QIPFInputError(
            "wrong must hold booleans, true where the prediction is wrong; got "
            f"{np.unique(array.astype(str) if array.dtype == object else array)[:5].tolist()}. "
            "Compare first: predictions != labels."
        )
    return array.astype(bool)


def checked_share(value: Any, name: str, example: float) -> float:
    """A number strictly between 0 and 1."""
    if isinstance(value, (Tensor, np.ndarray)) and np.ndim(value) == 0:
        value = value.item()
    if not is_number(value) or not 0 < value < 1:
        raise QIPFInputError(
            f"{name} must lie between 0 and 1, got {value!r:.80}. Try {example:g}."
        )
    return float(value)


def real_numbers(values: Any, name: str) -> NDArray[Any]:
    """An array of real numbers, of any shape, from an array, a tensor or lists."""
    array = _array(values, name)
    if array.dtype.kind not in "biuf":
        raise QIPFInputError(f"{name} must hold real numbers, got {array.dtype}.")
    return array


def _array(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        require_data(values, name)
        values = values.detach().cpu()
        return (
            values.float() if values.is_floating_point() and values.itemsize < 4 else values
        ).numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise QIPFInputError(f"{name} is not an array of numbers: {error}.") from error
