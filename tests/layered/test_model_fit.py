"""What `LayeredQIPF.fit` measures, and the calibration data that it refuses."""

import pytest

from qipf import QIPFInputError
from tests.layered.conftest import batches, fitted


def test_error_detection_is_measured_on_held_out_examples(net, data):
    model = fitted(net, data)
    found = model.detection_
    assert found.rows == "errors of held-out training inputs and perturbed copies"
    assert 0 < found.errors < found.count
    assert found.uncertainty > found.entropy - 0.05  # else the softmax would be used alone
    assert f"ROC-AUC {found.uncertainty:.3f} (entropy {found.entropy:.3f}" in model.summary()


def test_training_data_cannot_calibrate(net, data):
    model = fitted(net, data)
    with pytest.raises(QIPFInputError, match="are training rows"):
        model.calibrate(batches(data, 37))
    assert model.calibration_ is None
