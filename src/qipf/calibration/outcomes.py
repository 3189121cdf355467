"""Scores and errors of predictions on labelled data, for calibration sets, plots and reports."""

from typing import NamedTuple

from torch import Tensor


class Outcomes(NamedTuple):
    """Scores of some predictions, and their errors if labels are known."""

    rows: Tensor  # (n, d) logits, or what else a field was fitted on
    uncertainty: Tensor  # (n,)
    novelty: Tensor  # (n,)
    wrong: Tensor | None = None  # (n,) booleans
    labels: Tensor | None = None  # (n,) true classes
    are_logits: bool = True  # whether the rows are logits of the classes
