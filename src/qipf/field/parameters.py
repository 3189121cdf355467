"""What a field is told: its parameters, its device, and where the model erred; all checked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from qipf.errors import QIPFInputError, QIPFWarning, first_line, unknown_name
from qipf.field import engines
from qipf.field.potential import checked_orders, checked_softening

#: Ways to choose the centres when there are more training predictions than `max_centers`.
REDUCTIONS = ("auto", "coreset", "random")

#: With ``"auto"``, rows longer than this are not condensed: centres would be fitted at too few
#: places (`qipf.field.coreset_fit.PAIRS`), and how well it serves was measured on logits of ten classes.
LONGEST_CONDENSED = 16


def check_parameters(field: Any) -> None:
    """Refuse parameters that no field can be fitted with."""
    checked_orders(field.orders)
    checked_softening(field.softening)
    _check_bandwidth(field.bandwidth)
    whole = isinstance(field.max_centers, Integral) and not isinstance(field.max_centers, bool)
    if not whole or field.max_centers < 1:
        raise QIPFInputError(
            f"max_centers must be an integer of at least 1, got {field.max_centers!r}."
        )
    if field.reduction not in REDUCTIONS:
        raise unknown_name("reduction", field.reduction, REDUCTIONS)
    if not _is_number(field.contamination) or not 0 < field.contamination <= 0.5:
        raise QIPFInputError(f"contamination must lie in (0, 0.5], got {field.contamination!r}.")
    if field.engine not in ("auto", *engines.ENGINES):
        raise unknown_name("engine", field.engine, [*engines.ENGINES, "auto"])
    check_device(field.device)


def reduction_for(field: Any, dimension: Callable[[], int]) -> str:
    """How more rows than centres are reduced, ``"coreset"`` or ``"random"``.

    `dimension` tells how long the rows are; it is asked only if that matters.
    """
    if field.reduction != "auto":
        return str(field.reduction)
    return "coreset" if dimension() <= LONGEST_CONDENSED else "random"


def _check_bandwidth(bandwidth: Any) -> None:
    if isinstance(bandwidth, str):
        if bandwidth not in ("cv", "silverman"):
            unknown = str(unknown_name("bandwidth", bandwidth, ["cv", "silverman"]))
            raise QIPFInputError(f"{unknown.removesuffix('.')}; or give a positive number.")
    elif not _is_number(bandwidth) or not 0 < float(bandwidth) < math.inf:
        raise QIPFInputError(
            f"bandwidth must be 'cv', 'silverman' or a positive number, got {bandwidth!r}."
        )
    elif not 1e-100 <= float(bandwidth) <= 1e100:
        raise QIPFInputError(
            f"bandwidth must lie between 1e-100 and 1e100, got {bandwidth!r}. Scale the "
            "logits first."
        )


def check_device(device: Any) -> None:
    """Refuse a device that is not ``"auto"`` and cannot compute here."""
    if device == "auto":
        return
    try:
        float(torch.zeros((), device=torch.device(device), dtype=torch.float64))
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise QIPFInputError(
            f"device {device!r} cannot be used here ({first_line(error)}). "
            "Pass 'auto', 'cpu', or 'cuda' where torch sees one."
        ) from error


def checked_random_state(seed: Any) -> np.random.RandomState:
    """What draws at random, from whatever scikit-learn takes for it."""
    try:
        return check_random_state(seed)
    except ValueError as error:
        raise QIPFInputError(
            f"random_state must be an integer ≥ 0, None or a numpy RandomState, got {seed!r}."
        ) from error


def errors_of(
    rows: Tensor,  # (n, d) logits
    y: Any,  # (n,)
    wrong: Any,  # (n,)
    required: bool = False,
) -> np.ndarray | None:  # (n,)
    """Where the model erred, if that can be known; labels that are no classes tell nothing.

    `required` refuses such labels, which otherwise only get a warning.
    """
    if y is not None and wrong is not None:
        raise QIPFInputError("Pass y (true classes) or wrong (where the model erred), not both.")
    if wrong is not None:
        flags = _column(wrong, rows.shape[0], "wrong")
        if not np.isin(flags, (0, 1)).all():
            raise QIPFInputError("wrong must hold booleans: True where the model erred.")
        return flags.astype(bool)
    if y is None:
        return None
    labels = _column(y, rows.shape[0], "y")
    numeric = np.issubdtype(labels.dtype, np.number) or labels.dtype == bool
    classes = rows.shape[1]
    if not numeric or not np.isin(labels, np.arange(classes)).all():
        told = f"y does not hold classes 0..{classes - 1}, so the model's errors cannot be told"
        if required:
            raise QIPFInputError(f"{told}. Pass wrong= if X is not logits.")
        warnings.warn(
            f"{told}; the bandwidth is chosen by likelihood. Pass wrong= if X is not logits.",
            QIPFWarning,
            stacklevel=4,
        )
        return None
    return rows.argmax(1).cpu().numpy() != labels


def _column(values: Any, length: int, name: str) -> np.ndarray:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (length,):
        raise QIPFInputError(
            f"{name} must have shape ({length},), one entry per row of X, got {array.shape}."
        )
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
