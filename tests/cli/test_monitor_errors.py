"""qipf monitor: errors, and messages about inputs without predictions."""

import errno
import os
import signal
import sys

import filelock
import pytest

import qipf
from qipf import ShiftMonitor
from qipf.io.atomic import locked_file
from tests.cli.commands import interrupted, run, watched, write
from tests.conftest import make_logits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--follow"], "--follow needs a file"),
        (["stream.csv", "--skip-seen"], "--skip-seen is for standard input"),
        (["--skip-seen", "--new-input"], "contradict each other"),
        (["."], ". is a folder"),
        (["no.csv"], "Cannot read no.csv: No such file or directory"),
        (["stream.csv", "--alpha", "2"], "alpha must lie between 0 and 1, got 2.0"),
        (["stream.csv", "--window", "0"], "window must be an integer from 1 to 1048576, got 0"),
        (["stream.csv", "--state", "stream.csv"], "stream.csv is an input"),
        (["stream.csv", "--state", "no/s.qipf"], "There is no folder no"),
        (["stream.csv", "--state", "."], ". is a folder"),
        (["stream.csv", "--state", os.devnull], "is a pipe or a device"),
    ],
)
def test_bad_arguments_are_one_line(monkeypatch, capsys, folder, arguments, message):
    code, told, err = watched(monkeypatch, capsys, *arguments)
    assert (code, told, err.count("\n")) == (2, [], 1)
    assert message in err


def shut(_path, mode):
    return mode != os.W_OK


def full(*_arguments, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ((os, "access", shut), "read-only"),
        ((filelock.FileLock, "acquire", full), "No space left on device"),
    ],
)
def test_an_unwritable_state_is_an_error_before_any_line_is_read(
    monkeypatch, capsys, folder, broken, reason
):
    def read(*_):
        raise AssertionError("it was read first")

    monkeypatch.setattr("qipf.monitor.lines.LineSource.lines", read)
    monkeypatch.setattr(*broken)
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
    assert (code, told, err.count("\n")) == (2, [], 1)
    assert "Cannot write s.qipf" in err
    assert reason in err


def test_a_full_disk_behind_the_output_is_one_line(monkeypatch, capsys, folder):
    monkeypatch.setattr(sys.modules["qipf.cli.monitor"], "print_result", full)
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
    assert (code, told, err.count("\n")) == (2, [], 1)
    assert err.startswith("qipf: Cannot write the output: No space left on device. Files that")
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    # the verdict was saved before, and is given again
    assert [
        each["number"]
        for each in watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[1]
    ] == [1]


def test_the_check_of_the_state_leaves_no_files(monkeypatch, capsys, folder):
    before = sorted(folder.iterdir())
    assert watched(monkeypatch, capsys, "no.csv", "--state", "s.qipf")[0] == 2
    assert sorted(path for path in folder.iterdir() if path.suffix != ".lock") == before


def test_a_state_instead_of_a_model_and_the_reverse(monkeypatch, capsys, folder):
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0
    code, out, err = run(monkeypatch, capsys, "monitor", "s.qipf", "stream.csv")
    assert (code, out) == (2, "")
    assert "s.qipf holds the state of a monitor" in err
    (folder / "other.qipf").write_bytes((folder / "field.qipf").read_bytes())
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "other.qipf")
    assert (code, told) == (2, [])
    assert "where the state of a monitor is expected" in err
    assert (folder / "other.qipf").read_bytes() == (folder / "field.qipf").read_bytes()


def test_a_model_without_calibration_is_an_error(monkeypatch, capsys, folder):
    field = qipf.load("field.qipf")
    field.calibration_ = None
    qipf.save(field, "field.qipf")
    code, told, err = watched(monkeypatch, capsys, "stream.csv")
    assert (code, told) == (2, [])
    assert "field.qipf is not calibrated" in err


def test_a_state_of_another_model_or_other_parameters_is_an_error(monkeypatch, capsys, folder):
    code, _, _ = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf", "--window", 9)
    assert code == 0
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf", "--window", 8)
    assert (code, told) == (2, [])
    assert "s.qipf was made with --window 9" in err
    field = qipf.load("field.qipf")
    qipf.save(field.calibrate(make_logits(99, seed=8).numpy()), "field.qipf")
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
    assert (code, told) == (2, [])
    assert "it belongs to another model, or to another calibration of it" in err


@pytest.mark.parametrize("state", [[], ["--state", "s.qipf"]])
def test_an_input_without_predictions_is_an_error(monkeypatch, capsys, folder, state):
    header = ",".join(f"logit_{k}" for k in range(10)) + "\n"
    for text, missing in (("", "lines"), (header, "predictions"), ("\n\n", "predictions")):
        (folder / "stream.csv").write_text(text)
        code, told, err = watched(monkeypatch, capsys, "stream.csv", *state)
        assert (code, told, err.count("\n")) == (2, [], 1)
        assert err.startswith(f"qipf: stream.csv holds no {missing}, so there is no verdict.")
    assert not (folder / "s.qipf").exists()


