"""Outcomes of held-out predictions: what a model says of its rows unless told otherwise."""

import numpy as np

from qipf import QIPF
from qipf.calibration.outcomes import Outcomes
from tests.conftest import make_logits


def test_rows_are_logits_unless_errors_were_given_apart():
    rows = make_logits(60)
    assert Outcomes(rows, rows[:, 0], rows[:, 1]).are_logits
    held_out, wrong = make_logits(60, seed=1).numpy(), np.arange(60) % 3 == 0
    field = QIPF(bandwidth=3.0).fit(rows.numpy())
    assert field.calibrate(held_out, wrong=wrong).detection_.entropy is None
    labels = np.where(wrong, (held_out.argmax(1) + 1) % 10, held_out.argmax(1))
    assert field.calibrate(held_out, labels).detection_.entropy is not None
