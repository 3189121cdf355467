"""qipf figure as a user meets it."""

import json
import struct
import sys

import pytest

from qipf.cli import main
from qipf.report.run.run import Run
from tests.report.tiny_run import tiny_run

__all__ = ["tiny_run"]


@pytest.fixture
def command(monkeypatch, capsys):
    """Exit code, standard output and standard error of ``qipf figure ARGUMENTS``."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["qipf", "figure", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


AT = ("--network", "tiny_mlp", "--corruption", "rotation", "--level", "30")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("severity", ("--network", "tiny_mlp", "--corruption", "rotation", "--corruption", "zoom")),
        ("severity", ("--network", "tiny_mlp", "--method", "qipf", "--method", "entropy")),
        ("detection", AT),
        ("detection", (*AT, "--method", "energy", "--seed", "0")),
        ("field", AT),
    ],
)
def test_figures_are_written(command, tiny_run, tmp_path, name, options):
    target = tmp_path / "figure.png"
    code, out, err = command(name, tiny_run, *options, "-o", target)
    assert (code, out, err) == (0, f"wrote {target}\n", "")
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("severity", "--network", "tiny_mlp", "--corruption", "shear"),
            "Unknown corruption of tiny_mlp in this run 'shear'. Known: rotation, zoom.",
        ),
        (
            ("severity", "--network", "tiny_mlp", "--method", "entrpy"),
            "Unknown method of this run 'entrpy'. Did you mean 'entropy' or 'energy'? "
            "Known: energy, entropy, mc_dropout, mc_dropout_entropy, qipf.",
        ),
        (
            ("detection", "--network", "tiny_mpl", "--corruption", "zoom", "--level", "2"),
            "Unknown network of this run 'tiny_mpl'. Did you mean 'tiny_mlp'? "
            "Known: short_mlp, tiny_mlp.",
        ),
        (
            ("field", "--network", "tiny_mlp", "--corruption", "zoom", "--level", "3"),
            "zoom 3 was not measured on tiny_mlp. Did you mean 2? Known: 0.5, 2.",
        ),
        (
            ("detection", *AT, "--seed", "5"),
            "{run} holds no scores of tiny_mlp under rotation with seed 5.",
        ),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(command, tiny_run, tmp_path, arguments, message):
    name, *options = arguments
    code, out, err = command(name, tiny_run, *options, "-o", tmp_path / "figure.png")
    assert (code, out, err) == (2, "", f"qipf: {message.format(run=tiny_run)}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_results_is_refused(command, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none"):
        folder = tmp_path / name
        what = (
            f"There are no results in {folder}. Make them"
            if name == "empty"
            else (f"There is no run {folder}. Make one")
        )
        for words in (("severity", folder), ("detection", folder, *AT), ("field", folder, *AT)):
            code, out, err = command(*words, "-o", tmp_path / "figure.png")
            assert (code, out) == (2, "")
            assert err == f"qipf: {what} first: qipf bench run --out {folder}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_figures_answer_programs(command, tiny_run, tmp_path):
    target = tmp_path / "figure.png"
    run = Run(tiny_run)
    told = {}
    for name, options in (("severity", AT[:4]), ("detection", AT), ("field", AT)):
        code, out, err = command(name, tiny_run, *options, "-o", target, "--dpi", 40, "--json")
        assert (code, err) == (0, "")
        told[name] = json.loads(out)
        assert told[name].pop("output") == str(target)
    curve = told["severity"]["curves"][0]
    known = run.curve("tiny_mlp", "rotation", curve["method"], curve["metric"])
    assert (curve["levels"], curve["values"]) == (list(known.levels), list(known.values))
    _, wrong = run.scores("tiny_mlp", "rotation")[30.0]
    at = known.levels.index(30.0)
    assert told["detection"]["error_rate"] == wrong.mean()
    assert told["detection"]["roc_auc"]["qipf"] == pytest.approx(
        run.curve("tiny_mlp", "rotation", "qipf", "roc_auc").values[at], abs=1e-3
    )
    assert len(told["field"]["wrong"]) == wrong.sum()
    assert struct.unpack(">I", target.read_bytes()[16:20]) == (int(6.6 * 40),)  # inches by dots
