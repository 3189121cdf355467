"""How much of its data a fit tries out, to choose metrics, bandwidths and weights."""

import sys
from typing import NamedTuple


class Effort(NamedTuple):
    """Sizes of the trials of a fit."""

    tuning: int  # most examples that are held out, beside the limit of the user
    strength_share: float  # of them, by which the strengths of perturbations are found
    halvings: int  # bisection steps of that search
    rows: int  # most tuning rows that fields are compared at
    centers: int  # of a field that is compared
    metric_rows: int  # most rows that a metric is made from
    steps: float  # share of the steps in which distilled fields are fitted


#: By name.
EFFORTS = {
    "full": Effort(sys.maxsize, 0.5, 7, 4000, 6000, 20_000, 1.0),
    "fast": Effort(250, 1.0, 6, 4000, 2000, 10_000, 0.5),
}

FULL = EFFORTS["full"]
