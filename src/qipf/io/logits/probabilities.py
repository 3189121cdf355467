"""Probabilities where logits belong: nothing is converted, but the reader is told."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qipf.errors import QIPFWarning

#: How far a row of probabilities that were rounded for a text file may sum from 1.
ROUNDING = 1e-3


def look_like_probabilities(logits: NDArray[Any]) -> bool:  # (n, d)
    """Whether no number is negative and every row sums to 1.

    >>> look_like_probabilities(np.array([[0.9, 0.1], [0.25, 0.75]]))
    True
    >>> look_like_probabilities(np.log([[0.9, 0.1], [0.25, 0.75]]))
    False
    """
    if logits.shape[1] < 2 or not len(logits):
        return False
    return bool((logits >= 0).all() and (abs(logits.sum(1, dtype=np.float64) - 1) < ROUNDING).all())


def warn_of_probabilities(path: str, logits: NDArray[Any]) -> None:  # (n, d)
    """Warn where the rows of a file look like probabilities."""
    if look_like_probabilities(logits):
        warnings.warn(
            f"{path} seems to hold probabilities: no number is negative, and every row sums to 1. "
            "They are taken as they are, but a field is meant for logits: pass the network's "
            "outputs before its softmax or, if these are lost, the probabilities' logarithms, in "
            "training and test files alike.",
            QIPFWarning,
            stacklevel=2,
        )
