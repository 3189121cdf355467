"""qipf score, and bad files and outputs of all commands that read logits."""

import errno
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import qipf
from tests.cli.commands import TEST, TRAIN, error_line, run, write_csv
from tests.conftest import make_logits


def test_score_writes_the_uncertainty_of_every_row(monkeypatch, capsys, files):
    write_csv(files / "test.csv", TEST.astype(float), id=range(40))
    code, out, err = run(monkeypatch, capsys, "score", "field.qipf", "test.csv", "-o", "s.csv")
    uncertainty = qipf.load("field.qipf").uncertainty(TEST.astype(float))
    outliers = int((qipf.load("field.qipf").predict(TEST.astype(float)) == -1).sum())
    assert (code, err) == (0, "")
    assert out.startswith(
        f"wrote s.csv: 40 rows, mean uncertainty {uncertainty.mean():.4g}, {outliers:,} outliers "
        f"({outliers / 40:.1%}): more uncertain than 90% of the training rows"
    )
    rows = [line.split(",") for line in (files / "s.csv").read_text().splitlines()]
    assert rows[0] == ["id", "predicted", "uncertainty", "outlier", "novelty"]
    assert [(int(row[0]), float(row[2])) for row in rows[1:]] == list(
        enumerate(uncertainty.tolist())
    )
    assert [int(row[1]) for row in rows[1:]] == TEST.argmax(1).tolist()


def test_the_result_as_json(monkeypatch, capsys, files):
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


def test_outliers_are_found_by_held_out_rows(monkeypatch, capsys, files):
    held_out = make_logits(200, seed=4).numpy()
    np.savez("held_out.npz", logits=held_out)
    words = "fit train.npz --bandwidth 4 --calibrate held_out.npz -o mine.qipf --contamination"
    assert run(monkeypatch, capsys, *words.split(), 0.25)[0] == 0
    field = qipf.load("mine.qipf")
    by_rank = int((field.p_values(TEST) <= 0.25).sum())
    assert by_rank == int((field.predict(TEST) == -1).sum())
    by_training = int((field.uncertainty(TEST) > -field.offset_).sum())
    assert by_rank != by_training  # otherwise the test is void
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


def test_too_few_held_out_rows_give_no_outliers(monkeypatch, capsys, files):
    np.savez("held_out.npz", logits=make_logits(8, seed=4).numpy())
    words = "fit train.npz --calibrate held_out.npz -o mine.qipf"
    assert run(monkeypatch, capsys, *words.split())[0] == 0
    code, out, _ = run(monkeypatch, capsys, "score", "mine.qipf", "test.npz", "-o", "s.csv")
    assert code == 0
    assert ", 0 outliers (0.0%): 8 held-out rows are too few" in out
    _, out, _ = run(monkeypatch, capsys, "score", "mine.qipf", "test.npz", "-o", "s.csv", "--json")
    assert json.loads(out)["outlier_limit"]["above"] is None


def test_results_can_be_chosen(monkeypatch, capsys, files):
    words = "score field.qipf test.npz -o s.csv --results"
    assert run(monkeypatch, capsys, *words.split(), "predicted")[0] == 0
    assert (files / "s.csv").read_text().startswith("predicted,uncertainty\n")
    assert "no accept rule" in error_line(monkeypatch, capsys, *words.split(), "accepted")


def test_outputs_of_a_layer_have_no_predicted_class(monkeypatch, capsys, files):
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.Linear(10, 3))
    qipf.save(qipf.wrap(net, "0").fit(torch.randn(60, 4).split(20)), "model.qipf")
    code, _, err = run(monkeypatch, capsys, "score", "model.qipf", "test.npz", "-o", "s.csv")
    assert code == 0
    assert "outputs of the layer '0'" in err
    assert (files / "s.csv").read_text().startswith("uncertainty,outlier,novelty\n")


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


