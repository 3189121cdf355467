"""qipf show."""

import json

import numpy as np
import pytest

import qipf
from qipf.io.schema import FORMAT_VERSION
from tests.cli.commands import error_line, run
from tests.stored.write_files import layered_network, network, stored


@pytest.mark.parametrize("name", ["calibrated", "model", "layers"])
def test_the_summary_of_every_kind_of_model_is_shown(monkeypatch, capsys, name):
    path = stored(name)
    nets = {"model": network, "layers": layered_network}
    model = qipf.load(path, nets[name]()) if name in nets else qipf.load(path)
    code, out, err = run(monkeypatch, capsys, "show", path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}\n{model.summary()}\n")
    assert out.endswith(f"format {FORMAT_VERSION}, {path.stat().st_size:,} bytes\n")


def test_the_header_is_printed_as_json(monkeypatch, capsys, files):
    code, out, err = run(monkeypatch, capsys, "show", "field.qipf", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["fitted"]["energies"] == qipf.load("field.qipf").energies_.tolist()


def test_a_rule_alone_is_shown(monkeypatch, capsys, tmp_path):
    path = stored("rule")
    code, out, _ = run(monkeypatch, capsys, "show", path)
    assert code == 0
    assert all(line in out for line in str(qipf.load(path)).splitlines())
    _, out, _ = run(monkeypatch, capsys, "show", path, "--json")
    shown = json.loads(out)
    assert (shown["kind"], shown["rule"]["accepted"]) == ("rule", qipf.load(path).accepted)
    qipf.save(qipf.accept_rule([0.1], [False]), tmp_path / "nothing.qipf")
    _, out, _ = run(monkeypatch, capsys, "show", tmp_path / "nothing.qipf")
    assert "No threshold can be certified" in out


def test_control_characters_and_long_names_are_not_printed(monkeypatch, capsys, tmp_path):
    field = qipf.QIPF(bandwidth=1.0).fit(np.eye(3))
    field.feature_names_in_ = np.array(["\x1b[2J\x9b\nfake line", "b" * 10**6, "\ud800"], object)
    field.save(tmp_path / "f.qipf")
    code, out, err = run(monkeypatch, capsys, "show", tmp_path / "f.qipf")
    assert (code, err) == (0, "")
    assert "\\x1b[2J\\x9b\\nfake line, bbb" in out
    assert "bbb… (1,000,000 characters), \\ud800" in out
    assert all(line.isprintable() and len(line) < 1000 for line in out.splitlines())
    code, out, _ = run(monkeypatch, capsys, "show", tmp_path / "f.qipf", "--json")
    assert out.rstrip("\n").isprintable()
    first, long, last = json.loads(out)["features"]
    assert (first, last) == ("\x1b[2J\x9b\nfake line", "\ud800")
    assert long == "b" * 200 + "… (1,000,000 characters)"


def test_error_lines_do_not_control_the_terminal(monkeypatch, capsys, files):
    (files / "t.csv").write_text("\x1b[2J\x07," + "b" * 10**5 + "\n1,2\n")
    line = error_line(monkeypatch, capsys, "score", "field.qipf", "t.csv", "-o", "s.csv")
    assert "It has: \\x1b[2J\\x07, bbb" in line
    assert line.rstrip("\n").isprintable()
    assert len(line) < 2500
