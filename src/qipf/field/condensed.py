"""The same field with fewer centres."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from qipf.field.coreset import coreset

if TYPE_CHECKING:
    from qipf.field.estimator import QIPF


def condensed(field: QIPF, size: int, *, random_state: Any = 0) -> QIPF:
    """A fitted field of at most `size` weighted centres that stand for all of the field's centres.

    Bandwidth, energies and offset stay, so its scores are estimates of the field's own. A
    calibration set or accept rule of the field does not belong to it: calibrate it anew.
    """
    counts = None
    if field.log_weights_ is not None:
        counts = np.exp(field.log_weights_) * field.n_samples_seen_
    small = coreset(field.centers_, size, weights=counts, random_state=random_state)
    if len(small.centers) == len(field.centers_):
        return field
    twin = clone(field)
    copied = (*field.learned, "n_samples_seen_", "n_features_in_", "feature_names_in_")
    for name in copied:
        if hasattr(field, name):
            setattr(twin, name, getattr(field, name))
    twin.centers_, twin.log_weights_ = small.centers, small.log_weights
    twin.spread_ = math.hypot(field.spread_, small.spread)
    return twin
