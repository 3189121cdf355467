"""What LayeredQIPF refuses, at its door and later."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import LayeredQIPF, QIPFInputError, QIPFNotFittedError
from tests.layered.conftest import FEW, fitted


def test_unfitted(net, fresh, tmp_path):
    model = LayeredQIPF(net)
    message = "This LayeredQIPF is not fitted yet. Call fit(train_loader) first."
    for use in (model, model.uncertainty, model.log_density, model.posteriors, model.explain):
        with pytest.raises(QIPFNotFittedError, match=f"^{re.escape(message)}$"):
            use(fresh)
    with pytest.raises(QIPFNotFittedError, match=f"^{re.escape(message)}$"):
        model.export(fresh)


def test_a_fit_that_fails_leaves_the_old_one(net, data, fresh):
    model = fitted(net, data)
    before = model.uncertainty(fresh)
    with pytest.raises(QIPFInputError):
        model.fit([(data[0], data[1] + 5)])
    assert torch.equal(model.uncertainty(fresh), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_centers": 0}, "max_centers must be an integer of at least 1, got 0."),
        ({"max_dimension": 2.5}, "max_dimension must be an integer of at least 1, got 2.5."),
        ({"max_tuning": True}, "max_tuning must be an integer of at least 1, got True."),
        ({"random_state": None}, "random_state must be an integer from 0 to 4294967294, got None."),
        ({"random_state": -1}, "random_state must be an integer from 0 to 4294967294, got -1."),
        ({"reduction": "kmeans"}, "Unknown reduction 'kmeans'. Known: coreset, random."),
        (
            {"reduction": "coresets"},
            "Unknown reduction 'coresets'. Did you mean 'coreset'? Known: coreset, random.",
        ),
        ({"reduction": None}, "Unknown reduction None. Known: coreset, random."),
        ({"reduction": np.zeros(2)}, "Unknown reduction array([0., 0.]). Known: coreset, random."),
        ({"layers": "last"}, "layers must be 'auto' or a list of layers' names, got 'last'."),
        ({"layers": []}, "layers must be 'auto' or a list of layers' names, got []."),
        ({"layers": ["9"]}, "The network has no layer '9'. Close: 0, 1, 2, 3, 4."),
    ],
)
def test_parameters_that_are_none(net, options, message):
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        LayeredQIPF(net, **options)


def test_numpys_whole_numbers_are_whole_numbers(net):
    model = LayeredQIPF(net, max_centers=np.int64(5), random_state=np.int32(3))
    assert (type(model.max_centers), type(model.random_state)) == (int, int)


def test_what_is_no_network():
    with pytest.raises(QIPFInputError, match=r"^net must be a torch\.nn\.Module, got str\.$"):
        LayeredQIPF("net")


@pytest.mark.parametrize(
    ("inputs", "came"),
    [
        (np.zeros((2, 4)), "ndarray"),
        (torch.zeros(4), "shape (4,)"),
        (None, "NoneType"),
    ],
)
def test_inputs_that_are_none(model, inputs, came):
    message = f"inputs must be a tensor with one row an example, (n, ...), got {came}."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        model(inputs)


def test_inputs_that_are_no_numbers(model, fresh):
    spoilt = fresh.clone()
    spoilt[[3, 8]] = torch.tensor([[torch.nan], [torch.inf]])
    message = (
        "The network's output for these inputs has 2 rows with NaN or inf (rows 3, 8). Drop or "
        "repair them first."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        model(spoilt)


def test_a_network_that_ends_in_a_softmax(net, data):
    message = (
        "The network ends in softmax: its output is activated, but the field needs raw logits. "
        "Remove the activation, or name the layer before it: qipf.wrap(net, layer=...)."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        fitted(nn.Sequential(net, nn.Softmax(1)), data)


def test_a_network_that_was_changed_since(net, data, fresh):
    model = fitted(net, data)
    net[2], net[4] = nn.Linear(6, 7), nn.Linear(7, 3)
    message = (
        "4 (input) gives 7 numbers and the network 3 logits; its field was fitted with 3 and 3. "
        "Fit it again."
    )
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        model(fresh)


@pytest.mark.parametrize("loaded", [False, True])
def test_weights_that_changed_since_are_not_saved(net, data, tmp_path, loaded):
    model = LayeredQIPF(net, **FEW).fit([data])
    if loaded:
        qipf.save(model, tmp_path / "before.qipf")
        model = qipf.load(tmp_path / "before.qipf", net)
    with torch.no_grad():
        net[0].weight.add_(1)
    with pytest.raises(QIPFInputError, match="weights have changed since fit"):
        qipf.save(model, tmp_path / "model.qipf")
    assert not (tmp_path / "model.qipf").exists()
