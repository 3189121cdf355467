import gzip
import json
import os

import numpy as np
import pytest

from qipf.bench.results import (
    NEAREST,
    Reported,
    ResultLog,
    ScoreStore,
    Task,
    pack_all,
    read_results,
    reported,
    reported_accuracy,
    task_of,
)
from qipf.bench.suites import PAPER_CORRUPTIONS, PAPER_METHODS, SUITES
from qipf.errors import QIPFError, QIPFInputError


def line(level, **more):
    named = {"network": "n", "corruption": "zoom", "level": level, "method": "qipf", "seed": 0}
    return {**named, **more}


def test_what_is_appended_is_read_again(tmp_path):
    log = ResultLog(tmp_path / "results.jsonl")
    log.append(line(0.5, roc_auc=0.1 + 0.2, note="é", pair=(1, 2)))
    log.append(line(2.0, roc_auc=float("nan"), deep={"fpr95": float("inf")}))
    log.close()
    first, second = read_results(tmp_path)
    assert first == line(0.5, roc_auc=0.1 + 0.2, note="é", pair=[1, 2])
    assert second == line(2.0, roc_auc=None, deep={"fpr95": None})
    assert read_results(tmp_path / "results.jsonl") == [first, second]
    assert task_of(first) == Task("n", "zoom", 0.5, "qipf", 0)


@pytest.mark.parametrize("torn", [b'{"network": "n", "corr', b'{"network"\n', b"\0\0\0\0\n", b"\0"])
def test_a_torn_last_line_is_dropped(torn, tmp_path):
    path = tmp_path / "results.jsonl"
    whole = (json.dumps(line(0.5)) + "\n").encode()
    path.write_bytes(whole + torn)
    assert read_results(path) == [line(0.5)]
    assert path.read_bytes() == whole + torn  # reading alone changes nothing
    log = ResultLog(path)
    assert log.records == [line(0.5)]
    assert path.read_bytes() == whole
    log.append(line(2.0))
    log.close()
    assert read_results(path) == [line(0.5), line(2.0)]


def test_a_broken_line_in_the_midst_is_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(f"{json.dumps(line(1))}\n[]\n{json.dumps(line(2))}\n")
    with pytest.raises(QIPFInputError) as refused:
        read_results(path)
    assert str(refused.value) == (
        f"{path}, line 2: not a result (TypeError). "
        "Delete that line, and its task will be done again."
    )


def test_a_file_of_another_kind_is_named_as_such(tmp_path):
    path = tmp_path / "model.qipf"
    path.write_bytes(b"\x80\x01{}\nmore\nlines\n")
    with pytest.raises(QIPFInputError, match="is not a run's results. A model's page is made by"):
        read_results(path)


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    log = ResultLog(tmp_path / "results.jsonl")
    log.append(line(1))
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, content[:10]))
    with pytest.raises(QIPFError) as refused:
        log.append(line(2))
    monkeypatch.undo()
    log.close()
    assert str(refused.value).startswith(
        f"Cannot write {tmp_path}/results.jsonl: No space left on device. Files that were complete"
    )
    assert read_results(tmp_path) == [line(1)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "There are no results in {path}. Make them first: qipf bench run --out {path}"),
        ("no", "There is no run {path}. Make one first: qipf bench run --out {path}"),
        ("no.jsonl", "There is no file {path}. Name a run's folder, or its results.jsonl."),
    ],
)
def test_no_results_are_told_with_the_way_to_make_them(tmp_path, name, message):
    with pytest.raises(QIPFInputError) as refused:
        read_results(tmp_path / name)
    assert str(refused.value) == message.format(path=tmp_path / name)


def test_compressed_results_are_read_and_continued(tmp_path):
    content = "".join(json.dumps(line(level)) + "\n" for level in (1.0, 2.0)).encode()
    (tmp_path / "results.jsonl.gz").write_bytes(gzip.compress(content))
    assert read_results(tmp_path) == [line(1.0), line(2.0)]
    assert read_results(tmp_path / "results.jsonl.gz") == [line(1.0), line(2.0)]
    assert not (tmp_path / "results.jsonl").exists()
    log = ResultLog(tmp_path / "results.jsonl")
    log.append(line(3.0))
    log.close()
    assert read_results(tmp_path) == [line(1.0), line(2.0), line(3.0)]  # the plain file first
    assert (tmp_path / "results.jsonl").read_bytes().startswith(content)


