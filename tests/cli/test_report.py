"""qipf report."""

import json
import shutil

import numpy as np
import pytest

from tests.cli.commands import error_line, run
from tests.conftest import make_logits
from tests.stored.write_files import stored


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train, test = make_logits(200).numpy(), make_logits(150, seed=3).numpy()
    noise = np.random.default_rng(0).normal(scale=5.0, size=(150, 10))
    np.savez("train.npz", logits=train, labels=train.argmax(1))
    np.savez("test.npz", logits=test, labels=(test + noise).argmax(1))
    np.savez("narrow.npz", logits=test[:, :4])
    (tmp_path / "bare.csv").write_text(",".join(f"logit_{k}" for k in range(10)) + "\n")
    shutil.copy(stored("field"), "m.qipf")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.slow
def test_a_page_of_your_own_logits(monkeypatch, capsys, files):
    code, out, err = run(
        monkeypatch, capsys, "report", "--train", "train.npz", "--test", "test.npz",
        "-o", "mine.html", "--json",
    )  # fmt: skip
    assert code == 0
    assert "detects errors worse than the entropy" in err  # of data made at random
    told = json.loads(out)
    with np.load("test.npz") as test:
        accuracy = float((test["logits"].argmax(1) == test["labels"]).mean())
    assert told["accuracy"] == pytest.approx(accuracy)
    assert sorted(told["roc_auc"]) == ["energy", "entropy", "softmax", "this model"]
    assert "Finding errors" in (files / "mine.html").read_text()


@pytest.mark.slow
def test_a_page_of_a_calibrated_model(monkeypatch, capsys, files):
    shutil.copy(stored("calibrated"), "m.qipf")
    code, out, err = run(
        monkeypatch, capsys, "report", "--model", "m.qipf", "--test", "test.npz", "-o", "mine.html"
    )
    assert (code, out, err) == (0, "wrote mine.html\n", "")
    page = (files / "mine.html").read_text()
    assert "150 test predictions, compared with 280 held-out ones." in page
    assert "qipf report --model m.qipf --test test.npz -o mine.html" in page


@pytest.mark.slow
def test_a_page_of_a_model_that_is_not_calibrated(monkeypatch, capsys, files):
    words = "report --model m.qipf --test test.npz -o mine.html"
    assert run(monkeypatch, capsys, *words.split())[0] == 0
    assert "Whether the data has shifted is not shown" in (files / "mine.html").read_text()
    before = (files / "m.qipf").read_bytes()
    assert run(monkeypatch, capsys, *words.split(), "--calibrate", "train.npz")[0] == 0
    page = (files / "mine.html").read_text()
    assert "150 test predictions, compared with 200 held-out ones." in page
    assert (files / "m.qipf").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "Give the folder of a run"),
        ("--train train.npz", "Give the folder of a run"),
        ("--train train.npz --model m.qipf --test test.npz", "Give the folder of a run"),
        ("empty --train train.npz", "--train cannot be used with the folder of a run"),
        ("empty --risk 0.1", "--risk cannot be used with the folder of a run"),
        ("--train train.npz --test test.npz --data .", "--data is for a run"),
        ("--train no.npz --test test.npz", "There is no file no.npz"),
        ("--train train.npz --test narrow.npz", "Training rows have 10 logits, test rows 4"),
        ("--train train.npz --calibrate train.npz --test test.npz", "is the training data itself"),
        ("--train train.npz --calibrate narrow.npz --test test.npz", "narrow.npz has 4 logits"),
        ("--model m.qipf --train-labels y.npy --test test.npz", "--train-labels needs --train"),
        ("--model m.qipf --calibrate-labels y.npy --test test.npz", "needs --calibrate"),
        ("empty --calibrate train.npz", "--calibrate cannot be used with the folder of a run"),
        ("--train train.npz --test test.npz --risk 2", "between 0 and 1"),
        ("--train train.npz --test test.npz -o mine.pdf", "Cannot write 'mine.pdf'"),
        ("--train train.npz --test test.npz -o no/m.html", "There is no folder no"),
        ("empty", "There are no results in empty"),
        ("nowhere", "There is no run nowhere"),
        ("--train bare.csv --test test.npz", "bare.csv has a header, but no rows"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(monkeypatch, capsys, files, arguments, message):
    before = sorted(files.rglob("*"))
    assert message in error_line(monkeypatch, capsys, "report", *arguments.split())
    assert sorted(files.rglob("*")) == before
