"""What qipf monitor refuses, or says of what it cannot watch."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import qipf
from qipf import ShiftMonitor
from qipf.io.atomic import locked_file
from tests.cli.monitoring import interrupted, watched, write
from tests.cli.test_module import run
from tests.conftest import make_logits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--follow"], "--follow needs a file: standard input is read to its end anyway."),
        (
            ["stream.csv", "--skip-seen"],
            "--skip-seen is for standard input: a file is read on from where the state stands.",
        ),
        (
            ["--skip-seen", "--new-input"],
            "--skip-seen and --new-input contradict each other: of a new input nothing was seen. "
            "Leave one of them out.",
        ),
        (["."], ". is a folder. Name a file in it."),
        (["no.csv"], "Cannot read no.csv: No such file or directory."),
        (["stream.csv", "--alpha", "2"], "alpha must lie between 0 and 1, got 2.0. Try 0.01."),
        (
            ["stream.csv", "--window", "0"],
            "window must be a whole number from 1 to 1048576, got 0.",
        ),
        (
            ["stream.csv", "--state", "stream.csv"],
            "stream.csv is an input, and writing would destroy it. Name another file.",
        ),
        (
            ["stream.csv", "--state", "no/s.qipf"],
            "There is no folder no. Create it, or choose another.",
        ),
        (["stream.csv", "--state", "."], ". is a folder; name a file in it."),
        (
            ["stream.csv", "--state", os.devnull],
            f"{os.devnull} is a pipe or a device; name a file.",
        ),
    ],
)
def test_bad_arguments_are_told_in_one_line(monkeypatch, capsys, folder, arguments, message):
    code, told, err = watched(monkeypatch, capsys, *arguments)
    assert (code, told, err) == (2, [], f"qipf: {message}\n")


def shut(_path, mode):
    return mode != os.W_OK


def full(*_arguments, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ((os, "access", shut), "the folder . is read-only for you"),
        ((tempfile, "NamedTemporaryFile", full), "No space left on device"),
    ],
)
def test_a_state_that_cannot_be_written_is_told_before_any_line_is_read(
    monkeypatch, capsys, folder, broken, reason
):
    def read(*_):
        raise AssertionError("it was read first")

    monkeypatch.setattr("qipf.monitor.lines.LineSource.lines", read)
    monkeypatch.setattr(*broken)
    found = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
    assert found == (2, [], f"qipf: Cannot write s.qipf: {reason}.\n")


def test_trying_to_write_a_state_leaves_nothing(monkeypatch, capsys, folder):
    before = sorted(folder.iterdir())
    assert watched(monkeypatch, capsys, "no.csv", "--state", "s.qipf")[0] == 2
    assert sorted(path for path in folder.iterdir() if path.suffix != ".lock") == before


def test_a_state_and_a_field_in_each_other_s_place_are_told(monkeypatch, capsys, folder):
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0
    code, out, err = run(monkeypatch, capsys, "monitor", "s.qipf", "stream.csv")
    assert (code, out) == (2, "")
    assert err == (
        "qipf: s.qipf holds the state of a monitor, where a field is expected. Name the field that "
        "it was made with; the state is for qipf monitor --state, or ShiftMonitor.load(path, "
        "field).\n"
    )
    (folder / "other.qipf").write_bytes((folder / "field.qipf").read_bytes())
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "other.qipf")
    assert (code, told) == (2, [])
    assert err == (
        "qipf: other.qipf holds a field, where the state of a monitor is expected. Name a file of "
        "its own for the state; one that is not there yet is begun.\n"
    )
    assert (folder / "other.qipf").read_bytes() == (folder / "field.qipf").read_bytes()


def test_a_field_without_calibration_is_told(monkeypatch, capsys, folder):
    field = qipf.load("field.qipf")
    field.calibration_ = None
    qipf.save(field, "field.qipf")
    code, told, err = watched(monkeypatch, capsys, "stream.csv")
    assert (code, told) == (2, [])
    assert err == (
        "qipf: field.qipf is not calibrated, so there is nothing to compare a stream with. Fit it "
        "with --calibrate held_out.npz, or call field.calibrate(held_out_logits, labels).\n"
    )


def test_a_state_of_another_field_or_other_parameters_is_refused(monkeypatch, capsys, folder):
    code, _, _ = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf", "--window", 9)
    assert code == 0
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf", "--window", 8)
    assert (code, told) == (2, [])
    assert err == (
        "qipf: s.qipf was made with --window 9, which cannot change on the way. Leave --window "
        "out, or start a new state.\n"
    )
    field = qipf.load("field.qipf")
    qipf.save(field.calibrate(make_logits(99, seed=8).numpy()), "field.qipf")
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
    assert (code, told) == (2, [])
    assert "it belongs to another field, or to another calibration of it" in err


def test_an_empty_stream_is_told(monkeypatch, capsys, folder):
    (folder / "stream.csv").write_text("")
    assert watched(monkeypatch, capsys, "stream.csv") == (
        0, [], "qipf: stream.csv held no lines.\n",
    )  # fmt: skip
    (folder / "stream.csv").write_text(",".join(f"logit_{k}" for k in range(10)) + "\n")
    assert watched(monkeypatch, capsys, "stream.csv") == (
        0, [], "qipf: stream.csv held no predictions.\n",
    )  # fmt: skip


def test_no_new_lines_are_told(monkeypatch, capsys, folder):
    first = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
    assert (first[0], len(first[1]), first[2]) == (0, 1, "")
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf") == (
        0, first[1], "qipf: stream.csv held no new lines.\n",
    )  # fmt: skip


def test_a_new_file_of_a_header_alone_is_told(monkeypatch, capsys, folder):
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0
    before = (folder / "s.qipf").read_bytes()
    (folder / "new.csv").write_text(",".join(f"logit_{k}" for k in range(10)) + "\n")
    assert watched(monkeypatch, capsys, "new.csv", "--state", "s.qipf", "--new-input") == (
        0, [], "qipf: new.csv held no predictions.\n",
    )  # fmt: skip
    assert (folder / "s.qipf").read_bytes() == before


def test_a_signal_after_bad_lines_alone_is_no_bad_input(monkeypatch, capsys, folder):
    (folder / "stream.csv").write_text("x\n" * 25)
    told = []
    monkeypatch.setattr(sys.modules["qipf.cli.monitor"], "_complain", told.append)
    thread = interrupted(signal.SIGINT, lambda: len(told) == 10)
    assert watched(monkeypatch, capsys, "stream.csv", "--follow") == (130, [], "")
    thread.join()
    assert told[-1] == "stream.csv: 15 more bad lines up to line 25; skipped."


def test_a_rotated_log_is_told(monkeypatch, capsys, folder):
    state = folder / "s.qipf"

    def rotate():
        while not state.exists():
            time.sleep(0.01)
        (folder / "stream.csv").rename(folder / "stream.csv.1")
        write("stream.csv", make_logits(3, seed=3).tolist())

    thread = threading.Thread(target=rotate)
    thread.start()
    flags = ["stream.csv", "--state", state, "--window", 20]
    code, told, err = watched(monkeypatch, capsys, *flags, "--follow")
    thread.join()
    assert (code, told[-1]["seen"]) == (2, 45)
    assert err == (
        "qipf: stream.csv is no longer the file that was read: that one was moved away or removed. "
        "Read the new one with --new-input.\n"
    )
    code, told, err = watched(monkeypatch, capsys, *flags, "--new-input")
    assert (code, told[-1]["seen"], err) == (0, 48, "")


def test_a_state_is_for_one_watch_at_a_time(monkeypatch, capsys, folder):
    with locked_file(folder / "s.qipf"):
        code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
        assert (code, told) == (2, [])
        assert "s.qipf is in use by another run" in err
        assert watched(monkeypatch, capsys, "stream.csv", "--state", "other.qipf")[0] == 0
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0


def test_closed_standard_input_is_told(folder):
    ended = subprocess.run(
        f'"{sys.executable}" -c "from qipf.cli import main; main()" monitor field.qipf '
        "--state s.qipf <&-",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "qipf: Standard input is closed. Name a file, or pipe lines into it: COMMAND | qipf "
        "monitor field.qipf.\n"
    )


def test_a_format_that_no_line_has_is_an_error(monkeypatch, capsys, folder):
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--format", "jsonl")
    assert (code, told) == (2, [])
    assert err.endswith("qipf: No line of stream.csv holds logits. Line 1: not JSON.\n")


def test_a_named_pipe_is_told_to_be_piped(monkeypatch, capsys, folder):
    os.mkfifo("pipe")  # that nobody writes to: it must not wait
    code, told, err = watched(monkeypatch, capsys, "pipe")
    assert (code, told) == (2, [])
    assert err == (
        "qipf: pipe is a pipe or a device, not a file whose place can be kept. Feed it to standard "
        "input: qipf monitor field.qipf < PIPE, or COMMAND | qipf monitor field.qipf.\n"
    )


def test_notes_of_a_state_are_not_believed(monkeypatch, capsys, folder):
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0
    kept = ShiftMonitor.load("s.qipf", qipf.load("field.qipf"))
    sound = dict(kept.notes)
    for changes, message in [
        ({"offset": -1}, "in its notes 'offset' is -1."),
        ({"line": "many"}, "in its notes 'line' is 'many'."),
        ({"bad_lines": None}, "in its notes 'bad_lines' is None."),
        ({"verdicts": 0}, "in its notes 'verdicts' is 0."),
        ({"offset": None}, "in its notes 'offset' is None."),
        ({"input": "a network"}, "its notes name the input 'a network'."),
        ({"tail": 3}, "its notes name the input 'file'."),
    ]:
        kept.notes = {k: v for k, v in (sound | changes).items() if v is not None}
        kept.save("s.qipf")
        code, told, err = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
        assert (code, told, err) == (2, [], f"qipf: s.qipf cannot be used: {message}\n")


def test_numbers_beyond_the_field_s_range_are_abstained_from(monkeypatch, capsys, folder):
    (folder / "stream.csv").write_text("1e300" + ",1" * 9 + "\n" + "1_0" + ",1" * 9 + "\n")
    code, told, err = watched(monkeypatch, capsys, "stream.csv")
    assert (code, told[-1]["seen"], told[-1]["abstained"], told[-1]["bad_lines"]) == (0, 1, 1, 1)
    assert err == "qipf: stream.csv, line 2: '1_0' is not a number; skipped.\n"
