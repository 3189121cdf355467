"""qipf monitor, as a user runs it: files, pipes, Ctrl-C, kill -9."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np
import pytest

import qipf
from qipf import ShiftMonitor
from qipf.durable import locked_file
from tests.conftest import make_logits
from tests.test_cli import run

WIDTH = 10


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("field") / "field.qipf"
    held_out = make_logits(120, seed=1).numpy()
    field = qipf.QIPF(bandwidth="silverman").fit(make_logits(100).numpy())
    qipf.save(field.calibrate(held_out, held_out.argmax(1)), path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch, fitted):
    """A folder with field.qipf and stream.csv, 45 lines of it, and the commands run in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "field.qipf").write_bytes(fitted.read_bytes())
    write("stream.csv", make_logits(45, seed=2).tolist())
    return tmp_path


def write(path, rows):
    with open(path, "a") as file:
        file.writelines(",".join(map(repr, row)) + "\n" for row in rows)


def watched(monkeypatch, capsys, *arguments):
    """Exit code, verdicts, and standard error of ``qipf monitor ARGUMENTS --json``."""
    code, out, err = run(monkeypatch, capsys, "monitor", "field.qipf", *arguments, "--json")
    return code, [json.loads(line) for line in out.splitlines()], err


def test_verdicts_for_people(monkeypatch, capsys, folder):
    write("stream.csv", (50 + make_logits(20, seed=3)).tolist())
    with open("stream.csv", "a") as file:
        file.write("nan," * 9 + "1\nx\n")
    code, out, err = run(monkeypatch, capsys, "monitor", "field.qipf", "stream.csv", "--window", 40)
    assert (code, err) == (0, "qipf: stream.csv, line 67: 1 fields instead of 10; skipped.\n")
    first, second = out.splitlines()
    assert re.fullmatch(
        r"40: no shift found, p [\d.]+, KS 0\.\d+, more uncertain \d+\.\d%, accuracy 97\.5% "
        r"\(91\.\d% to 100\.0%\), 0 of 40 abstained",
        first,
    )
    assert re.fullmatch(
        r"66: SHIFT since \d+ \(found at 5\d\), p .*, 1 of 40 abstained, 1 bad lines so far", second
    )


def test_verdicts_for_programs(monkeypatch, capsys, folder):
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--window", 20, "--alpha", 0.05)
    assert (code, err) == (0, "")
    monitor = ShiftMonitor(qipf.load("field.qipf"), alpha=0.05, window=20)
    rows = make_logits(45, seed=2).numpy()
    for k, part in enumerate(np.split(rows, [20, 40])):
        verdict = monitor.update_logits(part)
        places = {"number": k + 1, "lines": monitor.seen, "bad_lines": 0}
        assert told[k] == json.loads(json.dumps(places | verdict.as_dict()))


def test_json_lines_from_standard_input(monkeypatch, capsys, folder):
    rows = make_logits(30, seed=2).tolist()
    kept, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    try:
        lines = "".join(json.dumps({"out": row}) + "\n" for row in rows)
        os.write(writing, lines.encode())
        os.close(writing)
        code, told, _ = watched(
            monkeypatch, capsys, "-", "--columns", "out", "--state", "s.qipf", "--window", 12
        )
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)
    assert (code, [each["seen"] for each in told]) == (0, [12, 24, 30])
    # the same stream from its first line again, as a producer that starts anew sends it
    more = "".join(json.dumps({"out": row}) + "\n" for row in [*rows, *rows[:3]])
    for flags, seen in (["--skip-seen"], 33), ([], 66):
        with open("again.jsonl", "w") as file:
            file.write(more)
        kept = os.dup(0)
        source = os.open("again.jsonl", os.O_RDONLY)
        os.dup2(source, 0)
        try:
            code, told, _ = watched(
                monkeypatch, capsys, "--columns", "out", "--state", "s.qipf", *flags
            )
        finally:
            os.dup2(kept, 0)
            os.close(kept)
            os.close(source)
        assert (code, told[-1]["seen"]) == (0, seen)


def interrupted(number, once):
    """A thread that sends this process a signal once a condition holds."""

    def wait():
        end = time.monotonic() + 120
        while not once() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_growing_file_is_followed_until_a_signal_ends_it(
    monkeypatch, capsys, folder, number, expected
):
    state = folder / "s.qipf"
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def grown():
        if not state.exists():
            return False
        write("stream.csv", make_logits(7, seed=3).tolist())
        return True

    thread = interrupted(number, grown)
    code, told, err = watched(
        monkeypatch, capsys, "stream.csv", "--follow", "--state", state, "--window", 20
    )
    thread.join()
    assert (code, err) == (expected, "")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert [each["seen"] for each in told[:2]] == [20, 40]
    assert told[2]["seen"] in (45, 52)  # what had come is counted, saved and told
    kept = ShiftMonitor.load(state, qipf.load("field.qipf"))
    assert kept.seen == told[2]["seen"]
    code, again, _ = watched(monkeypatch, capsys, "stream.csv", "--state", state)
    assert (code, again[0], again[-1]["seen"]) == (0, told[2], 52)


KILLER = """
import json, os, random, signal, sys
from qipf.cli import main
import qipf.monitor, qipf.storage, qipf.streaming.watching
chance = random.Random(int(sys.argv[1]))
for attempt in range(40):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.close(reading)
        sys.argv = ["qipf", "monitor", "field.qipf", "long.csv", "--state", "s.qipf",
                    "--window", "50", "--json"]
        main()
    os.close(writing)
    lines, most = os.fdopen(reading), chance.randint(1, 9)
    for count, line in enumerate(lines, 1):
        print(line, end="", flush=True)
        if count == most:
            for _ in range(chance.randint(0, 20_000)):
                pass
            os.kill(child, signal.SIGKILL)
            break
    for line in lines:
        if line.endswith("\\n"):  # what was told before it died
            print(line, end="", flush=True)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        sys.exit(0)
sys.exit(1)
"""


