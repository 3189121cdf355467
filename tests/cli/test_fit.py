"""qipf fit."""

import json

import numpy as np
import pytest

import qipf
from tests.cli.commands import LABELS, TEST, TRAIN, error_line, run, write_csv
from tests.conftest import make_logits


def test_fit_gives_the_field_that_python_gives(monkeypatch, capsys, files):
    code, out, err = run(monkeypatch, capsys, "fit", "train.npz", "-o", "mine.qipf")
    expected = qipf.load("field.qipf")
    assert (code, err) == (0, "")
    assert out == (
        f"wrote mine.qipf: 300 centres for 300 rows of 10 logits, bandwidth "
        f"{expected.bandwidth_:.4g} (error detection)\n"
    )
    assert (files / "mine.qipf").read_bytes() == (files / "field.qipf").read_bytes()


def test_fit_takes_every_parameter(monkeypatch, capsys, files):
    code, out, err = run(
        monkeypatch, capsys, "fit", "train.npz", "-o", "mine.qipf", "--bandwidth", "2.5",
        "--max-centers", 50, "--reduction", "random", "--orders", "1,3", "--softening", 0.1,
        "--contamination", 0.2, "--engine", "reference", "--device", "cpu", "--seed", 7, "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "output": "mine.qipf", "rows": 300, "labelled": True, "centers": 50, "dimension": 10,
        "bandwidth": 2.5, "bandwidth_criterion": "given",
    }  # fmt: skip
    expected = qipf.QIPF(
        bandwidth=2.5, max_centers=50, reduction="random", orders=(1, 3), softening=0.1,
        contamination=0.2, engine="reference", device="cpu", random_state=7,
    )  # fmt: skip
    loaded = qipf.load("mine.qipf")
    assert loaded.get_params() == expected.get_params()
    np.testing.assert_array_equal(
        loaded.uncertainty(TEST), expected.fit(TRAIN, LABELS).uncertainty(TEST)
    )


def test_fit_from_text_with_named_columns(monkeypatch, capsys, files):
    write_csv(files / "train.csv", TRAIN[:60].astype(float), kind=LABELS[:60])
    code, out, err = run(
        monkeypatch, capsys, "fit", "train.csv", "--columns", "logit_?", "--labels", "kind"
    )
    assert (code, err) == (0, "")
    assert "60 centres for 60 rows of 10 logits" in out
    expected = qipf.QIPF().fit(TRAIN[:60].astype(float), LABELS[:60])
    np.testing.assert_array_equal(
        qipf.load("model.qipf").uncertainty(TEST), expected.uncertainty(TEST)
    )


def test_fit_calibrates_as_python_does(monkeypatch, capsys, files):
    train, held_out = make_logits(100).numpy(), make_logits(50, seed=1).numpy()
    labels = np.arange(50) % 10
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


def test_calibration_data_are_checked_before_the_fit(monkeypatch, capsys, files):
    np.savez("narrow.npz", logits=make_logits(50, dimension=3, seed=1).numpy())

    def fitted(*_):
        raise AssertionError("it was fitted first")

    monkeypatch.setattr("qipf.field.estimator.QIPF.partial_fit", fitted)
    for path, message in [
        ("narrow.npz", "narrow.npz has 3 logits per row, but train.npz has 10"),
        ("train.npz", "train.npz is the training data itself"),
    ]:
        words = ("fit", "train.npz", "--calibrate", path, "-o", "mine.qipf")
        assert message in error_line(monkeypatch, capsys, *words)
    assert not (files / "mine.qipf").exists()


@pytest.mark.parametrize("arguments", ["--seed -1", "--seed 4294967296", "--max-centers 0"])
def test_numbers_out_of_range_are_named_by_their_option(monkeypatch, capsys, files, arguments):
    words = ("fit", "train.npz", "-o", "mine.qipf", *arguments.split())
    err = error_line(monkeypatch, capsys, *words)
    assert err.startswith(f"qipf fit: Invalid value for '{arguments.split()[0]}'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--orders 1,x", "--orders must be integers"),
        ("--orders 0,1", "--orders must be integers of at least 1"),
        ("--reduction randon", "Did you mean 'random'"),
        ("--bandwidth abc", "Unknown bandwidth 'abc'"),
        ("--labels truth", "train.npz has no array 'truth' for the labels"),
    ],
)
def test_bad_options_are_one_line(monkeypatch, capsys, files, arguments, message):
    words = ("fit", "train.npz", "-o", "mine.qipf", *arguments.split())
    assert message in error_line(monkeypatch, capsys, *words)
    assert not (files / "mine.qipf").exists()
