"""qipf monitor: files, pipes, Ctrl-C, kill -9."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import qipf
from qipf import ShiftMonitor
from tests.cli.commands import interrupted, run, watched, write
from tests.conftest import make_logits


def test_verdicts_for_people(monkeypatch, capsys, folder):
    write("stream.csv", (50 + make_logits(20, seed=3)).tolist())
    with open("stream.csv", "a") as file:
        file.write("nan," * 9 + "1\nx\n")
    code, out, err = run(monkeypatch, capsys, "monitor", "field.qipf", "stream.csv", "--window", 40)
    assert (code, err) == (
        0, "qipf: stream.csv, line 66: a logit is nan; skipped.\n"
        "qipf: stream.csv, line 67: 1 fields instead of 10; skipped.\n",
    )  # fmt: skip
    first, second = out.splitlines()
    assert re.fullmatch(
        r"40: no shift detected, p [\d.]+, KS 0\.\d+, more (novel|uncertain) \d+\.\d%, "
        r"accuracy 97\.5% \(90\.\d% to 100\.0%\), 0 of 40 abstained",
        first,
    )
    assert re.fullmatch(
        r"65: SHIFT from \d+ on \(detected at 5\d by the (novelty|uncertainty)\), p .*, "
        r"0 of 40 abstained, 2 bad lines so far",
        second,
    )


def test_verdicts_for_programs(monkeypatch, capsys, folder):
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--window", 20, "--alpha", 0.05)
    assert (code, err) == (0, "")
    monitor = ShiftMonitor(qipf.load("field.qipf"), alpha=0.05, window=20)
    rows = make_logits(45, seed=2).numpy()
    for k, part in enumerate(np.split(rows, [20, 40])):
        verdict = monitor.update(part)
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
    assert told[2]["seen"] in (45, 52)  # what was read is counted, saved and reported
    kept = ShiftMonitor.load(state, qipf.load("field.qipf"))
    assert kept.seen == told[2]["seen"]
    code, again, _ = watched(monkeypatch, capsys, "stream.csv", "--state", state)
    assert (code, again[0], again[-1]["seen"]) == (0, told[2], 52)


KILLER = """
import json, os, random, signal, sys
from qipf.cli import main
import qipf.monitor.monitor, qipf.storage.save_load, qipf.monitor.watch
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
        if line.endswith("\\n"):  # written before it died
            print(line, end="", flush=True)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        sys.exit(0)
sys.exit(1)
"""


@pytest.mark.slow
def test_kill_9_loses_nothing_and_counts_nothing_twice(monkeypatch, capsys, folder):
    write("long.csv", make_logits(1020, seed=5).tolist())
    code, expected, _ = watched(monkeypatch, capsys, "long.csv", "--window", 50)
    assert (code, len(expected)) == (0, 21)
    ended = subprocess.run(
        [sys.executable, "-c", KILLER, "0"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    by_number = {each["number"]: each for each in told}
    assert list(by_number.values()) == expected
    assert all(each == by_number[each["number"]] for each in told)
    assert len(told) > len(expected)  # it was killed, and repeated some


def test_drafts_of_a_state_that_killed_runs_left_are_removed(monkeypatch, capsys, folder):
    draft = folder / ".m.qipf.123-0123abcd.tmp"
    draft.touch()
    code, told, _ = watched(monkeypatch, capsys, "stream.csv", "--state", "m.qipf")
    assert (code, told[-1]["seen"]) == (0, 45)
    assert not draft.exists()


def test_bad_lines_can_stop_the_command(monkeypatch, capsys, folder):
    with open("stream.csv", "a") as file:
        file.write("1,2\n")
    code, told, err = watched(monkeypatch, capsys, "stream.csv", "--on-bad-line", "stop")
    assert (code, told[-1]["seen"], told[-1]["lines"]) == (2, 45, 45)
    assert "stream.csv, line 46: 2 fields instead of 10" in err


@pytest.mark.slow
def test_metrics_are_served_while_it_runs(monkeypatch, capfd, folder):
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
