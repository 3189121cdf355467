"""qipf show."""

import json
from pathlib import Path

import numpy as np

import qipf
from tests.cli.commands import run

STORED = Path(__file__).parent.parent / "stored"


def test_a_field_is_described(monkeypatch, capsys, files):
    code, out, err = run(monkeypatch, capsys, "show", "field.qipf")
    field = qipf.load("field.qipf")
    assert (code, err) == (0, "")
    lines = dict(
        line.strip().split("  ", 1) for line in out.splitlines()[1:] if "  " in line.strip()
    )
    assert lines["kind"].strip() == "field"
    assert lines["fitted on"].strip() == "300 rows of 10 numbers"
    assert lines["centres"].strip() == "300 (float32)"
    assert lines["bandwidth"].strip().startswith(f"{field.bandwidth_:.6g}, ")
    code, out, err = run(monkeypatch, capsys, "show", "field.qipf", "--json")
    assert json.loads(out)["fitted"]["energies"] == field.energies_.tolist()


def indented(text):
    first, *rest = str(text).splitlines()
    return "\n".join([f"  rule          {first}", *(f"{'':16}{line}" for line in rest)])


def test_calibration_and_rule_are_described(monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, "show", STORED / "calibrated-v3.qipf")
    field = qipf.load(STORED / "calibrated-v3.qipf")
    held_out = field.calibration_
    assert (code, err) == (0, "")
    assert (
        f"  calibration   280 held-out predictions, {held_out.wrong.sum()} wrong; uncertainty up "
        f"to {held_out.scores[-1]:.6g}, half of them up to {np.median(held_out.scores):.6g}\n"
    ) in out
    assert out.endswith(indented(field.rule_) + "\n")


def test_a_rule_alone_is_described(monkeypatch, capsys, tmp_path):
    path = STORED / "rule-v3.qipf"
    code, out, err = run(monkeypatch, capsys, "show", path)
    assert (code, err) == (0, "")
    assert out == (
        f"{path}\n  kind          accept rule\n  written by    qipf 0.1.0.dev0, format 3, "
        f"{path.stat().st_size} bytes\n{indented(qipf.load(path))}\n"
    )
    code, out, _ = run(monkeypatch, capsys, "show", path, "--json")
    told = json.loads(out)
    assert (told["kind"], told["rule"]["accepted"]) == ("rule", qipf.load(path).accepted)
    qipf.save(qipf.accept_rule([0.1], [False]), tmp_path / "nothing.qipf")
    code, out, _ = run(monkeypatch, capsys, "show", tmp_path / "nothing.qipf")
    assert code == 0
    assert "rule          No threshold can be certified: abstain from all predictions.\n" in out


def test_a_calibration_without_known_errors(monkeypatch, capsys, tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    qipf.save(qipf.QIPF().fit(rows[:40]).calibrate(rows[40:]), tmp_path / "field.qipf")
    _, out, _ = run(monkeypatch, capsys, "show", tmp_path / "field.qipf")
    assert "20 held-out predictions, errors unknown; uncertainty up to" in out
    assert "  rule  " not in out
