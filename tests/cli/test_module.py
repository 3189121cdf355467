"""The command line as a user meets it."""

import sys

import pytest

import qipf
from qipf.cli import main


def run(monkeypatch, capsys, *arguments):
    """Exit code, standard output and standard error of ``qipf ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["qipf", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


def test_version(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version") == (0, f"qipf {qipf.__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("figure",), ("figure", "sine")])
def test_help_teaches(monkeypatch, capsys, command):
    code, out, _ = run(monkeypatch, capsys, *command, "--help")
    assert code == 0
    assert "Usage: qipf" in out
    if command == ("figure", "sine"):
        assert "Example: qipf figure sine -o sine.png" in out


def test_figure_sine_writes_the_picture(monkeypatch, capsys, tmp_path):
    target = tmp_path / "sine.png"
    code, out, err = run(monkeypatch, capsys, "figure", "sine", "-o", target)
    assert (code, err) == (0, "")
    assert f"wrote {target}" in out
    assert target.read_bytes().startswith(b"\x89PNG")


def test_a_refusal_is_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path):
    code, out, err = run(monkeypatch, capsys, "figure", "sine", "-o", tmp_path / "sine.txt")
    assert (code, out) == (2, "")
    assert err == "qipf: Cannot write 'sine.txt': name a file that ends in .png, .pdf or .svg.\n"
    assert list(tmp_path.iterdir()) == []
