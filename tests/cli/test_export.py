"""qipf export."""

import json

import numpy as np
import onnxruntime
import pytest

import qipf
from tests.cli.commands import error_line, run
from tests.conftest import make_logits


@pytest.fixture
def field(tmp_path):
    fitted = qipf.QIPF(orders=(1, 2)).fit(make_logits(200).numpy())
    qipf.save(fitted, tmp_path / "field.qipf")
    return fitted


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_operators")
def test_a_model_is_exported(monkeypatch, capsys, tmp_path, field):
    target = tmp_path / "field.onnx"
    code, out, err = run(
        monkeypatch, capsys, "export", tmp_path / "field.qipf", "-o", target, "--max-centers", 50
    )
    assert (code, err) == (0, "")
    size = f"{target.stat().st_size:,}"
    told = f"wrote {target}: logits to uncertainty, modes, novelty; 50 centres, {size} bytes"
    assert out.startswith(told)
    rows = make_logits(9, seed=1).numpy()
    session = onnxruntime.InferenceSession(target)
    uncertainty, *_ = session.run(None, {"logits": rows})
    small = field.condensed(50)
    np.testing.assert_allclose(uncertainty, small.uncertainty(rows.astype(float)), rtol=1e-9)


@pytest.mark.slow
def test_the_result_as_json_and_a_rule(monkeypatch, capsys, tmp_path, field):
    rows = make_logits(300, seed=2).numpy()
    rule = qipf.accept_rule(field.uncertainty(rows), np.arange(300) < 3, min_coverage=0.5)
    qipf.save(rule, tmp_path / "rule.qipf")
    monkeypatch.setattr("qipf.export.onnx.converted", lambda *_: b"file")  # takes seconds
    code, out, err = run(
        monkeypatch, capsys, "export", tmp_path / "field.qipf", "--rule", tmp_path / "rule.qipf",
        "-o", tmp_path / "field.onnx", "--no-check", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "output": str(tmp_path / "field.onnx"),
        "bytes": (tmp_path / "field.onnx").stat().st_size,
        "centers": 200,
        "inputs": ["logits"],
        "outputs": ["uncertainty", "modes", "novelty", "accepted"],
        "difference": None,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("field.qipf", "-o", "field.pt"), "name a file that ends in .onnx"),
        (("none.qipf", "-o", "field.onnx"), "There is no file none.qipf"),
        (("field.qipf", "-o", "field.onnx", "--max-centers", "0"), "'--max-centers'"),
        (
            ("field.qipf", "-o", "field.onnx", "--rule", "field.qipf"),
            "field.qipf has no accept rule",
        ),
    ],
)
def test_bad_input_is_one_line(arguments, message, monkeypatch, capsys, tmp_path, field):
    monkeypatch.chdir(tmp_path)
    assert message in error_line(monkeypatch, capsys, "export", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["field.qipf"]
