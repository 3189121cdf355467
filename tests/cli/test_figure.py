"""qipf figure as a user meets it."""

import sys

import pytest

from qipf.cli import main
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
