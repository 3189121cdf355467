"""Models around a network: calibration by a loader, and a network that is left as it was."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import QIPF, Calibration, QIPFInputError


def data(count, seed):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return qipf.wrap(nn.Linear(4, 3), field=QIPF(bandwidth=1.0)).fit(data(300, 0).split(50))


def test_calibration_does_not_depend_on_the_batches(model):
    held_out = data(700, 1)
    logits = model(held_out).logits
    labels = logits.argmax(1)
    labels[::50] = (labels[::50] + 1) % 3
    batches = zip(held_out.split(64), labels.split(64), strict=True)
    assert model.calibrate(batches) is model
    expected = Calibration(model(held_out).uncertainty, logits.argmax(1) != labels)
    np.testing.assert_allclose(model.calibration_.scores, expected.scores, rtol=1e-5)
    assert model.calibration_.wrong.sum() == model.detection_.errors == 14
    assert model.calibration_ is model.field.calibration_  # a field keeps the decisions itself


def test_what_report_is_given_is_named_by_it(model, tmp_path):
    with pytest.raises(QIPFInputError, match="report needs an iterable of batches"):
        qipf.report(model, None, tmp_path / "page.html")


@pytest.mark.parametrize("kind", [qipf.wrap, qipf.LayeredQIPF])
def test_a_network_without_data_is_refused(kind):
    with torch.device("meta"):
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    with pytest.raises(QIPFInputError, match="weights without data, on the device meta"):
        kind(net).fit([(torch.zeros(9, 2), torch.zeros(9))])


@pytest.mark.parametrize(
    ("loader", "phrase"),
    [
        (None, "calibrate needs an iterable of batches"),
        (
            [],
            "The loader is empty: calibrate needs at least one prediction. A generator can be read "
            "only once: make a new one, or pass a list of its batches.",
        ),
        ([data(0, 1)], "The loader is empty"),
        ([data(8, 1) * torch.nan], "8 rows with NaN or inf"),
        ([(data(8, 1), torch.zeros(8)), data(8, 2)], "Batch 1 lacks labels"),
        ([(data(8, 1), torch.full((8,), 3))], "labels of batch 0 must hold classes 0..2"),
        ([(data(8, 1), torch.zeros(7))], "labels of batch 0 must have shape (8,)"),
    ],
)
def test_a_failed_calibration_changes_nothing(model, loader, phrase):
    model.net.train()
    model.calibrate([data(20, 3)])
    before = model.calibration_
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        model.calibrate(loader)
    assert model.net.training
    assert model.calibration_ is before