def test_no_new_lines_are_no_error(monkeypatch, capsys, folder):
    first = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
    assert (first[0], len(first[1]), first[2]) == (0, 1, "")
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf") == (
        0, first[1], "qipf: stream.csv held no new lines.\n",
    )  # fmt: skip


def test_a_new_file_of_a_header_alone_is_no_error(monkeypatch, capsys, folder):
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0
    before = (folder / "s.qipf").read_bytes()
    (folder / "new.csv").write_text(",".join(f"logit_{k}" for k in range(10)) + "\n")
    assert watched(monkeypatch, capsys, "new.csv", "--state", "s.qipf", "--new-input") == (
        0, [], "qipf: new.csv held no predictions.\n",
    )  # fmt: skip
    assert (folder / "s.qipf").read_bytes() == before


def test_a_signal_after_bad_lines_alone_is_no_error(monkeypatch, capsys, folder):
    (folder / "stream.csv").write_text("x\n" * 25)
    told = []
    monkeypatch.setattr(sys.modules["qipf.cli.monitor"], "_warn", told.append)
    thread = interrupted(signal.SIGINT, lambda: len(told) == 10)
    assert watched(monkeypatch, capsys, "stream.csv", "--follow") == (130, [], "")
    thread.join()
    assert told[-1] == "stream.csv: 15 more bad lines up to line 25; skipped."


def test_a_rotated_log_is_followed_and_said(monkeypatch, capsys, folder):
    told = []

    def warn(text):
        told.append(text)
        os.kill(os.getpid(), signal.SIGTERM)

    def report(*_):
        if (folder / "stream.csv.1").exists():
            return
        (folder / "stream.csv").rename(folder / "stream.csv.1")
        write("stream.csv", make_logits(3, seed=3).tolist())

    module = sys.modules["qipf.cli.monitor"]
    monkeypatch.setattr(module, "_warn", warn)
    monkeypatch.setattr(module, "print_result", report)
    flags = ["stream.csv", "--state", "s.qipf", "--window", 20]
    assert watched(monkeypatch, capsys, *flags, "--follow")[0] == 143
    assert len(told) == 1
    assert "stream.csv was moved or removed, and there is a new" in told[0]
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    code, found, _ = watched(monkeypatch, capsys, *flags)
    assert (code, found[-1]["seen"]) == (0, 48)


def test_a_state_is_for_one_watch_at_a_time(monkeypatch, capsys, folder):
    with locked_file(folder / "s.qipf"):
        code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
        assert (code, told) == (2, [])
        assert "s.qipf is in use by another run" in err
        assert watched(monkeypatch, capsys, "stream.csv", "--state", "other.qipf")[0] == 0
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0


def test_closed_standard_input_is_an_error(monkeypatch, capsys, folder):
    monkeypatch.setattr("sys.stdin", None)  # as Python has it if it was closed at the start
    code, told, err = watched(monkeypatch, capsys, "--state", "s.qipf")
    assert (code, told) == (2, [])
    assert "qipf: Standard input is closed" in err


def test_a_format_that_no_line_has_is_an_error(monkeypatch, capsys, folder):
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--format", "jsonl")
    assert (code, told) == (2, [])
    assert err.endswith("qipf: No line of stream.csv holds logits. Line 1: not JSON.\n")


def test_the_notes_of_a_state_are_checked(monkeypatch, capsys, folder):
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0
    kept = ShiftMonitor.load("s.qipf", qipf.load("field.qipf"))
    sound = dict(kept.notes)
    for changes, message in [
        ({"offset": -1}, "in its notes 'offset' is -1."),
        ({"line": "many"}, "in its notes 'line' is 'many'."),
        ({"line": 2**63}, f"in its notes 'line' is {2**63}."),
        ({"bad_lines": None}, "in its notes 'bad_lines' is None."),
        ({"verdicts": 0}, "in its notes 'verdicts' is 0."),
        ({"offset": None}, "in its notes 'offset' is None."),
        ({"input": "a network"}, "its notes name the input 'a network'."),
        ({"tail": 3}, "its notes name the input 'file'."),
    ]:
        kept.notes = {k: v for k, v in (sound | changes).items() if v is not None}
        kept.save("s.qipf")
        code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
        assert (code, told) == (2, [])
        assert message in err


def test_numbers_beyond_the_range_of_the_dtype_are_abstained_from(monkeypatch, capsys, folder):
    (folder / "stream.csv").write_text("1e300" + ",1" * 9 + "\n" + "1_0" + ",1" * 9 + "\n")
    code, told, err = watched(monkeypatch, capsys, "stream.csv")
    assert (code, told[-1]["seen"], told[-1]["abstained"], told[-1]["bad_lines"]) == (0, 1, 1, 1)
    assert err == "qipf: stream.csv, line 2: '1_0' is not a number; skipped.\n"
