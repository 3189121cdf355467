"""Layered models as graphs: the network, its layers' fields and the uncertainty in one."""

import re

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import qipf
from qipf import LayeredQIPF, QIPFError, QIPFInputError, QIPFNotFittedError, QIPFWarning
from qipf.export import onnx as checking
from qipf.storage.save_load import fingerprint
from tests.export.conftest import to_judge
from tests.export.test_onnx import relative, run
from tests.layered.conftest import fitted
from tests.stored.write_files import layered, layered_data, layered_network

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("onnx_operators")]


def small_network():
    """Convolutions with maps that no grid divides, batch norm, an activation in place, dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(inplace=True),
        nn.Conv2d(10, 8, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(8 * 10 * 10, 12), nn.Tanh(), nn.Linear(12, 10),
    )  # fmt: skip


@pytest.fixture(scope="module")
def images():
    from qipf.bench import datasets

    digits = datasets.load("digits")
    enlarged = nn.functional.interpolate(digits.train_images[:500] / 255, size=11)
    return enlarged, digits.train_labels[:500]


@pytest.fixture(scope="module")
def conv(images):
    net = small_network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[0]), images[1]).backward()
        optimizer.step()
    model = LayeredQIPF(net, max_centers=300, max_tuning=60, reduction="random").fit([images])
    assert model.weights_[0] < 1  # its layers are used
    return model


@pytest.fixture(scope="module")
def conv_file(conv, tmp_path_factory):
    return conv.export_onnx(tmp_path_factory.mktemp("layered") / "conv.onnx")


def assert_agrees(got, model, inputs):
    said = model(inputs)
    logits = said.logits.numpy()
    largest = np.abs(logits).max(axis=1, keepdims=True, initial=1.0)
    assert relative(got["logits"] / largest, logits / largest) < 1e-4
    assert relative(got["uncertainty"], said.uncertainty) < 1e-4
    assert relative(got["probabilities"], said.probabilities) < 1e-4
    assert relative(got["p_error"], said.p_error) < 1e-4
    assert relative(got["novelty"], said.novelty) < 1e-4


@pytest.mark.parametrize("length", [0, 1, 7, 240])
def test_onnx_for_a_batch_of_any_length(conv, conv_file, images, length):
    judged = to_judge(images[0][:60])[:length]
    got = run(conv_file.path, input=judged.numpy())
    assert {name: (part.shape, part.dtype) for name, part in got.items()} == {
        "logits": ((length, 10), np.float32),
        "uncertainty": ((length,), np.float64),
        "probabilities": ((length, 10), np.float64),
        "p_error": ((length,), np.float64),
        "novelty": ((length,), np.float64),
    }
    assert_agrees(got, conv, judged)


def test_what_is_told_of_the_file(conv, conv_file):
    assert conv_file.path.stat().st_size == conv_file.bytes
    assert conv_file.centers == 300 == max(len(field.embeddings) for field in conv.fields_)
    assert conv_file.outputs == ("logits", "uncertainty", "probabilities", "p_error", "novelty")
    assert conv_file.difference < 1e-4
    meta = onnxruntime.InferenceSession(conv_file.path).get_modelmeta().custom_metadata_map
    assert meta == {
        "qipf.version": qipf.__version__,
        "qipf.centers": str(conv_file.centers),
        "qipf.layers": ",".join(map(str, conv.layers_)),
        "qipf.weights": ",".join(map(repr, conv.weights_.tolist())),
        "qipf.error_model": ",".join(map(repr, conv.error_model_.parameters())),
        "qipf.novelty_model": ",".join(map(repr, conv.novelty_model_.parameters())),
        "qipf.fingerprint": fingerprint(conv.net),
    }


def test_no_number_no_trust(conv_file, images):
    shown = images[0][:3].clone()
    shown[1, 0, 2, 2] = torch.nan
    got = run(conv_file.path, input=shown.numpy())["uncertainty"]
    assert np.isnan(got).tolist() == [False, True, False]


def test_a_program_of_torch_export(conv, images):
    program = conv.export(images[0][:1])
    for length in (1, 5, 40):
        got = program.module()(images[0][:length])
        assert_agrees(
            {name: part.detach().numpy() for name, part in got.items()}, conv, images[0][:length]
        )


def test_weighted_centres_go_with_it(tmp_path):
    """To the last bit as saved and loaded."""
    model, (inputs, _) = layered("coreset"), layered_data()
    assert all(float(field.counts.max()) > 1 for field in model.fields_)
    qipf.save(model, tmp_path / "model.qipf")
    loaded = qipf.load(tmp_path / "model.qipf", layered_network())
    mine, its = (kept.export(inputs[:2]).module()(inputs) for kept in (model, loaded))
    assert all(torch.equal(mine[name], its[name]) for name in mine)
    assert_agrees({name: part.detach().numpy() for name, part in mine.items()}, model, inputs)


def test_fitted_loaded_and_called_in_inference_mode(tmp_path):
    (inputs, labels), net = layered_data(), layered_network()
    with torch.inference_mode():
        fitted(net, (inputs.clone(), labels)).save(tmp_path / "model.qipf")
        model, example = qipf.load(tmp_path / "model.qipf", net), inputs[:2].clone()
    assert torch.equal(model.uncertainty(inputs), fitted(net, (inputs, labels)).uncertainty(inputs))
    found = model.export(example).module()(inputs)
    assert_agrees({name: part.detach().numpy() for name, part in found.items()}, model, inputs)
    written = model.export_onnx(tmp_path / "model.onnx", example, check=False)  # compared here
    assert_agrees(run(written.path, input=inputs.numpy()), model, inputs)


def test_certainty_stays_finite_and_a_missing_class_is_left_to_the_softmax(tmp_path):
    """The smallest numbers are float64's, which the exporter would round to zero."""
    net, (inputs, labels) = layered_network(), layered_data()
    inputs, labels = inputs[labels != 2], labels[labels != 2]
    with torch.no_grad():
        net[4].weight *= 1000
    with pytest.warns(QIPFWarning, match="no training examples of class 2"):
        model = fitted(net, (inputs, labels))
    written = model.export_onnx(tmp_path / "model.onnx", check=False)  # compared here
    assert written.centers == max(len(field.embeddings) for field in model.fields_) <= 40
    got = run(written.path, input=inputs.numpy())
    assert np.isfinite(got["uncertainty"]).all()
    assert_agrees(got, model, inputs)


