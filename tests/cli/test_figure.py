"""qipf figure."""

import json
import struct

import pytest

from qipf.reporting.run.results import Run
from tests.cli.commands import error_line, run
from tests.reporting.tiny_run import tiny_run

__all__ = ["tiny_run"]

pytestmark = pytest.mark.slow

AT = ("--network", "tiny_mlp", "--corruption", "rotation", "--level", "30")


def test_sine_is_written(monkeypatch, capsys, tmp_path):
    target = tmp_path / "sine.png"
    code, out, err = run(monkeypatch, capsys, "figure", "sine", "-o", target)
    assert (code, out, err) == (0, f"wrote {target}\n", "")
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("severity", ("--network", "tiny_mlp", "--corruption", "rotation", "--corruption", "zoom")),
        ("severity", ("--network", "tiny_mlp", "--method", "qipf", "--method", "entropy")),
        ("detection", (*AT, "--method", "energy", "--seed", "0")),
        ("field", AT),
    ],
)
def test_figures_are_written(monkeypatch, capsys, tiny_run, tmp_path, name, options):
    target = tmp_path / "figure.png"
    code, out, err = run(monkeypatch, capsys, "figure", name, tiny_run, *options, "-o", target)
    assert (code, out) == (0, f"wrote {target}\n")
    assert not err or "worse than the entropy" in err  # of the field that is drawn
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("severity", *AT[:3], "shear"), "Unknown corruption of tiny_mlp in this run 'shear'"),
        (("severity", *AT[:2], "--method", "entrpy"), "Unknown method of this run 'entrpy'"),
        (("detection", "--network", "tiny_mpl", *AT[2:]), "Unknown network of this run 'tiny_mpl'"),
        (("field", *AT[:5], "3"), "Unknown level of rotation on tiny_mlp '3'. Known: 15, 30, 90."),
        (("detection", *AT, "--seed", "5"), "seed 5"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, tiny_run, tmp_path, arguments, message):
    name, *options = arguments
    words = ("figure", name, tiny_run, *options, "-o", tmp_path / "figure.png")
    assert message in error_line(monkeypatch, capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_results_is_an_error(monkeypatch, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, message in (("empty", "There are no results in"), ("none", "There is no run")):
        for name, options in (("severity", ()), ("detection", AT), ("field", AT)):
            words = ("figure", name, tmp_path / folder, *options, "-o", tmp_path / "figure.png")
            assert message in error_line(monkeypatch, capsys, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_results_as_json(monkeypatch, capsys, tiny_run, tmp_path):
    target = tmp_path / "figure.png"
    measured = Run(tiny_run)
    told = {}
    for name, options in (("severity", AT[:4]), ("detection", AT), ("field", AT)):
        words = ("figure", name, tiny_run, *options, "-o", target, "--dpi", 40, "--json")
        code, out, err = run(monkeypatch, capsys, *words)
        assert code == 0
        assert not err or (name == "field" and "worse than the entropy" in err)
        told[name] = json.loads(out)
        assert told[name].pop("output") == str(target)
    curve = told["severity"]["curves"][0]
    known = measured.curve("tiny_mlp", "rotation", curve["method"], curve["metric"])
    assert (curve["levels"], curve["values"]) == (list(known), list(known.values()))
    _, wrong = measured.scores("tiny_mlp", "rotation")[30.0]
    assert told["detection"]["error_rate"] == wrong.mean()
    assert told["detection"]["roc_auc"]["qipf"] == pytest.approx(
        measured.curve("tiny_mlp", "rotation", "qipf", "roc_auc")[30.0], abs=1e-3
    )
    assert len(told["field"]["wrong"]) == wrong.sum()
    assert struct.unpack(">I", target.read_bytes()[16:20]) == (int(6.6 * 40),)  # inches by dots
