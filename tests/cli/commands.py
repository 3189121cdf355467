"""Running qipf commands in tests."""

import json
import os
import sys
import threading
import time

import numpy as np
import pytest

from qipf.cli import main
from tests.conftest import make_logits

TRAIN, TEST = make_logits(300).numpy(), make_logits(40, seed=3).numpy()
TRAIN[::8] *= 1.2  # the model's errors lie far out: the field finds them better than the entropy
LABELS = np.where(np.arange(300) % 8 == 0, (TRAIN.argmax(1) + 1) % 10, TRAIN.argmax(1))


def run(monkeypatch, capsys, *arguments):
    """Exit code, standard output and standard error of ``qipf ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["qipf", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


def error_line(monkeypatch, capsys, *arguments):
    """The one line that a command with bad input prints; nothing else is printed or written."""
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(("qipf: ", f"qipf {arguments[0]}: "))
    return err


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


def write_csv(path, logits, **columns):
    """Write columns, then the logits, with a header."""
    names = [*columns, *(f"logit_{k}" for k in range(logits.shape[1]))]
    rows = zip(*columns.values(), *logits.T.tolist(), strict=True)
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")