def test_the_network_is_left_as_it_was():
    model = layered()
    model.net.train()
    model.export()
    assert model.net.training
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.net.modules())


def test_an_example_the_network_cannot_take():
    message = "The network cannot take input of shape (2, 9), float32: mat1 and mat2"
    with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}"):
        layered().export(torch.zeros(2, 9))
    with pytest.raises(QIPFInputError, match=r"2 positional arguments .* It was fitted with input"):
        layered().export((torch.zeros(2, 4), torch.zeros(2, 4)))


def test_unfitted_is_refused(tmp_path):
    with pytest.raises(QIPFNotFittedError, match="^This LayeredQIPF is not fitted yet"):
        LayeredQIPF(layered_network()).export_onnx(tmp_path / "model.onnx", torch.zeros(2, 4))


@pytest.mark.parametrize("score", ["uncertainty", "novelty"])
def test_a_file_that_scores_otherwise_is_not_written(tmp_path, monkeypatch, conv, conv_file, score):
    data = conv_file.path.read_bytes()
    monkeypatch.setattr("qipf.export.onnx.converted", lambda *_: data)  # spares the conversion

    def wrong(*given):
        want = checking.expected(*given)
        return want._replace(scores=want.scores | {score: want.scores[score] + 0.5})

    monkeypatch.setattr("qipf.network.model.expected", wrong)
    message = f"The file's {score} differs from PyTorch's by 0."
    with pytest.raises(QIPFError, match=f"^{re.escape(message)}.*so it was not written"):
        conv.export_onnx(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
