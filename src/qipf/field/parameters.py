"""Checks of a field's parameters."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from qipf.errors import QIPFInputError, first_line, unknown_name
from qipf.field import engines
from qipf.field.potential import NORMALIZATIONS, checked_orders, checked_softening
from qipf.validation.parameters import is_number, propagates, require_positive_integer

#: Largest number in the training rows; the smallest bandwidth that is chosen for them is one over
#: it. Squares of more or less leave the floating-point range.
LARGEST = 1e140

#: Ways to choose the centres when there are more training predictions than `max_centers`.
REDUCTIONS = ("auto", "coreset", "random")

#: With ``"auto"``, longer rows are not reduced to a coreset. In up to 1,000 dimensions k-means
#: centres were closer to the field of all rows than random ones
#: (results/coresets-dimension.csv), but the gain falls with the dimension, and the time to make
#: them and to choose the bandwidth grows.
LONGEST_CONDENSED = 64


def check_parameters(field: Any) -> None:
    """Raise `QIPFInputError` for parameters that a field cannot be fitted with."""
    checked_orders(field.orders)
    checked_softening(field.softening)
    if field.normalization not in NORMALIZATIONS:
        raise unknown_name("normalization", field.normalization, NORMALIZATIONS)
    if not isinstance(field.fallback, (bool, np.bool_)):
        raise QIPFInputError(f"fallback must be True or False, got {field.fallback!r}.")
    _check_bandwidth(field.bandwidth)
    require_positive_integer(field.max_centers, "max_centers")
    if field.max_centers < 2:
        raise QIPFInputError("max_centers must be at least 2: a field of one centre has no width.")
    if field.reduction not in REDUCTIONS:
        raise unknown_name("reduction", field.reduction, REDUCTIONS)
    if not is_number(field.contamination) or not 0 < field.contamination <= 0.5:
        raise QIPFInputError(f"contamination must lie in (0, 0.5], got {field.contamination!r}.")
    if field.engine not in ("auto", *engines.ENGINES):
        raise unknown_name("engine", field.engine, [*engines.ENGINES, "auto"])
    check_device(field.device)
    propagates(field.nan_policy)


def reduction_for(field: Any, dimension: Callable[[], int]) -> str:
    """The reduction that ``"auto"`` stands for: ``"coreset"`` for short rows, else ``"random"``.

    `dimension` returns the length of the rows; it is called only if it is needed.
    """
    if field.reduction != "auto":
        return str(field.reduction)
    return "coreset" if dimension() <= LONGEST_CONDENSED else "random"


def require_range(rows: torch.Tensor) -> None:  # (n, d)
    """Raise `QIPFInputError` for training rows with numbers whose squares overflow."""
    if rows.dtype != torch.float64 or not len(rows):  # float32 ends at 3e38
        return
    largest, row = rows.abs().amax(1).max(0)
    if largest > LARGEST:
        raise QIPFInputError(
            f"X has numbers beyond ±{LARGEST:g} (row {int(row)}: {float(largest):g}). Drop such "
            "rows, or divide all rows by a constant."
        )


def require_bandwidth(chosen: float) -> None:
    """Raise `QIPFInputError` for a chosen bandwidth whose square underflows."""
    if chosen < 1 / LARGEST:
        raise QIPFInputError(
            f"The rows lie so close together that their bandwidth is {chosen:g}; at least "
            f"{1 / LARGEST:g} is needed. Multiply all rows by a constant."
        )


def _check_bandwidth(bandwidth: Any) -> None:
    if isinstance(bandwidth, str):
        if bandwidth not in ("cv", "silverman"):
            unknown = str(unknown_name("bandwidth", bandwidth, ["cv", "silverman"]))
            raise QIPFInputError(f"{unknown.removesuffix('.')}; or give a positive number.")
    elif not is_number(bandwidth) or not 1e-100 <= float(bandwidth) <= 1e100:
        raise QIPFInputError(
            "bandwidth must be 'cv', 'silverman' or a positive number between 1e-100 and 1e100, "
            f"got {bandwidth!r}."
        )


def check_device(device: Any) -> None:
    """Raise `QIPFInputError` for a device that is not ``"auto"`` and not available here."""
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
    """A random generator, from anything that scikit-learn accepts as `random_state`."""
    try:
        return check_random_state(seed)
    except ValueError as error:
        raise QIPFInputError(
            f"random_state must be an integer ≥ 0, None or a numpy RandomState, got {seed!r}."
        ) from error