def test_kill_9_loses_nothing_and_counts_nothing_twice(monkeypatch, capsys, folder):
    write("long.csv", make_logits(2020, seed=5).tolist())
    code, expected, _ = watched(monkeypatch, capsys, "long.csv", "--window", 50)
    assert (code, len(expected)) == (0, 41)
    ended = subprocess.run(
        [sys.executable, "-c", KILLER, "0"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    by_number = {each["number"]: each for each in told}
    assert list(by_number.values()) == expected
    assert all(each == by_number[each["number"]] for each in told)
    assert len(told) > len(expected)  # it was killed, and told some again


def test_bad_lines_stop_if_wished(monkeypatch, capsys, folder):
    with open("stream.csv", "a") as file:
        file.write("1,2\n")
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--on-bad-line", "stop")
    assert (code, told[-1]["seen"], told[-1]["lines"]) == (2, 45, 45)
    assert err == (
        "qipf: stream.csv, line 46: 2 fields instead of 10. Skip such lines with --on-bad-line "
        "skip.\n"
    )


def test_metrics_are_served_while_it_watches(monkeypatch, capfd, folder):
    seen = {}

    def scraped():
        port = re.search(r"127\.0\.0\.1:(\d+)", capfd.readouterr().err + seen.get("err", ""))
        if port is None:
            return False
        seen["err"] = port[0]
        url = f"http://127.0.0.1:{port[1]}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            seen["text"] = answer.read().decode()
        return "qipf_predictions_total 40.0" in seen["text"]

    thread = interrupted(signal.SIGINT, scraped)
    code, _, _ = run(
        monkeypatch, capfd, "monitor", "field.qipf", "stream.csv", "-f", "--window", 20,
        "--metrics-port", 0,
    )  # fmt: skip
    thread.join()
    assert code == 130
    assert "qipf_predictions_total 40.0" in seen["text"]


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

    monkeypatch.setattr("qipf.streaming.lines.LineSource.lines", read)
    monkeypatch.setattr(*broken)
    found = watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")
    assert found == (2, [], f"qipf: Cannot write s.qipf: {reason}.\n")


def test_trying_to_write_a_state_leaves_nothing(monkeypatch, capsys, folder):
    before = sorted(folder.iterdir())
    assert watched(monkeypatch, capsys, "no.csv", "--state", "s.qipf")[0] == 2
    assert sorted(folder.iterdir()) == before


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
        assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf") == (
            2,
            [],
            f"qipf: s.qipf is in use by another run (process {os.getpid()}). Wait until it has "
            "ended, or choose another file.\n",
        )
        assert watched(monkeypatch, capsys, "stream.csv", "--state", "other.qipf")[0] == 0
    assert watched(monkeypatch, capsys, "stream.csv", "--state", "s.qipf")[0] == 0
    assert not list(folder.glob(".*"))


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


def test_fit_looks_at_the_held_out_width_before_it_fits(monkeypatch, capsys, folder):
    np.savez("train.npz", logits=make_logits(100).numpy())
    np.savez("held_out.npz", logits=make_logits(50, dimension=3, seed=1).numpy())

    def fitted(*_):
        raise AssertionError("it was fitted first")

    monkeypatch.setattr("qipf.estimator.QIPF.partial_fit", fitted)
    code, out, err = run(
        monkeypatch, capsys, "fit", "train.npz", "--calibrate", "held_out.npz", "-o", "mine.qipf"
    )
    assert (code, out) == (2, "")
    assert err == (
        "qipf: held_out.npz has 3 logits a row, but train.npz has 10. Calibrate with predictions "
        "of the same network.\n"
    )
    assert not (folder / "mine.qipf").exists()


def test_fit_calibrates_as_python_does(monkeypatch, capsys, folder):
    train, held_out = make_logits(100).numpy(), make_logits(50, seed=1).numpy()
    labels = np.arange(50) % WIDTH
    np.savez("train.npz", logits=train)
    np.savez("held_out.npz", logits=held_out, labels=labels)
    code, out, err = run(
        monkeypatch, capsys, "fit", "train.npz", "--calibrate", "held_out.npz", "-o", "mine.qipf"
    )
    assert (code, err) == (0, "")
    assert out.endswith(", calibrated on 50 rows\n")
    expected = qipf.QIPF().fit(train).calibrate(held_out, labels).calibration_
    assert qipf.load("mine.qipf").calibration_.digest == expected.digest
    code, out, _ = run(
        monkeypatch, capsys, "fit", "train.npz", "--calibrate", "held_out.npz", "--json"
    )
    assert json.loads(out)["calibrated_on"] == 50


def test_training_data_do_not_calibrate_themselves(monkeypatch, capsys, folder):
    np.savez("train.npz", logits=make_logits(100).numpy())
    code, out, err = run(
        monkeypatch, capsys, "fit", "train.npz", "--calibrate", "train.npz", "-o", "mine.qipf"
    )
    assert (code, out) == (2, "")
    assert err == (
        "qipf: train.npz is the training data itself, among which nothing looks unusual. "
        "Calibrate with predictions that were kept apart.\n"
    )
    assert not (folder / "mine.qipf").exists()
