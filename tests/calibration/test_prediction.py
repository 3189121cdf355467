"""Predictions as arrays or tensors."""

import re

import numpy as np
import pytest
import torch

from qipf import QIPFInputError
from qipf.calibration.conformal import Calibration
from qipf.calibration.prediction import Prediction, prediction_as, require_same_model


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


def test_p_values_tell_whose_a_prediction_is():
    own, other = Calibration([1.0, 2.0, 3.0]), Calibration([1.0, 2.0, 3.0, 4.0])
    doubt = np.array([[0.5, 2.5], [3.5, np.nan]])  # of two pixels, one without scores
    p = own.p_values(doubt.ravel()).reshape(2, 2)
    p[1, 1] = np.nan
    found = Prediction(np.zeros((2, 2, 2)), np.zeros((2, 2)), doubt, p_value=p)
    require_same_model(found, own, "the monitor's")
    expected = (
        "This Prediction was made by another model, or with another calibration set, than the "
        "monitor's. Pass a Prediction of the monitor's model."
    )
    with pytest.raises(QIPFInputError, match=re.escape(expected)):
        require_same_model(found, other, "the monitor's")
    require_same_model(Prediction(np.zeros((4, 2)), np.zeros(4), doubt), other, "the monitor's")
