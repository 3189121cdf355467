"""qipf fit --calibrate."""

import json

import numpy as np

import qipf
from tests.cli.monitoring import WIDTH
from tests.cli.test_module import run
from tests.conftest import make_logits


def test_fit_looks_at_the_held_out_width_before_it_fits(monkeypatch, capsys, folder):
    np.savez("train.npz", logits=make_logits(100).numpy())
    np.savez("held_out.npz", logits=make_logits(50, dimension=3, seed=1).numpy())

    def fitted(*_):
        raise AssertionError("it was fitted first")

    monkeypatch.setattr("qipf.field.estimator.QIPF.partial_fit", fitted)
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
