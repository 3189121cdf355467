"""qipf show."""

import json
from pathlib import Path

import pytest

import qipf
from tests.cli.commands import run
from tests.stored.write_files import layered_network, network

STORED = Path(__file__).parent.parent / "stored"


@pytest.mark.parametrize("name", ["calibrated", "model", "layers"])
def test_the_summary_of_every_kind_of_model_is_shown(monkeypatch, capsys, name):
    path = STORED / f"{name}-v4.qipf"
    nets = {"model": network, "layers": layered_network}
    model = qipf.load(path, nets[name]()) if name in nets else qipf.load(path)
    code, out, err = run(monkeypatch, capsys, "show", path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}\n{model.summary()}\n")
    assert out.endswith(f"format 4, {path.stat().st_size:,} bytes\n")


def test_the_header_is_printed_as_json(monkeypatch, capsys, files):
    code, out, err = run(monkeypatch, capsys, "show", "field.qipf", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["fitted"]["energies"] == qipf.load("field.qipf").energies_.tolist()


def test_a_rule_alone_is_shown(monkeypatch, capsys, tmp_path):
    path = STORED / "rule-v4.qipf"
    code, out, _ = run(monkeypatch, capsys, "show", path)
    assert code == 0
    assert all(line in out for line in str(qipf.load(path)).splitlines())
    _, out, _ = run(monkeypatch, capsys, "show", path, "--json")
    shown = json.loads(out)
    assert (shown["kind"], shown["rule"]["accepted"]) == ("rule", qipf.load(path).accepted)
    qipf.save(qipf.accept_rule([0.1], [False]), tmp_path / "nothing.qipf")
    _, out, _ = run(monkeypatch, capsys, "show", tmp_path / "nothing.qipf")
    assert "No threshold can be certified" in out
