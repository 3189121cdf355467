"""ONNX files, opened by ONNX Runtime: the scores of PyTorch, for a batch of any length."""

import runpy
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import qipf
from qipf import QIPF
from qipf.storage.save_load import fingerprint
from tests.conftest import make_logits
from tests.export.conftest import trained

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("onnx_operators")]

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(path, **inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def relative(got, want):
    """Largest difference relative to max(1, |value|): scores cross zero, where no other is."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float((np.abs(got - want) / np.maximum(1, np.abs(want))).max(initial=0.0))


def assert_agrees(got, model, images):
    prediction = model(images)
    logits = prediction.logits.numpy()
    largest = np.abs(logits).max(axis=1, keepdims=True, initial=1.0)
    assert relative(got["logits"] / largest, logits / largest) < 1e-4
    assert relative(got["uncertainty"], prediction.uncertainty) < 1e-4
    assert relative(got["modes"], model.field.modes(prediction.logits)) < 1e-4
    assert relative(got["novelty"], prediction.novelty) < 1e-4


# ---------------------------------------------------------------------- the benchmark's networks


@pytest.mark.parametrize("length", [0, 1, 7, 64, 300])
def test_digits_for_a_batch_of_any_length(digits, digits_file, length):
    model, images = digits
    got = run(digits_file.path, input=images[:length].numpy())
    assert {name: (part.shape, part.dtype) for name, part in got.items()} == {
        "logits": ((length, 10), np.float32),
        "uncertainty": ((length,), np.float64),
        "modes": ((length, 4), np.float64),
        "novelty": ((length,), np.float64),
    }
    assert_agrees(got, model, images[:length])


@pytest.mark.parametrize(("name", "channels", "size"), [("lenet", 1, 28), ("vgg3", 3, 32)])
def test_lenet_and_vgg3(name, channels, size, tmp_path):
    model, images = trained(name, channels, size, epochs=1, rows=120, orders=(1, 2))
    images = images[::5]
    written = model.export_onnx(tmp_path / f"{name}.onnx")
    assert written.difference < 1e-4
    assert_agrees(run(written.path, input=images.numpy()), model, images)
    for length in (0, 1, 7):
        got = run(written.path, input=images[:length].numpy())
        assert_agrees(got, model, images[:length])


def test_the_judgement_is_of_float64_whatever_the_network_is(digits, digits_file):
    """Given the file's own logits, nothing is lost: what differs is the network's rounding."""
    model, images = digits
    got = run(digits_file.path, input=images.numpy())
    exact = model.field.modes(got["logits"].astype(np.float64))
    np.testing.assert_allclose(got["modes"], exact, rtol=1e-9, atol=1e-9)


def test_what_is_told_of_the_file(digits_file):
    assert digits_file.path.stat().st_size == digits_file.bytes
    assert digits_file.centers == 1198
    assert digits_file.inputs == ("input",)
    assert digits_file.outputs == ("logits", "uncertainty", "modes", "novelty")
    assert digits_file.difference < 1e-5


def test_what_the_file_tells_of_itself(digits, digits_file):
    model, _ = digits
    session = onnxruntime.InferenceSession(digits_file.path)
    assert session.get_modelmeta().custom_metadata_map == {
        "qipf.version": qipf.__version__,
        "qipf.orders": "1,2,3,4",
        "qipf.softening": "0.0",
        "qipf.normalization": "standard",
        "qipf.bandwidth": repr(model.field.bandwidth_),
        "qipf.centers": "1198",
        "qipf.dimension": "10",
        "qipf.samples": "1198",
        "qipf.layer": "logits",
        "qipf.pooling": "mean",
        "qipf.fingerprint": fingerprint(model.net),
    }
    ends = [*session.get_inputs(), *session.get_outputs()]
    assert [end.shape for end in ends] == [
        ["batch", 1, 8, 8],
        ["batch", 10],
        ["batch"],
        ["batch", 4],
        ["batch"],
    ]


def test_the_file_is_one_that_old_runtimes_read_and_holds_nothing_else(digits_file):
    model = onnx.load(digits_file.path)
    assert model.ir_version == 8
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
    data = digits_file.path.read_bytes()
    assert b"graph.py" not in data  # where the code was on the disk
    assert b"site-packages" not in data
    kept = {each.name: tuple(each.dims) for each in model.graph.initializer}
    assert [shape for shape in kept.values() if shape == (1198, 10)] == [(1198, 10)]  # once


# ---------------------------------------------------------------------- without torch and qipf

PRESENT = """
from importlib.util import find_spec
names = ("numpy", "onnxruntime", "torch", "qipf", "onnx", "onnxscript", "sklearn", "safetensors")
print(*(name for name in names if find_spec(name)))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The Python of an environment that has numpy and onnxruntime, and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("numpy", "onnxruntime"):
        (place,) = find_spec(name).submodule_search_locations
        for part in (Path(place), Path(f"{place}.libs")):  # and the libraries that come with it
            if part.exists():
                (packages / part.name).symlink_to(part)
    python = folder / "bin" / "python"
    present = subprocess.run(
        [python, "-I", "-c", PRESENT], capture_output=True, text=True, check=True
    )
    assert present.stdout.split() == ["numpy", "onnxruntime"]
    return python


def scored(python, *arguments):
    """What the script says in that environment."""
    command = [python, "-I", EXAMPLES / "onnx_scores.py", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_the_scores_agree_where_neither_torch_nor_qipf_is_installed(
    digits, digits_file, elsewhere, tmp_path
):
    model, images = digits
    np.save(tmp_path / "images.npy", images.numpy())
    files = digits_file.path, tmp_path / "images.npy"
    code, out, err = scored(elsewhere, *files, "--output", tmp_path / "scores.npz")
    assert (code, err) == (0, "")
    assert (
        out == f"wrote {tmp_path / 'scores.npz'}: 300 rows of logits, uncertainty, modes, novelty\n"
    )
    with np.load(tmp_path / "scores.npz") as scores:
        assert_agrees(scores, model, images)
        want = dict(scores)
    code, out, err = scored(elsewhere, *files)
    assert (code, err) == (0, "")
    assert out == "".join(f"{value:.6g}\n" for value in want["uncertainty"])


def test_the_example_writes_what_the_other_finds_again(elsewhere, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["onnx_digits.py", "--output", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "onnx_digits.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path}/digits.onnx: ")
    expected = tmp_path / "expected.npz"
    files = tmp_path / "digits.onnx", tmp_path / "inputs.npy", "--expected", expected
    code, out, err = scored(elsewhere, *files)
    assert (code, err) == (0, "")
    first, *rest = out.splitlines()
    assert first == (
        f"2,496 rows, numpy {np.__version__}, onnxruntime {onnxruntime.__version__}; largest "
        "relative difference"
    )
    apart = {name: float(value) for name, value in map(str.split, rest)}
    assert list(apart) == ["logits", "uncertainty", "modes", "novelty"]
    assert max(apart.values()) <= 1e-4
    with np.load(expected) as file:
        want = dict(file)
    for name, factor in (("modes", 1.001), ("uncertainty", np.nan)):
        np.savez(expected, **{**want, name: factor * want[name]})
        code, _, err = scored(elsewhere, *files)
        assert (code, err) == (1, "The scores differ by more than 1e-04.\n")
    np.savez(expected, **{**want, "modes": want["modes"][:5]})
    code, _, err = scored(elsewhere, *files)
    message = "modes has the shape (2496, 4), but (5, 4) was expected.\n"
    assert (code, err) == (1, message)


# ---------------------------------------------------------------------- decisions, layers, fields


def test_a_layer_and_a_rule_that_adds_its_decision(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3))
    images = torch.randn(80, 1, 8, 8)
    model = qipf.wrap(net, layer="0", field=QIPF(orders=(1, 2))).fit([images])
    scores = model(images).uncertainty
    rule = qipf.accept_rule(scores, scores > scores.median(), min_coverage=0.4)
    written = model.export_onnx(tmp_path / "layer.onnx", images, rule=rule)
    assert written.outputs == ("logits", "uncertainty", "modes", "novelty", "accepted")
    shown = torch.cat([images, torch.full_like(images[:1], torch.nan)])
    got = run(written.path, input=shown.numpy())
    assert relative(got["uncertainty"][:-1], scores) < 1e-4
    assert np.isnan(got["uncertainty"][-1])
    assert np.array_equal(got["accepted"], got["uncertainty"] <= rule.threshold)
    assert 0 < got["accepted"].sum() < len(images)
    meta = onnxruntime.InferenceSession(written.path).get_modelmeta().custom_metadata_map
    assert (meta["qipf.layer"], meta["qipf.pooling"]) == ("0", "mean")
    assert meta["qipf.threshold"] == repr(rule.threshold)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_field_alone(kind, rule, tmp_path):
    field = QIPF(orders=(1, 2), softening=0.1).fit(make_logits(300).numpy().astype(kind))
    written = field.export_onnx(str(tmp_path / "field.onnx"), rule=rule)
    assert written.inputs == ("logits",)
    assert written.outputs == ("uncertainty", "modes", "novelty", "accepted")
    assert written.difference < 1e-9
    rows = np.concatenate([make_logits(30, seed=5), make_logits(30) * 1e6]).astype(kind)
    got = run(written.path, logits=rows)
    exact = field.modes(rows.astype(np.float64))
    np.testing.assert_allclose(got["modes"], exact, rtol=1e-9, atol=1e-9)
    assert np.array_equal(got["accepted"], got["uncertainty"] <= rule.threshold)


@pytest.mark.parametrize("normalization", ["density", "peak"])
def test_every_other_constant_of_the_kernel(normalization, tmp_path):
    rows = make_logits(200, dimension=3).double().numpy() / 100  # so dense that ψ exceeds 1
    field = QIPF(orders=(2, 3), bandwidth=0.05, normalization=normalization).fit(rows)
    written = field.export_onnx(tmp_path / "field.onnx")
    got = run(written.path, logits=rows * 1.01)
    np.testing.assert_allclose(got["modes"], field.modes(rows * 1.01), rtol=1e-7, atol=1e-7)
    field.save(tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    np.testing.assert_array_equal(loaded.modes(rows), field.modes(rows))


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_a_field_whose_score_is_the_entropy(kind, tmp_path):
    rows = make_logits(200, dimension=2).double()
    labels = (rows + 5 * torch.randn(200, 2, generator=torch.Generator().manual_seed(0))).argmax(1)
    if kind == "probabilities":
        rows = rows.softmax(1)
    field = QIPF(orders=(1,)).fit(rows, labels)
    assert (field.score_, field.probabilities_) == ("entropy", kind == "probabilities")
    got = run(field.export_onnx(tmp_path / "field.onnx").path, logits=rows.numpy())
    np.testing.assert_allclose(got["uncertainty"], field.uncertainty(rows), atol=1e-12)
    field.save(tmp_path / "field.qipf")
    assert torch.equal(
        qipf.load(tmp_path / "field.qipf").uncertainty(rows), field.uncertainty(rows)
    )
