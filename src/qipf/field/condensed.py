"""The same field with fewer centres."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import clone

from qipf.field.coreset import coreset
from qipf.field.estimator import LEARNED, QIPF


def condensed(field: QIPF, size: int, *, random_state: Any = 0) -> QIPF:
    """A fitted field of at most `size` weighted centres that stand for all of the field's.

    Bandwidth, energies and offset stay, so that its scores are estimates of the field's own. An
    accept rule was calibrated on those, not on the estimates: calibrate another.

    >>> field = QIPF().fit(np.random.default_rng(0).normal(size=(500, 2)))
    >>> small = condensed(field, 50)
    >>> len(small.centers_), small.bandwidth_ == field.bandwidth_
    (50, True)
    """
    counts = None
    if field.log_weights_ is not None:
        counts = np.exp(field.log_weights_) * field.n_samples_seen_
    small = coreset(field.centers_, size, weights=counts, random_state=random_state)
    if len(small.centers) == len(field.centers_):
        return field
    twin = clone(field)
    for name in (*LEARNED, "n_samples_seen_", "n_features_in_", "feature_names_in_"):
        if hasattr(field, name):
            setattr(twin, name, getattr(field, name))
    twin.centers_, twin.log_weights_ = small.centers, small.log_weights
    twin.spread_ = math.hypot(field.spread_, small.spread)
    twin._fields, twin._energies = {}, {}
    return twin