@pytest.mark.parametrize("content", [b"plain", gzip.compress(b"cut off", mtime=0)[:-12]])
def test_damaged_compressed_results_are_an_error(tmp_path, content):
    (tmp_path / "results.jsonl.gz").write_bytes(content)
    with pytest.raises(QIPFInputError, match=r"results.jsonl.gz is not a gzip file, or is damaged"):
        read_results(tmp_path)


WRONG = np.array([True, False, False])


def keep(out, level, method, value):
    task = Task("net", "zoom", level, method, 0)
    ScoreStore(out, "net", "zoom", 0).keep(task, np.full(3, value), WRONG)


def values(out):
    return {
        level: {name: array[0].item() for name, array in arrays.items()}
        for level, arrays in ScoreStore(out, "net", "zoom", 0).read().items()
    }


def test_scores_are_read_before_during_and_after_packing(tmp_path):
    keep(tmp_path, 2.0, "qipf", 1e-30)  # far below what half precision holds
    keep(tmp_path, 0.5, "qipf", 3.0)
    single = values(tmp_path)
    known = ScoreStore(tmp_path, "net", "zoom", 0).read()
    np.testing.assert_array_equal(known[2.0]["wrong"], WRONG)
    assert list(single) == [0.5, 2.0]
    assert single[2.0]["qipf"] == pytest.approx(1e-30)
    pack_all(tmp_path)
    assert [p.name for p in (tmp_path / "scores/seed0/net").iterdir()] == ["zoom.npz"]
    assert values(tmp_path) == single
    keep(tmp_path, 2.0, "entropy", 5.0)  # a method more, later
    assert values(tmp_path)[2.0]["entropy"] == 5.0
    ScoreStore(tmp_path, "net", "zoom", 0).pack()
    assert values(tmp_path)[2.0] == {**single[2.0], "entropy": 5.0}


def test_what_was_written_last_holds(tmp_path):
    keep(tmp_path, 2.0, "qipf", 1.0)
    pack_all(tmp_path)
    keep(tmp_path, 2.0, "qipf", 4.0)
    pack_all(tmp_path)
    assert values(tmp_path)[2.0]["qipf"] == 4.0


def test_missing_scores_are_empty_and_other_files_raise(tmp_path):
    assert ScoreStore(tmp_path, "net", "zoom", 3).read() == {}
    file = tmp_path / "scores/seed0/net/zoom.npz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(QIPFInputError, match="zoom.npz is not a file of scores .* or delete it"):
        ScoreStore(tmp_path, "net", "zoom", 0).read()


def test_the_paper_s_tables_are_complete():
    networks = ["mnist_lenet", "kmnist_lenet", "cifar10_lenet", "cifar10_vgg3"]
    for metric in ("roc_auc", "pr_auc", "point_biserial"):
        # its second table leaves one network out
        there = [n for n in networks if metric != "point_biserial" or n != "cifar10_lenet"]
        for corruption in PAPER_CORRUPTIONS:
            for network in networks:
                cells = [reported(metric, corruption, network, m) for m in PAPER_METHODS]
                assert all((cell is not None) == (network in there) for cell in cells)


def test_values_as_printed():
    assert reported("pr_auc", "shear", "cifar10_vgg3", "ensemble") == Reported(0.64, 0.2)
    assert reported("point_biserial", "rotation", "kmnist_lenet", "mc_dropout").mean == -0.01
    assert reported("aurc", "rotation", "mnist_lenet", "qipf") is None
    assert reported_accuracy("mnist_lenet") == 0.986
    assert reported_accuracy("digits_mlp") is None


def test_the_smaller_kmnist_stands_beside_the_paper_s():
    assert NEAREST == {"kmnist10k_lenet": "kmnist_lenet"}
    assert "kmnist10k_lenet" in {network.name for network in SUITES["paper"].networks}
    assert reported_accuracy("kmnist10k_lenet") == 0.919
