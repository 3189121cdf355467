"""qipf report, as a user types it."""

import json

import numpy as np
import pytest

from tests.conftest import make_logits
from tests.test_cli import run


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train, test = make_logits(200).numpy(), make_logits(150, seed=3).numpy()
    noise = np.random.default_rng(0).normal(scale=5.0, size=(150, 10))
    np.savez("train.npz", logits=train, labels=train.argmax(1))
    np.savez("test.npz", logits=test, labels=(test + noise).argmax(1))
    np.savez("narrow.npz", logits=test[:, :4])
    np.savez("tiny.npz", logits=train[:5])
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_page_of_ones_own_logits(monkeypatch, capsys, files):
    code, out, err = run(
        monkeypatch, capsys, "report", "--train", "train.npz", "--test", "test.npz",
        "-o", "mine.html", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    told = json.loads(out)
    with np.load("test.npz") as test:
        accuracy = float((test["logits"].argmax(1) == test["labels"]).mean())
    assert told["accuracy"] == pytest.approx(accuracy)
    assert sorted(told["roc_auc"]) == ["energy", "entropy", "qipf", "softmax"]
    assert "Finding errors" in (files / "mine.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("", "Name what to report: a run's folder, or logits with --train and --test."),
        ("--train train.npz", "Name what to report: a run's folder, or logits with --train and "),
        ("empty --train train.npz", "Name a run, or --train and --test, not both."),
        ("--train no.npz --test test.npz", "There is no file no.npz."),
        (
            "--train train.npz --test narrow.npz",
            "Training rows have 10 logits, test rows 4. Both must come from one model.",
        ),
        ("--train tiny.npz --test test.npz", "There are 5 training rows; at least 20 are needed."),
        (
            "--train train.npz --test test.npz --risk 2",
            "The error rate to keep to must lie between 0 and 1; got 2.",
        ),
        (
            "--train train.npz --test test.npz -o mine.pdf",
            "Cannot write 'mine.pdf': name a file that ends in .html or .htm.",
        ),
        ("--train train.npz --test test.npz -o no/m.html", "There is no folder no. Create it, or "),
        ("empty", "empty"),
        ("nowhere", "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(monkeypatch, capsys, files, arguments, line):
    before = sorted(files.rglob("*"))
    code, out, err = run(monkeypatch, capsys, "report", *arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("qipf: ")
    assert err.count("\n") == 1
    assert line in err
    assert sorted(files.rglob("*")) == before
