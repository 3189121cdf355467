"""What all commands share: errors, exit codes, warnings, progress, completion."""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import warnings
from pathlib import Path

import numpy as np
import pytest

from qipf import QIPFWarning, tables
from qipf.cli import docs
from tests.conftest import make_logits
from tests.test_cli import run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("train.npz", logits=make_logits(60).numpy())
    return tmp_path


def broken(*_arguments, **_options):
    raise ZeroDivisionError("division by zero\nand more")


def test_what_nobody_expected_is_one_line_and_exit_code_1(monkeypatch, capsys, folder):
    monkeypatch.setattr(tables, "open_table", broken)
    code, out, err = run(monkeypatch, capsys, "fit", "train.npz")
    assert (code, out) == (1, "")
    assert err == (
        "qipf: unexpected ZeroDivisionError: division by zero Run it again with --debug, and "
        "report what it shows.\n"
    )


@pytest.mark.parametrize("place", [0, 2])
def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch, capsys, folder, place):
    arguments = ["show", "no.qipf"]
    arguments.insert(place, "--debug")
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("\nqipf: There is no file no.qipf.\n")


def test_an_interrupt_ends_with_130_and_leaves_nothing(monkeypatch, capsys, folder):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    code, _, _ = run(monkeypatch, capsys, "fit", "train.npz")
    assert code == 0
    monkeypatch.setattr("qipf.estimator.QIPF.uncertainty", interrupted)
    code, out, err = run(monkeypatch, capsys, "score", "field.qipf", "train.npz", "-o", "s.csv")
    assert (code, out, err) == (130, "", "")
    assert sorted(path.name for path in folder.iterdir()) == ["field.qipf", "train.npz"]


def test_a_wrong_option_has_exit_code_2(monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, "show", "--jsno")
    assert (code, out) == (2, "")
    assert "No such option" in err


def test_warnings_are_one_line(monkeypatch, capsys, folder):
    def warning(*_arguments, **_options):
        warnings.warn("mind the gap", QIPFWarning, stacklevel=2)
        return {}

    monkeypatch.setattr("qipf.storage.describe", warning)
    code, _, err = run(monkeypatch, capsys, "show", "x.qipf")
    assert err.startswith("qipf: warning: mind the gap\n")
    assert code == 1  # nothing was described


def test_exit_codes_are_in_the_help(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0
    told = " ".join(out.split())
    for part in ("Exit codes: 0 done", "1 an error nobody expected", "2 bad input", "130 inter"):
        assert part in told


# ---------------------------------------------------------------------- a shell's completion


def complete(words):
    """What the shell offers after these words."""
    environment = {
        **os.environ,
        "_QIPF_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-c", "from qipf.cli import main; main()"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_shell_completes_commands():
    assert complete("qipf s").stdout.split() == ["score", "show"]


def test_completion_is_installed(tmp_path):
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    command = [
        sys.executable, "-c", "from qipf.cli import main; main()", "--install-completion", "bash",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_QIPF_COMPLETE=complete_bash" in (tmp_path / ".bash_completions/qipf.sh").read_text()


# ---------------------------------------------------------------------- progress


SCORING = """
import sys
import qipf.progress
from qipf.cli import main
qipf.progress.DELAY = 0.0
sys.argv = ["qipf", "score", "field.qipf", "train.npz", "-o", "s.csv"]
main()
"""


def test_progress_is_shown_in_a_terminal(monkeypatch, capsys, folder):
    assert run(monkeypatch, capsys, "fit", "train.npz")[2] == ""  # no terminal, no bar
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", SCORING]
    subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=True)
    shown = os.read(ours, 2**16)
    os.close(theirs)
    os.close(ours)
    assert b"scoring:" in shown


# ---------------------------------------------------------------------- help and documentation


def test_the_documentation_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == docs.reference(), (
        "The commands changed: python -m qipf.cli.docs > docs/cli.md"
    )


def test_every_command_is_documented_with_an_example():
    page = docs.reference()
    found = dict(docs.commands())
    assert {"qipf fit", "qipf score", "qipf report", "qipf show", "qipf bench run"} <= set(found)
    for name, command in found.items():
        assert f"\n## {name}\n" in page
        assert f"Example: `{name} " in command.help, f"{name} has no example in its help"
        for parameter in command.params:
            if parameter.name != "help":
                assert parameter.help, f"{name}: {parameter.name} has no help"


def test_the_examples_are_commands_that_parse():
    for name, command in docs.commands():
        for example in re.findall(r"Example: `([^`]+)`", command.help):
            words = shlex.split(" ".join(example.split()))
            given = words[len(name.split()) :]
            assert f"{name} ".startswith(" ".join(words[: len(name.split())]))
            with command.make_context(name, given) as parsed:  # parsed, not run
                assert parsed.command is command
