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
from qipf.io.schema import FORMAT_VERSION
from qipf.network.features import LayerSite
from qipf.storage.save_load import describe, fingerprint, load_field
from tests.cli.commands import run
from tests.storage.forged_files import changed, saved
from tests.stored.write_files import layered, layered_data, layered_network

STORED = Path(__file__).parents[1] / "stored"
INPUTS = torch.randn(30, 4, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def model():
    return layered()


@pytest.fixture(scope="module")
def valid(model, tmp_path_factory):
    return saved(model, tmp_path_factory)


@pytest.fixture(scope="module")
def condensed():
    return layered("coreset")


# ---------------------------------------------------------------------- round trips


def assert_same(loaded, model):
    for name in ("uncertainty", "log_density", "posteriors"):
        assert torch.equal(getattr(loaded, name)(INPUTS), getattr(model, name)(INPUTS))
    assert loaded.explain(INPUTS) == model.explain(INPUTS)
    assert loaded.layers_ == model.layers_
    assert torch.equal(loaded.weights_, model.weights_)
    for one, two in zip(loaded.fields_, model.fields_, strict=True):
        for name in ("embeddings", "labels", "counts", "examples"):
            assert torch.equal(getattr(one, name), getattr(two, name))
        assert one.bandwidth == two.bandwidth


@pytest.mark.parametrize("reduction", ["random", "coreset"])
@pytest.mark.parametrize("layers", ["auto", ["1", "3"]])
def test_a_model_comes_back_to_the_last_bit(tmp_path, layers, reduction):
    net, data = layered_network(), layered_data()
    options = {"max_centers": 35, "max_dimension": 2, "max_tuning": 45, "random_state": 7}
    options["reduction"] = reduction
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


@pytest.mark.parametrize("path", sorted(STORED.glob("*.json")), ids=lambda path: path.stem)
def test_files_of_every_version_score_as_when_they_were_written(path):
    loaded = qipf.load(path.with_suffix(".qipf"), layered_network())
    answers = json.loads(path.read_text())
    found = loaded.uncertainty(torch.tensor(answers["queries"]))
    np.testing.assert_allclose(found.numpy(), answers["uncertainty"], rtol=1e-5, atol=1e-5)


def test_every_version_has_its_files():
    assert FORMAT_VERSION == 3
    names = ["condensed-v3", "layers-v3"]
    assert sorted(path.stem for path in STORED.glob("*.json")) == names
    weighted = [
        [layer["weighted"] for layer in describe(STORED / f"{name}.qipf")["layers"]]
        for name in names
    ]
    assert weighted == [[True, True], [False, False]]


def test_weighted_centres_make_a_smaller_file(tmp_path):
    sizes = []
    for options in ({}, {"max_centers": 40, "reduction": "coreset"}):
        model = LayeredQIPF(layered_network(), max_tuning=50, **options).fit([layered_data()])
        qipf.save(model, tmp_path / "layers.qipf")
        sizes.append((tmp_path / "layers.qipf").stat().st_size)
    assert sizes[1] < sizes[0] / 3


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
    assert [layer["centers"] for layer in told["layers"]] == [40, 40]
    assert [layer["weighted"] for layer in told["layers"]] == [False, False]
    assert (told["parameters"]["max_centers"], told["parameters"]["reduction"]) == (40, "random")
    assert json.loads(json.dumps(told)) == told


def test_show_prints_it(monkeypatch, capsys, tmp_path, model, valid):
    path = tmp_path / "layers.qipf"
    path.write_bytes(valid)
    code, out, err = run(monkeypatch, capsys, "show", path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    weights = model.weights_.tolist()
    assert lines[1] == "  kind          fields of a network's layers"
    assert lines[3:6] == [
        f"  softmax       weight {weights[0]:.3f}",
        f"  layers        2 (input), weight {weights[1]:.3f}, 40 centres, bandwidth "
        f"{model.fields_[0].bandwidth:.4g}, 6 numbers projected to 6",
        f"                4 (input), weight {weights[2]:.3f}, 40 centres, bandwidth "
        f"{model.fields_[1].bandwidth:.4g}, 3 numbers projected to 3",
    ]
    assert lines[-2].startswith("  parameters    layers=auto, max_centers=40, ")
    assert lines[-1] == f"  network       weights {fingerprint(model.net)}"


def test_show_tells_weighted_centres(monkeypatch, capsys, tmp_path, condensed):
    qipf.save(condensed, tmp_path / "layers.qipf")
    _, out, _ = run(monkeypatch, capsys, "show", tmp_path / "layers.qipf")
    counts = [len(field.embeddings) for field in condensed.fields_]
    lines = out.splitlines()[4:6]
    for line, count in zip(lines, counts, strict=True):
        assert f", {count} weighted centres, bandwidth " in line


def test_a_forged_but_sound_file_is_read(tmp_path, model, valid):
    path = tmp_path / "forged.qipf"
    path.write_bytes(changed(valid, "library_version", value="9.9"))
    loaded = qipf.load(path, layered_network())
    assert_same(loaded, model)
    assert loaded.layers_[0] == LayerSite("2", "input")
