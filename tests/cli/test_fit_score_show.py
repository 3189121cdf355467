"""qipf fit, qipf score and qipf show, as a user types them."""

import errno
import json
import os

import numpy as np
import pyarrow.parquet
import pytest

import qipf
from tests.cli.test_module import run
from tests.conftest import make_logits

TRAIN, TEST = make_logits(300).numpy(), make_logits(40, seed=3).numpy()
LABELS = (TRAIN + np.random.default_rng(0).normal(scale=3.0, size=TRAIN.shape)).argmax(1)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with train.npz, test.npz and field.qipf, and the commands run in it."""
    monkeypatch.chdir(tmp_path)
    np.savez("train.npz", logits=TRAIN, labels=LABELS)
    np.savez("test.npz", logits=TEST)
    qipf.save(qipf.QIPF().fit(TRAIN, LABELS), "field.qipf")
    return tmp_path


def text_file(path, logits, **columns):
    names = [*columns, *(f"logit_{k}" for k in range(logits.shape[1]))]
    rows = zip(*columns.values(), *logits.T.tolist(), strict=True)
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")


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
    text_file(files / "train.csv", TRAIN[:60].astype(float), kind=LABELS[:60])
    code, out, err = run(
        monkeypatch, capsys, "fit", "train.csv", "--columns", "logit_?", "--labels", "kind"
    )
    assert (code, err) == (0, "")
    assert "60 centres for 60 rows of 10 logits" in out
    expected = qipf.QIPF().fit(TRAIN[:60].astype(float), LABELS[:60])
    np.testing.assert_array_equal(
        qipf.load("field.qipf").uncertainty(TEST), expected.uncertainty(TEST)
    )


def test_score_writes_the_uncertainty_of_every_row(monkeypatch, capsys, files):
    text_file(files / "test.csv", TEST.astype(float), id=range(40))
    code, out, err = run(monkeypatch, capsys, "score", "field.qipf", "test.csv", "-o", "s.csv")
    uncertainty = qipf.load("field.qipf").uncertainty(TEST.astype(float))
    outliers = int((qipf.load("field.qipf").predict(TEST.astype(float)) == -1).sum())
    assert (code, err) == (0, "")
    assert out == (
        f"wrote s.csv: 40 rows, mean uncertainty {uncertainty.mean():.4g}, {outliers:,} outliers "
        f"({outliers / 40:.1%}): more uncertain than 90% of the training rows, which sit too "
        "comfortably in their own field: of new rows, expect more than 10%. For a limit that holds "
        "for new rows, fit with --calibrate HELD_OUT\n"
    )
    rows = [line.split(",") for line in (files / "s.csv").read_text().splitlines()]
    assert rows[0] == ["id", "uncertainty"]
    assert [(int(i), float(u)) for i, u in rows[1:]] == list(enumerate(uncertainty.tolist()))


def test_score_answers_programs(monkeypatch, capsys, files):
    code, out, err = run(
        monkeypatch, capsys, "score", "field.qipf", "test.npz", "-o", "s.npz", "--modes", "--json"
    )
    field = qipf.load("field.qipf")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["output"], told["rows"]) == ("s.npz", 40)
    assert told["uncertainty"]["max"] == field.uncertainty(TEST).max()
    with np.load("s.npz") as found:
        np.testing.assert_array_equal(found["mode_3"], field.modes(TEST)[:, 2])


def test_score_tells_outliers_by_held_out_rows(monkeypatch, capsys, files):
    held_out = make_logits(200, seed=4).numpy()
    np.savez("held_out.npz", logits=held_out)
    words = "fit train.npz --calibrate held_out.npz -o mine.qipf --contamination"
    assert run(monkeypatch, capsys, *words.split(), 0.25)[0] == 0
    field = qipf.load("mine.qipf")
    by_rank = int((field.p_values(TEST) <= 0.25).sum())
    assert by_rank != int((field.predict(TEST) == -1).sum())  # or this would tell nothing
    code, out, err = run(monkeypatch, capsys, "score", "mine.qipf", "test.npz", "-o", "s.csv")
    assert (code, err) == (0, "")
    assert out.endswith(
        f", {by_rank} outliers ({by_rank / 40:.1%}): more uncertain than 75% of 200 held-out rows\n"
    )
    _, out, _ = run(monkeypatch, capsys, "score", "mine.qipf", "test.npz", "-o", "s.csv", "--json")
    told = json.loads(out)
    assert told["outliers"] == by_rank
    above = told["outlier_limit"].pop("above")
    assert (field.uncertainty(TEST) > above).sum() == by_rank
    assert told["outlier_limit"] == {"share": 0.25, "of": "held-out rows", "held_out": 200}
    (files / "shards").mkdir()
    columns = {f"logit_{k}": column for k, column in enumerate(TEST.T)}
    pyarrow.parquet.write_table(pyarrow.table(columns), files / "shards" / "a.parquet")
    _, out, _ = run(monkeypatch, capsys, "score", "mine.qipf", "shards", "-o", "scored", "--json")
    assert json.loads(out)["outliers"] == by_rank
    _, out, _ = run(monkeypatch, capsys, "score", "field.qipf", "test.npz", "-o", "s.csv", "--json")
    training = {"share": 0.1, "of": "training rows", "held_out": None}
    assert json.loads(out)["outlier_limit"] == {
        "above": -qipf.load("field.qipf").offset_, **training,
    }  # fmt: skip


def test_too_few_held_out_rows_tell_no_outliers(monkeypatch, capsys, files):
    np.savez("held_out.npz", logits=make_logits(8, seed=4).numpy())
    words = "fit train.npz --calibrate held_out.npz -o mine.qipf"
    assert run(monkeypatch, capsys, *words.split())[0] == 0
    code, out, _ = run(monkeypatch, capsys, "score", "mine.qipf", "test.npz", "-o", "s.csv")
    assert code == 0
    assert out.endswith(
        ", 0 outliers (0.0%): 8 held-out rows are too few to tell which 10% are outliers\n"
    )
    _, out, _ = run(monkeypatch, capsys, "score", "mine.qipf", "test.npz", "-o", "s.csv", "--json")
    assert json.loads(out)["outlier_limit"]["above"] is None


def test_show_tells_what_is_inside(monkeypatch, capsys, files):
    code, out, err = run(monkeypatch, capsys, "show", "field.qipf")
    field = qipf.load("field.qipf")
    assert (code, err) == (0, "")
    lines = dict(
        line.strip().split("  ", 1) for line in out.splitlines()[1:] if "  " in line.strip()
    )
    assert lines["kind"].strip() == "field"
    assert lines["fitted on"].strip() == "300 rows of 10 numbers"
    assert lines["centres"].strip() == "300 (float32)"
    assert lines["bandwidth"].strip().startswith(f"{field.bandwidth_:.6g}, ")
    code, out, err = run(monkeypatch, capsys, "show", "field.qipf", "--json")
    assert json.loads(out)["fitted"]["energies"] == field.energies_.tolist()


def test_show_and_score_take_a_wrapped_model(monkeypatch, capsys, files):
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 10)
    model = qipf.wrap(net).fit(torch.randn(60, 4).split(20))
    qipf.save(model, "model.qipf")
    code, out, _ = run(monkeypatch, capsys, "show", "model.qipf")
    assert code == 0
    assert f"weights {qipf.storage.save_load.fingerprint(net)}" in out
    assert "logits, pooling mean" in out
    code, _, _ = run(monkeypatch, capsys, "score", "model.qipf", "test.npz", "-o", "s.npy")
    assert code == 0
    np.testing.assert_array_equal(np.load("s.npy"), model.field.uncertainty(TEST))


def bad_files(folder):
    (folder / "ragged.csv").write_text("logit_0,logit_1\n1,2\n3\n")
    (folder / "text.csv").write_text("logit_0,logit_1\n1,2\n3,cat\n")
    (folder / "other.csv").write_text("a,b\n1,2\n")
    text_file(folder / "nan.csv", np.full((2, 10), np.nan))
    (folder / "broken.qipf").write_bytes((folder / "field.qipf").read_bytes()[:-1])
    (folder / "folder.csv").mkdir()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("fit no.npz", "There is no file no.npz."),
        ("fit ragged.csv", "ragged.csv, line 3 has 1 instead of 2 fields."),
        ("fit text.csv", "text.csv, line 3: the column 'logit_1' holds 'cat', not a number."),
        (
            "fit other.csv",
            "other.csv has no column 'logit*'. It has: a, b. Choose the logits with --columns, "
            "names or patterns by comma.",
        ),
        (
            "fit nan.csv",
            "nan.csv, line 2: logit_0 is nan. Drop rows with NaN or inf, or repair them.",
        ),
        ("fit train.npz -o no/f.qipf", "There is no folder no. Create it, or choose another."),
        ("fit train.npz -o folder.csv", "folder.csv is a folder; name a file in it."),
        (
            "fit train.npz --orders 1,x",
            "--orders must be whole numbers by comma, such as 1,2,3,4, got '1,x'.",
        ),
        (
            "fit train.npz --reduction randon",
            "Unknown reduction 'randon'. Did you mean 'random'? Known: auto, coreset, random.",
        ),
        (
            "fit train.npz --bandwidth abc",
            "Unknown bandwidth 'abc'. Known: cv, silverman; or give a positive number.",
        ),
        (
            "fit train.npz --labels truth",
            "train.npz has no array 'truth' for the labels. It has: logits, labels.",
        ),
        ("score no.qipf test.npz -o s.csv", "There is no file no.qipf."),
        ("score folder.csv test.npz -o s.csv", "folder.csv is a folder; name a file."),
        ("score field.qipf no.csv -o s.csv", "There is no file no.csv."),
        (
            "score field.qipf ragged.csv -o s.csv",
            "ragged.csv has 2 logits a row, but the field was fitted with 10. Choose them with "
            "--columns.",
        ),
        (
            "score field.qipf nan.csv -o s.csv",
            "nan.csv, line 2: logit_0 is nan. Drop rows with NaN or inf, or repair them.",
        ),
        (
            "score field.qipf test.npz -o s.txt",
            "Cannot write 's.txt': name a file that ends in .npz, .npy, .csv or .parquet.",
        ),
        ("score field.qipf test.npz -o folder.csv", "folder.csv is a folder; name a file in it."),
        (
            "score field.qipf test.npz -o train.npz/s.csv",
            "There is no folder train.npz. Create it, or choose another.",
        ),
        ("show no.qipf", "There is no file no.qipf."),
        (
            "show train.npz",
            "train.npz cannot be read: it is cut short, or no safetensors file at all, such as "
            "qipf fit writes.",
        ),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(monkeypatch, capsys, files, arguments, line):
    bad_files(files)
    before = sorted(files.rglob("*"))
    code, out, err = run(monkeypatch, capsys, *arguments.split())
    assert (code, out, err) == (2, "", f"qipf: {line}\n")
    assert sorted(files.rglob("*")) == before


def test_a_broken_field_is_told(monkeypatch, capsys, files):
    bad_files(files)
    size = (files / "field.qipf").stat().st_size
    code, _, err = run(monkeypatch, capsys, "show", "broken.qipf")
    assert (code, err) == (
        2,
        f"qipf: broken.qipf cannot be read: it declares {size} bytes and has {size - 1}.\n",
    )


def shut(_path, mode):
    return mode != os.W_OK


def full(*_arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (("access", shut), "the folder . is read-only for you"),
        (("replace", full), "No space left on device"),
        (("fsync", full), "No space left on device"),
    ],
)
@pytest.mark.parametrize(
    "words", ["fit train.npz -o new.qipf", "score field.qipf test.npz -o new.csv"]
)
def test_an_output_that_cannot_be_written(monkeypatch, capsys, files, broken, reason, words):
    before = sorted(files.rglob("*"))
    monkeypatch.setattr(os, *broken)
    code, out, err = run(monkeypatch, capsys, *words.split())
    monkeypatch.undo()
    name = words.split()[-1]
    assert (code, out, err) == (2, "", f"qipf: Cannot write {name}: {reason}.\n")
    assert sorted(files.rglob("*")) == before


def test_probabilities_are_told_of_but_not_converted(monkeypatch, capsys, files):
    shares = np.exp(TRAIN) / np.exp(TRAIN).sum(1, keepdims=True)
    for name, rows in (("shares", shares), ("logs", np.log(shares))):
        text_file(files / f"{name}.csv", rows.astype(float).round(5))
    code, _, err = run(monkeypatch, capsys, "fit", "shares.csv", "-o", "mine.qipf")
    assert code == 0
    assert err.startswith("qipf: warning: shares.csv seems to hold probabilities: ")
    assert err.count("\n") == 1
    expected = qipf.QIPF().fit(shares.astype(float).round(5))
    assert qipf.load("mine.qipf").bandwidth_ == expected.bandwidth_
    code, _, err = run(monkeypatch, capsys, "score", "field.qipf", "shares.csv", "-o", "s.csv")
    assert code == 0
    assert err.startswith("qipf: warning: shares.csv seems to hold probabilities: ")
    for words in ("fit logs.csv -o logs.qipf", "score logs.qipf logs.csv -o s.csv"):
        assert run(monkeypatch, capsys, *words.split())[2] == ""


def test_an_input_is_never_overwritten(monkeypatch, capsys, tmp_path):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    train, field = tmp_path / "train.npy", tmp_path / "field.qipf"
    np.save(train, rows)
    assert run(monkeypatch, capsys, "fit", train, "-o", field)[0] == 0
    for arguments in (("fit", train, "-o", train), ("score", field, train, "-o", train)):
        code, _, err = run(monkeypatch, capsys, *arguments)
        assert code == 2
        assert err == (
            f"qipf: {train} is an input, and writing would destroy it. Name another file.\n"
        )
    np.testing.assert_array_equal(np.load(train), rows)
