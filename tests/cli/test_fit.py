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


def test_a_fit_names_the_decisions_that_it_replaces(monkeypatch, capsys, files):
    fit = "fit", "train.npz", "-o", "field.qipf"
    assert run(monkeypatch, capsys, *fit)[2] == ""  # the old one was not calibrated
    np.savez("held.npz", logits=TRAIN + 0.1, labels=LABELS)
    run(monkeypatch, capsys, *fit, "--calibrate", "held.npz")
    _, _, err = run(monkeypatch, capsys, *fit, "--calibrate", "held.npz", "--max-risk", 0.2)
    assert err == "qipf: warning: replaced field.qipf, which was calibrated.\n"
    code, out, err = run(monkeypatch, capsys, *fit)
    assert code == 0
    assert out.startswith("wrote field.qipf: 300 centres")
    assert err == "qipf: warning: replaced field.qipf, which was calibrated and had a rule.\n"
    (files / "field.qipf").write_text("another file")
    assert run(monkeypatch, capsys, *fit)[2] == ""


def test_fit_takes_every_parameter(monkeypatch, capsys, files):
    code, out, err = run(
        monkeypatch, capsys, "fit", "train.npz", "-o", "mine.qipf", "--bandwidth", "20",
        "--max-centers", 50, "--reduction", "random", "--orders", "1,3", "--softening", 0.001,
        "--normalization", "peak", "--no-fallback",
        "--contamination", 0.2, "--engine", "reference", "--device", "cpu", "--seed", 7, "--json",
    )  # fmt: skip
    assert code == 0
    assert err.startswith("qipf: warning: The field detects errors worse than the entropy")
    assert json.loads(out) == {
        "output": "mine.qipf", "rows": 300, "labelled": True, "centers": 50, "dimension": 10,
        "bandwidth": 20.0, "bandwidth_criterion": "given",
    }  # fmt: skip
    expected = qipf.QIPF(
        bandwidth=20.0, max_centers=50, reduction="random", orders=(1, 3), softening=0.001,
        normalization="peak", fallback=False,
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
    assert code == 0
    assert "too few errors and near errors" in err
    assert "60 centres for 60 rows of 10 logits" in out
    expected = qipf.QIPF().fit(TRAIN[:60].astype(float), LABELS[:60])
    np.testing.assert_array_equal(
        qipf.load("model.qipf").uncertainty(TEST), expected.uncertainty(TEST)
    )


def test_fit_calibrates_as_python_does(monkeypatch, capsys, files):
    train, held_out = make_logits(100).numpy(), make_logits(50, seed=1).numpy()
    labels = held_out.argmax(1)
    labels[::5] = (labels[::5] + 1) % 10
    np.savez("train.npz", logits=train)
    np.savez("held_out.npz", logits=held_out, labels=labels)
    code, out, err = run(
        monkeypatch, capsys, "fit", "train.npz", "--calibrate", "held_out.npz", "-o", "mine.qipf"
    )
    assert (code, err) == (0, "")
    expected = qipf.QIPF().fit(train).calibrate(held_out, labels)
    assert out.endswith(
        f", calibrated on 50 rows, error detection: {expected.detection_}; no accept rule "
        "(--max-risk makes one)\n"
    )
    assert qipf.load("mine.qipf").calibration_.digest == expected.calibration_.digest
    code, out, _ = run(
        monkeypatch, capsys, "fit", "train.npz", "--calibrate", "held_out.npz", "--json"
    )
    told = json.loads(out)
    assert (told["calibrated_on"], told["calibration_labelled"], told["rule"]) == (50, True, None)


def test_fit_makes_the_rule_that_python_makes(monkeypatch, capsys, files):
    held_out = make_logits(200, seed=1).numpy()
    np.savez("held_out.npz", logits=held_out, labels=held_out.argmax(1))
    words = "fit train.npz --calibrate held_out.npz --max-risk 0.05 -o mine.qipf"
    code, out, err = run(monkeypatch, capsys, *words.split())
    assert (code, err) == (0, "")
    field = qipf.QIPF().fit(TRAIN, LABELS).calibrate(held_out, held_out.argmax(1))
    assert qipf.load("mine.qipf").rule_ == field.accept_rule(max_risk=0.05)
    assert out.endswith(f"\n{field.rule_}\n")
    code, out, err = run(monkeypatch, capsys, *["score", "mine.qipf", "test.npz", "-o", "s.npz"])
    assert (code, err) == (0, "")
    with np.load("s.npz") as found:
        np.testing.assert_array_equal(found["accepted"], field.accepts(TEST))
        np.testing.assert_array_equal(found["p_value"], field.p_values(TEST))


def test_every_file_of_logits_may_have_its_file_of_labels(monkeypatch, capsys, files):
    held_out = make_logits(50, seed=1).numpy()
    classes = held_out.argmax(1)
    for name, array in (
        ("train", TRAIN), ("y_train", LABELS), ("held", held_out), ("y_held", classes),
    ):  # fmt: skip
        np.save(f"{name}.npy", array)
    words = "fit train.npy --labels y_train.npy --calibrate held.npy --calibrate-labels y_held.npy"
    code, _, err = run(monkeypatch, capsys, *words.split())
    assert (code, err) == (0, "")
    expected = qipf.QIPF().fit(TRAIN, LABELS).calibrate(held_out, classes)
    found = qipf.load("model.qipf")
    assert found.calibration_.digest == expected.calibration_.digest
    assert not found.calibration_.wrong.any()
    assert found.bandwidth_ == expected.bandwidth_


def test_without_labels_of_the_held_out_rows_it_says_what_is_missing(monkeypatch, capsys, files):
    np.save("held.npy", make_logits(50, seed=1).numpy())
    words = ["fit", "train.npz", "--calibrate", "held.npy"]
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0
    assert out.endswith(", calibrated on 50 rows\n")
    assert err == (
        "qipf: warning: held.npy has no labels, so there will be no accept rule and no estimate of "
        "accuracy; p-values, outliers and shift need none. Give the true classes of its rows as a "
        "column label, an array labels, or with --calibrate-labels FILE.npy.\n"
    )
    (files / "model.qipf").unlink()
    message = error_line(monkeypatch, capsys, *words, "--max-risk", 0.1)
    assert "held.npy has no labels, so no accept rule can be made" in message
    for option in (["--max-risk", "0.1"], ["--calibrate-labels", "y.npy"]):
        message = error_line(monkeypatch, capsys, "fit", "train.npz", *option)
        assert message == f"qipf: {option[0]} needs held-out logits: add --calibrate HELD_OUT.\n"
    assert not (files / "model.qipf").exists()


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
