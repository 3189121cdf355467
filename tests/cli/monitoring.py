"""A stream in a file, and qipf monitor run on it."""

import json
import os
import threading
import time

from tests.cli.test_module import run

WIDTH = 10


def write(path, rows):
    with open(path, "a") as file:
        file.writelines(",".join(map(repr, row)) + "\n" for row in rows)


def watched(monkeypatch, capsys, *arguments):
    """Exit code, verdicts, and standard error of ``qipf monitor ARGUMENTS --json``."""
    code, out, err = run(monkeypatch, capsys, "monitor", "field.qipf", *arguments, "--json")
    return code, [json.loads(line) for line in out.splitlines()], err


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
