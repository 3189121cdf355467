"""Scores of batches with NaN or inf in some rows: those rows get NaN, the others are scored."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.field.estimator import QIPF
from qipf.validation.arrays import NonFiniteRowsError
from qipf.validation.scores import real_numbers


def logit_scores(
    field: QIPF, scores: Callable[..., tuple[Any, ...]], logits: Any
) -> NDArray[np.float64]:  # (n, d) or (d,) -> (2, n)
    """Scores of each row; NaN for rows with NaN or inf."""
    rows = np.atleast_2d(real_numbers(logits, "logits"))
    width = field.n_features_in_
    if rows.ndim != 2 or rows.shape[1] != width:
        raise QIPFInputError(
            f"logits must be rows of {width} numbers, as the model was fitted with, got shape "
            f"{rows.shape}."
        )
    finite = np.isfinite(rows).all(axis=1)
    values = np.full((2, len(rows)), np.nan)
    if finite.any():
        found = scores(rows if finite.all() else rows[finite])
        values[: len(found), finite] = found
    return values


def network_scores(
    scores: Callable[..., tuple[Any, ...]], batch: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, ...]:
    """Scores of each prediction; NaN where the network's output has NaN or inf."""
    try:
        return scores(*batch, **options)
    except NonFiniteRowsError as error:
        usable = torch.ones(error.count, dtype=torch.bool)
        usable[error.rows] = False
        cut, rest = _selected((batch, options), usable)
        if not cut:  # several predictions per input
            raise
    values = torch.full((2, len(usable)), torch.nan, dtype=torch.float64)
    if usable.any():
        for value, score in zip(values, network_scores(scores, *rest), strict=False):
            value[usable] = torch.as_tensor(score).detach().cpu().double()
    return tuple(values)


def _selected(batch: Any, usable: Tensor) -> tuple[int, Any]:
    """The number of arrays with one row per prediction, and the batch with their usable rows."""
    cut = 0

    def kept(value: Any) -> Any:
        nonlocal cut
        if isinstance(value, Mapping):
            return {name: kept(part) for name, part in value.items()}
        if type(value) in (tuple, list):
            return type(value)(kept(part) for part in value)
        if not hasattr(value, "__array__"):  # tensors have it too
            return value
        found = value if isinstance(value, Tensor) else np.asarray(value)
        if found.ndim == 0 or len(found) != len(usable):
            return value
        cut += 1
        return found[usable.to(found.device) if isinstance(found, Tensor) else usable.numpy()]

    rest = kept(batch)
    return cut, rest