@pytest.mark.slow
def test_probabilities_are_recognised_and_not_converted(monkeypatch, capsys, files):
    shares = (np.exp(TRAIN) / np.exp(TRAIN).sum(1, keepdims=True)).astype(float).round(5)
    write_csv(files / "shares.csv", shares)
    for words in (
        "fit shares.csv -o mine.qipf --bandwidth silverman",
        "score mine.qipf shares.csv -o s.csv",
    ):
        code, _, err = run(monkeypatch, capsys, *words.split())
        assert (code, err) == (0, "")
    fitted = qipf.load("mine.qipf")
    assert fitted.probabilities_
    assert fitted.bandwidth_ == qipf.QIPF(bandwidth="silverman").fit(shares).bandwidth_


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit no.npz", "There is no file no.npz"),
        ("fit ragged.csv", "ragged.csv, line 3 has 1 instead of 2 fields"),
        ("fit text.csv", "text.csv, line 3: the column 'logit_1' holds 'cat'"),
        ("fit other.csv", "other.csv has no column 'logit*'. It has: a, b."),
        ("fit nan.csv", "nan.csv, line 2: logit_0 is nan"),
        ("fit train.npz -o no/f.qipf", "There is no folder no"),
        ("fit train.npz -o folder.csv", "folder.csv is a folder"),
        ("score no.qipf test.npz -o s.csv", "There is no file no.qipf"),
        ("score folder.csv test.npz -o s.csv", "folder.csv is a folder"),
        ("score field.qipf no.csv -o s.csv", "There is no file no.csv"),
        ("score field.qipf ragged.csv -o s.csv", "was fitted with 10"),
        ("score field.qipf nan.csv -o s.csv", "nan.csv, line 2: logit_0 is nan"),
        ("score field.qipf test.npz -o s.txt", "Cannot write 's.txt'"),
        ("score field.qipf test.npz -o folder.csv", "folder.csv is a folder"),
        ("score field.qipf test.npz -o train.npz/s.csv", "There is no folder train.npz"),
        ("score field.qipf test.npz -o test.npz", "test.npz is an input"),
        ("fit train.npz -o train.npz", "train.npz is an input"),
        ("score field.qipf test.npz -o s.csv --workers 2", "need --engine ray"),
        ("score field.qipf test.npz -o s.csv --overwrite", "is for a folder of .parquet shards"),
        ("score field.qipf test.npz -o s.csv --engine rya", "Did you mean 'ray'"),
        ("show no.qipf", "There is no file no.qipf"),
        ("show train.npz", "train.npz cannot be read"),
        ("show broken.qipf", "broken.qipf cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(monkeypatch, capsys, files, arguments, message):
    (files / "ragged.csv").write_text("logit_0,logit_1\n1,2\n3\n")
    (files / "text.csv").write_text("logit_0,logit_1\n1,2\n3,cat\n")
    (files / "other.csv").write_text("a,b\n1,2\n")
    write_csv(files / "nan.csv", np.full((2, 10), np.nan))
    (files / "broken.qipf").write_bytes((files / "field.qipf").read_bytes()[:-1])
    (files / "folder.csv").mkdir()
    before = {path: path.is_file() and path.read_bytes() for path in files.rglob("*")}
    assert message in error_line(monkeypatch, capsys, *arguments.split())
    assert {path: path.is_file() and path.read_bytes() for path in files.rglob("*")} == before


def read_only(_path, mode):
    return mode != os.W_OK


def full(*_arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (("access", read_only), "read-only"),
        (("replace", full), "No space left on device"),
        (("fsync", full), "No space left on device"),
    ],
)
@pytest.mark.parametrize(
    "words", ["fit train.npz --bandwidth 2 -o new.qipf", "score field.qipf test.npz -o new.csv"]
)
def test_an_output_that_cannot_be_written(monkeypatch, capsys, files, broken, reason, words):
    before = sorted(files.rglob("*"))
    monkeypatch.setattr(os, *broken)
    err = error_line(monkeypatch, capsys, *words.split())
    monkeypatch.undo()
    assert f"Cannot write {words.split()[-1]}" in err
    assert reason in err
    assert sorted(files.rglob("*")) == before


BROKEN = TEST.astype(float)
BROKEN[3, 1], BROKEN[7] = np.nan, -np.inf


@pytest.mark.parametrize("kind", ["csv", "npz", "npy", "parquet"])
def test_rows_with_nan_get_no_scores_if_asked_for(monkeypatch, capsys, folder, kind):
    path, field = f"test.{kind}", qipf.load("field.qipf")
    names = [f"logit_{k}" for k in range(10)]
    if kind == "csv":
        write_csv(folder / path, BROKEN)
    elif kind == "parquet":
        columns = dict(zip(names, BROKEN.T, strict=True))
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        np.save(path, BROKEN) if kind == "npy" else np.savez(path, logits=BROKEN)
    code, _, err = run(monkeypatch, capsys, "score", "field.qipf", path, "-o", "s.npz")
    assert code == 2
    assert ("line 5: logit_1 is nan" if kind == "csv" else "row 3") in err
    assert "--nan-policy propagate" in err
    told = run(
        monkeypatch, capsys, "score", "field.qipf", path, "-o", "s.npz", "--nan-policy", "propagate"
    )
    assert told[0] == 0, told
    limit = field.outlier_limit_
    share = np.mean(field.uncertainty(np.delete(BROKEN, [3, 7], 0)) > limit)
    assert 0 < share < 1
    assert f" ({share:.1%}): " in told[1]
    assert ": 40 rows (2 with NaN or inf, without scores), mean uncertainty" in told[1]
    good = np.setdiff1d(np.arange(40), [3, 7])
    with np.load("s.npz") as found:
        np.testing.assert_allclose(
            found["uncertainty"][good], field.uncertainty(BROKEN[good]), rtol=1e-6
        )
        for name in ("uncertainty", "novelty", "p_value", "novelty_p_value"):
            assert np.isnan(found[name][[3, 7]]).all()
            assert np.isfinite(found[name][good]).all()
        assert found["predicted"][[3, 7]].tolist() == [-1, -1]
        assert found["outlier"][[3, 7]].tolist() == [False, False]


def test_the_policy_of_the_model_file_is_kept(monkeypatch, capsys, folder):
    field = qipf.load("field.qipf")
    field.nan_policy = "propagate"
    qipf.save(field, "lenient.qipf")
    np.savez("test.npz", logits=BROKEN)
    words = ["score", "lenient.qipf", "test.npz", "-o", "s.npz", "--json"]
    code, out, _ = run(monkeypatch, capsys, *words)
    assert code == 0
    told = json.loads(out)
    assert (told["rows"], told["missing"]) == (40, 2)
    scores = field.uncertainty(BROKEN)
    assert told["uncertainty"]["mean"] == pytest.approx(np.nanmean(scores))
    assert run(monkeypatch, capsys, *words, "--nan-policy", "raise")[0] == 2
    code, _, err = run(monkeypatch, capsys, *words, "--nan-policy", "drop")
    assert (code, "Unknown nan_policy 'drop'" in err) == (2, True)
    np.savez("test.npz", logits=BROKEN * np.nan)
    code, out, _ = run(monkeypatch, capsys, *words)
    assert (code, json.loads(out)["missing"], json.loads(out)["uncertainty"]["mean"]) == (
        0,
        40,
        None,
    )
    _, out, _ = run(monkeypatch, capsys, *words[:-1])
    assert out == "wrote s.npz: 40 rows (all with NaN or inf, without scores)\n"
