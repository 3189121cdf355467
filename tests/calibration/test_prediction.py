"""Predictions as arrays or tensors."""

import numpy as np
import torch

from qipf.calibration.prediction import Prediction, prediction_as


def test_what_is_missing_stays_missing_and_the_rest_is_converted():
    given = Prediction(
        logits=torch.eye(2), predicted=torch.tensor([0, 1]), uncertainty=torch.tensor([0.5, 1.5])
    )
    found = prediction_as(given, np.zeros(1))
    for name, value in vars(given).items():
        if value is None:
            assert getattr(found, name) is None
        else:
            assert isinstance(getattr(found, name), np.ndarray)
            np.testing.assert_array_equal(getattr(found, name), value.numpy())
    again = prediction_as(given, torch.zeros(1))
    assert torch.equal(again.uncertainty, given.uncertainty)
    assert again.p_value is None


def test_the_text_counts_p_values_of_at_most_a_twentieth():
    p = np.array([0.01, 0.04, 0.05, 0.051])
    found = repr(Prediction(np.eye(4), np.arange(4), p, p_value=p))
    assert "at most 0.05: 3 (75 %)" in found
