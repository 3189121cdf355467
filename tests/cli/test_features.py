"""qipf features fit and qipf features score."""

import csv
import json

import numpy as np
import pytest

import qipf
from tests.cli.commands import error_line, run
from tests.layered.feature_examples import FRESH, HELD_OUT, TRAIN


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, (features, logits, labels) in {"train": TRAIN, "held_out": HELD_OUT}.items():
        np.savez(f"{name}.npz", logits=logits, labels=labels, **features)
    np.savez("test.npz", logits=FRESH[1], **FRESH[0])
    np.savez("bare.npz", **FRESH[0])
    np.savez("layerless.npz", logits=TRAIN[1], labels=TRAIN[2])
    return tmp_path


@pytest.mark.slow
def test_fitted_and_scored_as_in_python(monkeypatch, capsys, arrays):
    code, out, err = run(
        monkeypatch, capsys, "features", "fit", "train.npz", "-o", "model.qipf", "--calibrate",
        "held_out.npz", "--max-risk", 0.02, "--max-centers", 200,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out.startswith("wrote model.qipf:\nkind          fields of given features\n")
    model = qipf.FeatureQIPF(max_centers=200).fit(*TRAIN).calibrate(*HELD_OUT)
    model.accept_rule(max_risk=0.02)
    assert qipf.load("model.qipf").digest() == model.digest()
    run(monkeypatch, capsys, "features", "score", "model.qipf", "test.npz", "-o", "scored.csv")
    with open("scored.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = model(*FRESH[:2])
    assert list(rows[0]) == [
        "predicted", "uncertainty", "p_value", "accepted", "p_error", "novelty", "novelty_p_value",
        "mixture_class",
    ]  # fmt: skip
    for name in ("novelty", "novelty_p_value", "mixture_class"):
        np.testing.assert_allclose([float(r[name]) for r in rows], getattr(expected, name))
    assert [int(row["predicted"]) for row in rows] == expected.predicted.tolist()
    assert [float(row["uncertainty"]) for row in rows] == expected.uncertainty.tolist()
    code, out, _ = run(
        monkeypatch, capsys, "features", "score", "model.qipf", "test.npz", "-o", "s.npy", "--json"
    )
    assert json.loads(out) == {"output": "s.npy", "rows": 30, "columns": ["uncertainty"]}
    np.testing.assert_array_equal(np.load("s.npy"), expected.uncertainty)
    line = error_line(monkeypatch, capsys, "score", "model.qipf", "test.npz", "-o", "s.csv")
    assert "Use qipf features score" in line


@pytest.mark.slow
def test_perturbed_copies_are_named_by_their_files(monkeypatch, capsys, arrays):
    np.savez("noise.npz", logits=TRAIN[1] / 2, **TRAIN[0])
    code, out, _ = run(
        monkeypatch, capsys, "features", "fit", "train.npz", "--perturbed", "noise.npz"
    )
    assert code == 0
    assert "perturbed     noise" in out


def test_two_copies_of_one_name_are_refused(monkeypatch, capsys, arrays):
    for name in ("noise", "other/noise"):
        (arrays / name).parent.mkdir(exist_ok=True)
        np.savez(f"{name}.npz", logits=TRAIN[1] / 2, **TRAIN[0])
    line = error_line(
        monkeypatch, capsys, "features", "fit", "train.npz", "--perturbed", "noise.npz",
        "--perturbed", "other/noise.npz",
    )  # fmt: skip
    assert "have the same name, which names the copy: noise, noise. Rename one." in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("fit", "test.npz"), "test.npz has no array labels"),
        (("fit", "bare.npz"), "bare.npz has no array logits; it has early, deep"),
        (("fit", "layerless.npz"), "add one array (n, d) per layer"),
        (("fit", "none.npz"), "There is no file none.npz"),
        (("fit", "train.npz", "--max-risk", 0.1), "--max-risk needs held-out data"),
    ],
)
def test_invalid_files_are_rejected(monkeypatch, capsys, arrays, arguments, reason):
    assert reason in error_line(monkeypatch, capsys, "features", *arguments)


def test_a_field_of_logits_is_rejected(monkeypatch, capsys, arrays):
    qipf.QIPF().fit(TRAIN[1]).save("field.qipf")
    line = error_line(
        monkeypatch, capsys, "features", "score", "field.qipf", "test.npz", "-o", "s.csv"
    )
    assert "field.qipf was not written by qipf features fit. Use qipf score." in line
