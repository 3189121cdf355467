"""From which uncertainty on a row is called an outlier: a limit that held-out rows set."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from qipf.calibration.conformal import Calibration
from qipf.calibration.quantization import highest, rounded
from qipf.field.estimator import QIPF


@dataclass(frozen=True)
class Limit:
    """What is more uncertain than this is an outlier, and what the limit rests on."""

    above: float  # infinite where there are too few held-out rows to call anything an outlier
    share: float  # of rows like those it rests on that lie above it, about
    held_out: int | None  # rows that the field does not know; None: the training rows

    def __str__(self) -> str:
        share, usual = f"{100 * self.share:.4g}%", f"{100 * (1 - self.share):.4g}%"
        if self.held_out is None:
            return (
                f"more uncertain than {usual} of the training rows, which sit too comfortably in "
                f"their own field: of new rows, expect more than {share}. For a limit that holds "
                "for new rows, fit with --calibrate HELD_OUT"
            )
        if math.isinf(self.above):
            return f"{self.held_out:,} held-out rows are too few to tell which {share} are outliers"
        return f"more uncertain than {usual} of {self.held_out:,} held-out rows"


def outlier_limit(field: QIPF) -> Limit:
    r"""The limit of a field, from its calibration where it has one.

    With :math:`n` held-out scores and a share :math:`\alpha`, its `contamination`, an outlier has a
    conformal p-value :math:`(1 + \#\{i : s_i \ge s\})/(n + 1) \le \alpha`, which for rows like the
    held-out ones happens with probability :math:`\alpha` at most. Scores that differ by no more
    than `qipf.calibration.quantization` counts as the limit itself.

    Without a calibration the limit is that of `predict`: the :math:`1 - \alpha` quantile of the
    training rows. They lie among their own kernels, where every field is calm, so that more of any
    new data lie above it.

    >>> import numpy as np
    >>> field = QIPF(contamination=0.2).fit(np.random.default_rng(0).normal(size=(100, 2)))
    >>> field.calibration_ = Calibration(np.arange(1.0, 10.0))
    >>> 8.0 < outlier_limit(field).above < 8.001
    True
    """
    share, held_out = float(field.contamination), field.calibration_
    if held_out is None:
        return Limit(-float(field.offset_), share, None)
    return Limit(_above(held_out, share), share, len(held_out))


def _above(held_out: Calibration, share: float) -> float:
    n = len(held_out)
    # the number of held-out scores at least as high that an outlier may have
    most = math.floor(share * (n + 1)) - 1
    if most < 0:
        return math.inf
    return highest(float(rounded(held_out.scores[n - 1 - most : n - most])[0]))


def judged_by(field: QIPF, limit: Limit) -> QIPF:
    """The same field, whose `predict` goes by this limit."""
    judge = copy.copy(field)
    judge.offset_ = -limit.above
    return judge
