"""qipf report, as a user types it."""

import json

import numpy as np
import pytest

from tests.cli.test_module import run
from tests.conftest import make_logits


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train, test = make_logits(200).numpy(), make_logits(150, seed=3).numpy()
    noise = np.random.default_rng(0).normal(scale=5.0, size=(150, 10))
    np.savez("train.npz", logits=train, labels=train.argmax(1))
    np.savez("test.npz", logits=test, labels=(test + noise).argmax(1))
    np.savez("narrow.npz", logits=test[:, :4])
    np.savez("tiny.npz", logits=train[:5])
    (tmp_path / "bare.csv").write_text("logit_0,logit_1\n")
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
        (
            "--train train.npz",
            "Name what to report: a run's folder, or logits with --train and --test.",
        ),
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
        (
            "--train train.npz --test test.npz -o no/m.html",
            "There is no folder no. Create it, or choose another.",
        ),
        ("empty", "There are no results in empty. Make them first: qipf bench run --out empty"),
        ("nowhere", "There is no run nowhere. Make one first: qipf bench run --out nowhere"),
        ("--train bare.csv --test test.npz", "bare.csv has a header, but no rows."),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(monkeypatch, capsys, files, arguments, line):
    before = sorted(files.rglob("*"))
    code, out, err = run(monkeypatch, capsys, "report", *arguments.split())
    assert (code, out, err) == (2, "", f"qipf: {line}\n")
    assert sorted(files.rglob("*")) == before


def test_probabilities_are_told_of(monkeypatch, capsys, files):
    with np.load("train.npz") as train:
        shares = np.exp(train["logits"]) / np.exp(train["logits"]).sum(1, keepdims=True)
    np.savez("shares.npz", logits=shares)
    code, out, err = run(
        monkeypatch, capsys, "report", "--train", "shares.npz", "--test", "test.npz"
    )
    assert (code, out) == (0, "wrote report.html\n")
    assert err == (
        "qipf: warning: shares.npz seems to hold probabilities: no number is negative, and every "
        "row sums to 1. They are taken as they are, but a field is meant for logits: pass the "
        "network's outputs before its softmax or, if these are lost, the probabilities' "
        "logarithms, in training and test files alike.\n"
    )
