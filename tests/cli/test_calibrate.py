"""qipf calibrate."""

import json

import numpy as np
import pytest
import torch

import qipf
from tests.cli.commands import TEST, error_line, run
from tests.conftest import make_logits

HELD_OUT = make_logits(200, seed=1).numpy()
LABELS = np.where(np.arange(200) % 20 == 0, 3, HELD_OUT.argmax(1))


@pytest.fixture
def held_out(files):
    np.save("held.npy", HELD_OUT)
    np.save("y.npy", LABELS)
    np.savez("held.npz", logits=HELD_OUT, labels=LABELS)
    return files


def calibrated(**options):
    field = qipf.load("field.qipf").calibrate(HELD_OUT, LABELS)
    field.accept_rule(**options)
    return field


def test_the_rule_of_python_is_stored_in_the_file(monkeypatch, capsys, held_out):
    expected = calibrated(max_risk=0.2)
    words = "calibrate field.qipf held.npy --labels y.npy --max-risk 0.2"
    code, out, err = run(monkeypatch, capsys, *words.split())
    assert (code, err) == (0, "")
    assert out == (
        "wrote field.qipf: calibrated on 200 rows, error detection: "
        f"{expected.detection_}\n{expected.rule_}\n"
    )
    found = qipf.load("field.qipf")
    assert found.rule_ == expected.rule_
    assert found.calibration_.digest == expected.calibration_.digest
    assert found.detection_ == expected.detection_
    np.testing.assert_array_equal(found.uncertainty(TEST), expected.uncertainty(TEST))


def test_coverage_and_confidence_to_another_file(monkeypatch, capsys, held_out):
    before = (held_out / "field.qipf").read_bytes()
    words = "calibrate field.qipf held.npz --min-coverage 0.8 --confidence 0.9 -o new.qipf --json"
    code, out, err = run(monkeypatch, capsys, *words.split())
    assert (code, err) == (0, "")
    told = json.loads(out)
    expected = calibrated(min_coverage=0.8, confidence=0.9).rule_
    assert qipf.load("new.qipf").rule_ == expected
    assert (told["output"], told["calibrated_on"]) == ("new.qipf", 200)
    assert told["rule"]["threshold"] == expected.threshold
    assert (held_out / "field.qipf").read_bytes() == before


def test_a_rule_that_is_dropped_is_named(monkeypatch, capsys, held_out):
    np.savez("bare.npz", logits=HELD_OUT)
    rule = calibrated(max_risk=0.2)
    for file, told in (
        ("held.npz", f", error detection: {rule.detection_}; its accept rule "
         "was dropped (--max-risk makes one)\n"),
        ("bare.npz", "; its accept rule was dropped\n"),
    ):  # fmt: skip
        qipf.save(rule, "field.qipf")
        code, out, _ = run(monkeypatch, capsys, "calibrate", "field.qipf", file)
        assert (code, out) == (0, f"wrote field.qipf: calibrated on 200 rows{told}")
        assert qipf.load("field.qipf").rule_ is None
        _, out, _ = run(monkeypatch, capsys, "calibrate", "field.qipf", file)
        assert "dropped" not in out


def test_a_new_calibration_replaces_the_rule(monkeypatch, capsys, held_out):
    qipf.save(calibrated(max_risk=0.2), "field.qipf")
    code, out, err = run(monkeypatch, capsys, "calibrate", "field.qipf", "held.npy")
    told = "wrote field.qipf: calibrated on 200 rows; its accept rule was dropped\n"
    assert (code, out) == (0, told)
    assert "held.npy has no labels, so there will be no accept rule" in err
    assert "or with --labels FILE.npy" in err
    assert qipf.load("field.qipf").rule_ is None


def test_a_wrapped_model_stays_one(monkeypatch, capsys, held_out):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 10)
    model = qipf.wrap(net).fit(torch.randn(60, 4).split(20))
    qipf.save(model, "model.qipf")
    words = "calibrate model.qipf held.npz --max-risk 0.5"
    assert run(monkeypatch, capsys, *words.split())[0] == 0
    found = qipf.load("model.qipf", net)
    model.field.calibrate(HELD_OUT, LABELS)
    assert found.rule_ == model.accept_rule(max_risk=0.5)
    assert found.fitted_with == model.fitted_with


