"""All commands: errors, exit codes, warnings, progress, completion, documentation."""

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
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import qipf
from qipf import QIPF, QIPFWarning
from qipf.io import logits as tables
from tests.cli.commands import error_line, run
from tests.conftest import make_logits
from tests.stored.write_files import stored


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("train.npz", logits=make_logits(60).numpy())
    return tmp_path


def test_version(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version") == (0, f"qipf {qipf.__version__}\n", "")


def broken(*_arguments, **_options):
    raise ZeroDivisionError("division by zero\nand more")


def test_an_unexpected_error_is_one_line_and_exit_code_1(monkeypatch, capsys, folder):
    monkeypatch.setattr(tables, "open_table", broken)
    code, out, err = run(monkeypatch, capsys, "fit", "train.npz")
    assert (code, out) == (1, "")
    assert err.startswith("qipf: unexpected ZeroDivisionError: division by zero. ")
    assert "--debug" in err
    assert err.count("\n") == 1


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
    monkeypatch.setattr("qipf.field.estimator.QIPF.both_scores", interrupted)
    code, out, err = run(monkeypatch, capsys, "score", "model.qipf", "train.npz", "-o", "s.csv")
    assert (code, out, err) == (130, "", "\nStopped; unfinished output was discarded.\n")
    assert sorted(path.name for path in folder.iterdir()) == ["model.qipf", "train.npz"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("show", "qipf show: Missing argument 'path'"),
        ("score f.qipf t.csv", "qipf score: Missing option '--output' / '-o'"),
        ("show a b", "qipf show: Got unexpected extra argument(s) (b)"),
        ("scor f t", "qipf: No such command 'scor'. Did you mean 'score'? Try `qipf --help`."),
        ("figure sevrity x", "qipf figure: No such command 'sevrity'. Did you mean 'severity'?"),
        ("show --jsno", "qipf show: No such option: --jsno (Possible options: --json)."),
        ("bench run --seed many", "qipf bench run: Invalid value for '--seed': "),
    ],
)
def test_usage_errors_are_one_line_and_exit_code_2(monkeypatch, capsys, words, line):
    code, out, err = run(monkeypatch, capsys, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(line)
    assert "--help`." in err


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("score layers.qipf train.npz -o s.csv", "model.uncertainty(inputs)"),
        ("monitor layers.qipf stream.csv", "qipf.ShiftMonitor(model).update(inputs)"),
        ("export layers.qipf -o f.onnx", "model.export_onnx('model.onnx', inputs)"),
        ("report --model layers.qipf --test train.npz", "model.uncertainty(inputs)"),
    ],
)
def test_a_layered_model_needs_its_network(monkeypatch, capsys, folder, words, call):
    (folder / "layers.qipf").write_bytes(stored("layers").read_bytes())
    line = error_line(monkeypatch, capsys, *words.split())
    assert "layers.qipf holds a LayeredQIPF, which scores inputs of its network" in line
    assert f"model = qipf.load('layers.qipf', net), then {call}.\n" in line


def test_a_model_of_a_layer_scores_outputs_of_the_layer(monkeypatch, capsys, folder):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.Linear(10, 3))
    qipf.wrap(net, layer="0").fit(torch.randn(60, 4).split(20)).save("layer.qipf")
    code, _, err = run(monkeypatch, capsys, "score", "layer.qipf", "train.npz", "-o", "s.csv")
    assert code == 0
    assert err.startswith("qipf: warning: layer.qipf was fitted on outputs of the layer '0'")


def test_a_group_without_a_command_shows_its_help(monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, "figure")
    assert (code, err) == (2, "")
    assert "Usage: qipf figure" in out


@pytest.mark.slow
@pytest.mark.parametrize("words", ["score --help", "bench run --seed many"])
def test_help_and_usage_errors_do_not_import_torch(words):
    code = (
        f"import sys; sys.argv = ['qipf', *{words.split()}]\n"
        "from qipf.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


def test_the_defaults_of_fit_are_those_of_the_field():
    given = {p.name: p.default for p in dict(docs.commands())["qipf fit"].params}
    expected = QIPF().get_params()
    expected["seed"] = expected.pop("random_state")
    del expected["nan_policy"]  # rows of a file are checked when it is read
    expected["orders"] = ",".join(map(str, expected["orders"]))
    assert {name: given[name] for name in expected} == expected


def test_public_names_are_found_when_first_used():
    assert set(qipf.__all__) <= set(dir(qipf))
    for name in set(qipf.__all__) - {"__version__"}:
        assert getattr(qipf, name).__name__ == name
    assert issubclass(qipf.QIPFNotFittedError, NotFittedError)
    with pytest.raises(AttributeError, match="module 'qipf' has no attribute 'QIPV'"):
        _ = qipf.QIPV


def test_warnings_are_one_line(monkeypatch, capsys, folder):
    def warning(*_arguments, **_options):
        warnings.warn("mind the gap", QIPFWarning, stacklevel=2)
        return {}

    monkeypatch.setattr("qipf.storage.save_load.describe", warning)
    code, _, err = run(monkeypatch, capsys, "show", "x.qipf")
    assert err.startswith("qipf: warning: mind the gap\n")
    assert code == 1  # nothing was described


def test_exit_codes_are_in_the_help(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0
    shown = " ".join(out.split())
    for part in ("Exit codes: 0 success", "1 unexpected error", "2 bad input", "130 inter"):
        assert part in shown


# ---------------------------------------------------------------------- a shell's completion


def complete(words):
    """The shell's completions of these words."""
    environment = {
        **os.environ,
        "_QIPF_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-c", "from qipf.cli import main; main()"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"), [("qipf s", ["score", "show"]), ("qipf bench run --su", ["--suite"])]
)
def test_the_shell_completes_commands(typed, offered):
    assert complete(typed).stdout.split() == offered


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
sys.argv = ["qipf", "score", "model.qipf", "train.npz", "-o", "s.csv"]
main()
"""


@pytest.mark.slow
def test_progress_is_shown_in_a_terminal(monkeypatch, capsys, folder):
    assert run(monkeypatch, capsys, "fit", "train.npz")[2] == ""  # no terminal, no bar
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", SCORING]
    environment = {**os.environ, "QIPF_QUIET": "0"}
    subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.set_blocking(ours, False)  # fails, instead of waiting, if nothing was shown
    shown = os.read(ours, 2**16)
    os.close(theirs)
    os.close(ours)
    assert b"scoring:" in shown


# ---------------------------------------------------------------------- help and documentation

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
loader = SourceFileLoader("cli_reference", str(PAGE.with_name("cli_reference.py")))
docs = ModuleType(loader.name)
loader.exec_module(docs)


def test_the_documentation_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == docs.reference(), (
        "The commands changed: python docs/cli_reference.py > docs/cli.md"
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
            words = shlex.split(" ".join(example.split("|")[-1].split()))  # the end of a pipe
            given = words[len(name.split()) :]
            assert f"{name} ".startswith(" ".join(words[: len(name.split())]))
            with command.make_context(name, given) as parsed:  # parsed, not run
                assert parsed.command is command
