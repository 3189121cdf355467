"""The uncertainty above which a row is an outlier, estimated on held-out rows."""

import copy
import math
import sys
from dataclasses import dataclass

from qipf.calibration.quantization import highest, rounded
from qipf.field.estimator import QIPF


@dataclass(frozen=True)
class Limit:
    """A limit of the uncertainty of inliers, and the rows it was estimated on."""

    above: float  # infinite if there are too few held-out rows for any outlier
    share: float  # expected share of outliers among rows like those it was estimated on
    held_out: int | None  # number of held-out rows; None: the training rows were used

    def __str__(self) -> str:
        share, usual = f"{100 * self.share:.4g}%", f"{100 * (1 - self.share):.4g}%"
        if self.held_out is None:
            return (
                f"more uncertain than {usual} of the training rows, which score low because the "
                f"field was fitted on them: of new rows, expect more than {share}. For a limit "
                "that holds for new rows, fit with --calibrate HELD_OUT"
            )
        if math.isinf(self.above):
            return f"{self.held_out:,} held-out rows are too few to detect {share} outliers"
        return f"more uncertain than {usual} of {self.held_out:,} held-out rows"


def outlier_limit(field: QIPF) -> Limit:
    r"""The limit of a field, from its calibration if it has one.

    With :math:`n` held-out scores and a share :math:`\alpha`, its `contamination`, an outlier has a
    conformal p-value :math:`(1 + \#\{i : s_i \ge s\})/(n + 1) \le \alpha`, which for rows like the
    held-out ones has probability :math:`\alpha` at most. Scores are compared after rounding (see
    `qipf.calibration.quantization`).

    Without a calibration the limit is that of `predict`: the :math:`1 - \alpha` quantile of the
    training rows. These score low because the field was fitted on them, so that a larger share of
    new rows lies above it.
    """
    share, held_out = float(field.contamination), field.calibration_
    if held_out is None:
        return Limit(-float(field.offset_), share, None)
    n = len(held_out)
    # an outlier has fewer held-out scores than this at least as high as its own
    fewer = math.floor(share * (n + 1))
    above = highest(float(rounded(held_out.scores[[n - fewer]])[0])) if fewer else math.inf
    return Limit(above, share, n)


def with_limit(field: QIPF, limit: Limit) -> QIPF:
    """A copy of the field whose `predict` uses this limit."""
    limited = copy.copy(field)
    limited.offset_ = -min(limit.above, sys.float_info.max)
    return limited
