"""Saved layered models come back to the last bit; nothing else comes in."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import LayeredQIPF, QIPFFileError, QIPFInputError, QIPFNotFittedError, QIPFWarning
from qipf.layered.taps import Tap
from qipf.restoring import FORMAT_VERSION
from qipf.storage import describe, fingerprint, load_field
from tests.stored.write_files import layered, layered_data, layered_network
from tests.test_cli import run
from tests.test_storage import Forge, changed

STORED = Path(__file__).parent / "stored" / f"layers-v{FORMAT_VERSION}.qipf"
INPUTS = torch.randn(30, 4, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def model():
    return layered()


@pytest.fixture(scope="module")
def valid(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("valid") / "layers.qipf"
    qipf.save(model, path)
    return path.read_bytes()


# ---------------------------------------------------------------------- round trips


def assert_same(loaded, model):
    for name in ("uncertainty", "log_density", "opinions"):
        assert torch.equal(getattr(loaded, name)(INPUTS), getattr(model, name)(INPUTS))
    assert loaded.explain(INPUTS) == model.explain(INPUTS)
    assert loaded.layers_ == model.layers_
    assert np.array_equal(loaded.center_indices_, model.center_indices_)
    assert torch.equal(loaded.weights_, model.weights_)


@pytest.mark.parametrize("layers", ["auto", ["1", "3"]])
def test_a_model_comes_back_to_the_last_bit(tmp_path, layers):
    net, data = layered_network(), layered_data()
    options = {"max_centers": 35, "max_dimension": 2, "max_tuning": 45, "random_state": 7}
    model = LayeredQIPF(net, layers, **options).fit([data])
    qipf.save(model, tmp_path / "layers.qipf")
    loaded = qipf.load(tmp_path / "layers.qipf", net)
    assert_same(loaded, model)
    assert loaded.net is net
    assert loaded.layers == layers
    assert {name: getattr(loaded, name) for name in options} == options


def test_the_same_model_gives_the_same_bytes(tmp_path, model, valid):
    (tmp_path / "a").write_bytes(valid)
    qipf.save(qipf.load(tmp_path / "a", model.net), tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == valid


def test_a_file_of_this_version_scores_as_when_it_was_written():
    loaded = qipf.load(STORED, layered_network())
    answers = json.loads(STORED.with_suffix(".json").read_text())
    found = loaded.uncertainty(torch.tensor(answers["queries"]))
    np.testing.assert_allclose(found.numpy(), answers["uncertainty"], rtol=1e-5, atol=1e-5)


def test_a_model_without_layers_of_use(tmp_path):
    net, (inputs, labels) = layered_network(), layered_data()
    with torch.no_grad():
        net[0].weight.zero_()
    with pytest.warns(QIPFWarning):
        model = LayeredQIPF(net).fit([(inputs, labels)])
    assert model.layers_ == ()
    qipf.save(model, tmp_path / "layers.qipf")
    assert_same(qipf.load(tmp_path / "layers.qipf", net), model)


def test_it_can_be_fitted_again_and_asks_for_an_example_to_be_exported(model, valid, tmp_path):
    (tmp_path / "a").write_bytes(valid)
    loaded = qipf.load(tmp_path / "a", layered_network())
    with pytest.raises(QIPFInputError, match="Pass example="):
        loaded.export()
    assert_same(loaded.fit([layered_data()]), model)


# ---------------------------------------------------------------------- its network


def test_it_needs_its_network(tmp_path, valid):
    path = tmp_path / "layers.qipf"
    path.write_bytes(valid)
    message = f"{path} holds the fields of a LayeredQIPF. Pass its network: qipf.load(path, net)."
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}$"):
        qipf.load(path)
    other = layered_network()
    with torch.no_grad():
        other[0].bias += 1
    message = (
        f"{path} belongs to another network: fitted with weights {fingerprint(layered_network())}, "
        f"this network has {fingerprint(other)}. Load the weights it was fitted with, or pass "
        "check=False."
    )
    with pytest.raises(QIPFFileError, match=f"^{re.escape(message)}$"):
        qipf.load(path, other)
    assert qipf.load(path, other, check=False).uncertainty(INPUTS).shape == (30,)
    with pytest.raises(QIPFInputError, match=r"^The network has no layer '2'\. Close: "):
        qipf.load(path, nn.Sequential(nn.Linear(4, 3)), check=False)
    wider = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3), nn.Tanh(), nn.Linear(3, 3))
    with pytest.raises(QIPFInputError, match="gives 9 numbers and the network 3 logits; its field"):
        qipf.load(path, wider, check=False)(INPUTS)


def test_it_is_no_field(tmp_path, valid):
    path = tmp_path / "layers.qipf"
    path.write_bytes(valid)
    message = f"{path} holds the fields of a network's layers, not a field."
    with pytest.raises(QIPFFileError, match=f"^{re.escape(message)}$"):
        load_field(path)


def test_unfitted_is_not_written(tmp_path):
    with pytest.raises(QIPFNotFittedError, match="^There is nothing to save yet: fit the model"):
        qipf.save(LayeredQIPF(layered_network()), tmp_path / "layers.qipf")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- what is told of it


def test_describe_tells_what_is_inside(tmp_path, model, valid):
    path = tmp_path / "layers.qipf"
    path.write_bytes(valid)
    told = describe(path)
    assert (told["kind"], told["centers"], told["bytes"]) == ("layers", {"count": 40}, len(valid))
    assert told["softmax_weight"] == float(model.weights_[0])
    assert [layer["weight"] for layer in told["layers"]] == model.weights_.tolist()[1:]
    assert [(layer["layer"], layer["side"]) for layer in told["layers"]] == [
        ("2", "input"), ("4", "input"),
    ]  # fmt: skip
    assert [layer["width"] for layer in told["layers"]] == [6, 3]
    assert [layer["dimension"] for layer in told["layers"]] == [6, 3]
    assert told["parameters"]["max_centers"] == 40
    assert json.loads(json.dumps(told)) == told


def test_show_prints_it(monkeypatch, capsys, tmp_path, model, valid):
    path = tmp_path / "layers.qipf"
    path.write_bytes(valid)
    code, out, err = run(monkeypatch, capsys, "show", path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    weights = model.weights_.tolist()
    assert lines[1] == "  kind          fields of a network's layers"
    assert lines[3:7] == [
        "  centres       40 in every layer",
        f"  softmax       weight {weights[0]:.3f}",
        f"  layers        2 (input), weight {weights[1]:.3f}, bandwidth "
        f"{model.fields_[0].bandwidth:.4g}, 6 numbers narrowed to 6",
        f"                4 (input), weight {weights[2]:.3f}, bandwidth "
        f"{model.fields_[1].bandwidth:.4g}, 3 numbers narrowed to 3",
    ]
    assert lines[-1] == f"  network       weights {fingerprint(model.net)}"


# ---------------------------------------------------------------------- files that lie


def refused(path, data, reason):
    path.write_bytes(data)
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: ")) as error:
        qipf.load(path, layered_network())
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("kind",), "layer", "its kind is 'layer'"),
        (("kind",), "field", "its header is ["),
        (("parameters",), {}, "its list of parameters is []"),
        (("parameters", "layers"), "all", "its layers are 'all'"),
        (("parameters", "layers"), [], "its layers are []"),
        (("parameters", "layers"), [3], "its layers are [3]"),
        (("parameters", "max_centers"), 0, "its max_centers is 0"),
        (("parameters", "max_tuning"), 2.0, "its max_tuning is 2.0"),
        (("parameters", "random_state"), -1, "its random_state is -1"),
        (("parameters", "random_state"), 2**32, "its random_state is 4294967296"),
        (("layers",), {}, "its layers are {}"),
        (("layers",), [], "its arrays are ["),
        (("layers", 0), {"layer": "2"}, "its layer is ['layer']"),
        (("layers", 0, "layer"), 2, "its layer is 2 ('input')"),
        (("layers", 0, "layer"), "4", "its layers are not different ones of one network"),
        (("layers", 0, "side"), "inside", "its layer is '2' ('inside')"),
        (("layers", 0, "gain_free"), 1, "its gain_free is 1"),
        (("layers", 0, "bandwidth"), 0.0, "its bandwidth is 0.0"),
        (("layers", 0, "bandwidth"), 1e-200, "its bandwidth is 1e-200"),
        (("layers", 0, "bandwidth"), 1, "its bandwidth is 1"),
        (("layers", 0, "classes"), 1, "its number of classes is 1"),
        (("layers", 0, "classes"), 5, "its layers are not different ones of one network"),
        (("network",), None, "its network is None"),
        (("network", "fingerprint"), 3, "its fingerprint is 3"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, valid, keys, value, reason):
    refused(tmp_path / "forged.qipf", changed(valid, *keys, value=value), reason)


def test_classes_beyond_memory_are_refused(tmp_path, valid):
    forge = Forge(valid)
    for layer in forge.header["layers"]:
        layer["classes"] = 2**40
    refused(tmp_path / "forged.qipf", forge.data(), "more than can be held")


def lie(name, value, place=0):
    def change(forge):
        forge.array(name)[place] = value

    return change


def other_shape(name, shape):
    def change(forge):
        forge.entries[name]["shape"] = shape

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lie("weights", -0.5), "its weights are not 3 shares of one"),
        (lie("weights", 2.0), "its weights are not 3 shares of one"),
        (lie("weights", np.nan), "its weights hold NaN or inf"),
        (lie("center_indices", 0.5), "its center_indices are not places in a loader"),
        (lie("center_indices", -1), "its center_indices are not places in a loader"),
        (lie("center_indices", 2.0**60), "its center_indices are not places in a loader"),
        (lie("center_indices", 7, slice(0, 2)), "its center_indices are not places in a loader"),
        (lie("labels", 3), "its labels are not classes 0..2"),
        (lie("labels", 0.5), "its labels are not classes 0..2"),
        (lie("mean 0", np.inf), "its mean 0 hold NaN or inf"),
        (lie("directions 1", 3e38), "its directions or units of layer 1 are longer than one"),
        (lie("units 0", 2.0), "its directions or units of layer 0 are longer than one"),
        (other_shape("units 0", [20, 12]), "its arrays of layer 0 do not fit each other"),
        (other_shape("mean 0", [1, 6]), "its mean 0 are float32 of shape (1, 6)"),
        (other_shape("labels", [20, 2]), "its labels are float64 of shape (20, 2)"),
        (other_shape("directions 0", [4, 9]), "its arrays of layer 0 do not fit each other"),
    ],
)
def test_arrays_that_lie_are_refused(tmp_path, valid, change, reason):
    forge = Forge(valid)
    change(forge)
    refused(tmp_path / "forged.qipf", forge.data(), reason)


def test_one_array_too_many_or_too_few(tmp_path, valid):
    forge = Forge(valid)
    forge.entries["more"] = forge.entries.pop("mean 0")
    refused(tmp_path / "forged.qipf", forge.data(), "its arrays are ['center_indices',")


def test_a_forged_but_sound_file_is_read(tmp_path, model, valid):
    path = tmp_path / "forged.qipf"
    path.write_bytes(changed(valid, "library_version", value="9.9"))
    loaded = qipf.load(path, layered_network())
    assert_same(loaded, model)
    assert loaded.layers_[0] == Tap("2", "input")