def test_export_takes_the_rule_of_a_model(monkeypatch, capsys, held_out):
    pytest.importorskip("onnxruntime")
    before = (held_out / "field.qipf").read_bytes()
    words = "calibrate field.qipf held.npz --max-risk 0.2 -o ruled.qipf"
    assert run(monkeypatch, capsys, *words.split())[0] == 0
    monkeypatch.setattr("qipf.export.onnx.converted", lambda *_: b"")  # takes seconds
    for words in ("ruled.qipf -o a.onnx", "field.qipf --rule ruled.qipf -o b.onnx"):
        code, out, _ = run(monkeypatch, capsys, "export", *words.split(), "--json", "--no-check")
        assert (code, json.loads(out)["outputs"][-1]) == (0, "accepted")
    assert (held_out / "field.qipf").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("held.npy --max-risk 0.1", "no labels, so no accept rule can be made"),
        ("held.npy --min-coverage 0.1", "no labels, so no accept rule can be made"),
        ("held.npz --max-risk 2", "max_risk must lie between 0 and 1"),
        ("held.npz --max-risk 0.1 --min-coverage 0.9", "--max-risk or --min-coverage, not both"),
        ("held.npz --confidence 0.9", "--confidence is for an accept rule. Add --max-risk"),
        ("narrow.npy", "narrow.npy has 3 logits a row"),
        ("held.npz -o held.npz", "held.npz is an input"),
        ("no.npz", "There is no file no.npz"),
    ],
)
def test_bad_input_changes_nothing(monkeypatch, capsys, held_out, arguments, message):
    np.save("narrow.npy", HELD_OUT[:, :3])
    before = {path: path.read_bytes() for path in held_out.iterdir()}
    line = error_line(monkeypatch, capsys, "calibrate", "field.qipf", *arguments.split())
    assert message in line
    assert {path: path.read_bytes() for path in held_out.iterdir()} == before


@pytest.fixture
def layer_file(held_out):
    """A model of a layer's outputs (10 numbers), which are not the network's three logits."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.Linear(10, 3))
    model = qipf.wrap(net, "0").fit((10 * torch.randn(60, 4)).split(20))
    qipf.save(model, "layer.qipf")
    wrong = np.argsort(np.argsort(model.field.uncertainty(HELD_OUT))) > 150
    np.savez("layer.npz", logits=HELD_OUT, labels=LABELS, wrong=wrong)
    return net, wrong


def refused(monkeypatch, capsys, *words):
    """The last line of a command that fails, after the warning that the model is one of a layer."""
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, out) == (2, "")
    return err.splitlines()[-1]


def test_labels_do_not_tell_the_errors_of_a_layer(monkeypatch, capsys, layer_file):
    words = ("calibrate", "layer.qipf", "layer.npz")
    line = refused(monkeypatch, capsys, *words, "--labels", "labels", "--max-risk", "0.2")
    assert "fitted on outputs of the layer '0'" in line
    assert "Give --wrong instead." in line
    line = refused(monkeypatch, capsys, *words, "--max-risk", "0.2")
    assert "An accept rule for outputs of a layer needs errors." in line
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, out) == (0, "wrote layer.qipf: calibrated on 200 rows\n")
    assert "Without errors there will be no accept rule" in err
    found = qipf.load("layer.qipf", layer_file[0])
    assert found.calibration_.wrong is None
    assert (found.detection_, found.rule_) == (None, None)
    both = error_line(monkeypatch, capsys, *words, "--labels", "labels", "--wrong", "wrong")
    assert "Give --labels or --wrong, not both." in both


def test_errors_of_a_layer_are_given(monkeypatch, capsys, layer_file):
    words = "calibrate layer.qipf layer.npz --wrong wrong --max-risk 0.1"
    assert run(monkeypatch, capsys, *words.split())[0] == 0
    net, wrong = layer_file
    found = qipf.load("layer.qipf", net)
    assert found.calibration_.wrong.sum() == wrong.sum() == 49
    found.field.calibrate(HELD_OUT, wrong=wrong)
    assert qipf.load("layer.qipf", net).rule_ == found.accept_rule(max_risk=0.1)


def test_a_report_of_a_layer_is_refused(monkeypatch, capsys, layer_file):
    words = "report --model layer.qipf --test layer.npz -o r.html"
    assert "a report needs logits" in refused(monkeypatch, capsys, *words.split())
