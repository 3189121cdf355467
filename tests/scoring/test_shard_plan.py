"""Folders and shards that cannot be scored are rejected by name."""

import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qipf import QIPF, QIPFError, QIPFFileError, QIPFInputError
from qipf.scoring import score_shards
from qipf.scoring.results import result_names, steady_results
from tests.scoring.shard_files import (
    TAKEN,
    contents,
    named_like_results,
    rescored,
    rich_table,
    write_shards,
)


def test_folders_must_be_separate(folder, field):
    inside = folder / "in"
    for output in (inside, inside / "scored", folder, folder / "x" / ".." / "in"):
        with pytest.raises(QIPFInputError, match="overlap"):
            score_shards(field, inside, output)
    (folder / "file").touch()
    (folder / "nothing").mkdir()
    (folder / "empty" / "_delta_log").mkdir(parents=True)
    pq.write_table(rich_table(3), folder / "empty" / "_delta_log" / "x.parquet")
    for source, output, phrase in (
        ("nowhere", "out", "There is no folder"),
        ("in", "file", "is a file; the output of a folder is a folder"),
        ("nothing", "out", r"There are no \.parquet files in .*nothing\.$"),
        ("empty", "out", r"There are no \.parquet files in .*empty, except names"),
    ):
        with pytest.raises(QIPFInputError, match=phrase):
            score_shards(field, folder / source, folder / output)


def test_a_folder_in_the_place_of_a_shard_is_rejected(folder, field):
    (folder / "out" / "day=1" / "part-000.parquet").mkdir(parents=True)
    for overwrite in (False, True):
        with pytest.raises(QIPFInputError, match=r"part-000\.parquet is a folder"):
            rescored(folder, field, overwrite=overwrite)


def test_links_are_followed_but_not_in_circles(folder, field):
    write_shards(folder / "elsewhere", 2, 20)
    (folder / "in" / "linked").symlink_to(folder / "elsewhere")
    (folder / "in" / "alone.parquet").symlink_to(folder / "elsewhere/day=1/part-000.parquet")
    assert rescored(folder, field).shards == 4 + 2 + 1
    assert (folder / "out" / "linked" / "day=2" / "part-001.parquet").is_file()
    with pytest.raises(QIPFInputError, match="overlap"):
        score_shards(field, folder / "in", folder / "elsewhere")
    (folder / "in" / "linked" / "round").symlink_to(folder / "elsewhere")
    with pytest.raises(QIPFInputError, match="linked/round links to a folder that contains it"):
        score_shards(field, folder / "in", folder / "other")
    assert not (folder / "other").exists()


def test_broken_links_and_unreadable_folders_are_rejected(folder, field, monkeypatch):
    dangling = folder / "in" / "gone.parquet"
    dangling.symlink_to(folder / "nowhere.parquet")
    with pytest.raises(QIPFFileError, match=r"There is no file .*gone\.parquet"):
        rescored(folder, field)
    dangling.unlink()
    os.mkfifo(dangling)
    with pytest.raises(QIPFFileError, match=r"gone\.parquet is a pipe or a device"):
        rescored(folder, field)
    dangling.unlink()

    def denied(place, scandir=os.scandir):
        if str(place).endswith("day=2"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(QIPFInputError, match="Cannot read .*day=2: Permission denied"):
        rescored(folder, field)
    assert not (folder / "out").exists()


def replaced_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.drop_columns(["logit_3"]), "its column 'logit_3' is missing"),
        (lambda t: t.append_column("x", t["id"]), "its column 'x' is string, not missing"),
        (
            lambda t: replaced_column(t, "count", t["count"].cast(pa.int64())),
            "its column 'count' is int64, not int16",
        ),
    ],
)
def test_different_schemas_are_rejected_before_any_work(folder, field, change, reason):
    pq.write_table(change(rich_table(31)), folder / "in" / "day=2" / "part-001.parquet")
    with pytest.raises(QIPFInputError, match=rf"part-001\.parquet differs from .*: {reason}"):
        rescored(folder, field)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("change", "columns", "phrase"),
    [
        (lambda t: t, "logit_1?", "has no column 'logit_1?'. Did you mean 'logit_1'?"),
        (lambda t: t, "logit_0", "has 1 logits a row, but the field was fitted with 10"),
        (lambda t: t, "id", "the column 'id' holds string, not numbers"),
        (lambda t: t, "boxes", "One column for each logit is expected"),
        (
            lambda t: t.append_column("uncertainty", t["count"]),
            None,
            "already has a column 'uncertainty'",
        ),
        (lambda t: t.append_column("id", t["count"]), None, "has more than one column 'id'"),
    ],
)
def test_unsuitable_shards_are_rejected(tmp_path, field, change, columns, phrase):
    (tmp_path / "in").mkdir()
    pq.write_table(change(rich_table(5)), tmp_path / "in" / "a.parquet")
    with pytest.raises(QIPFInputError, match=re.escape(phrase)) as error:
        rescored(tmp_path, field, columns=columns)
    assert str(error.value).startswith(f"{tmp_path}/in/a.parquet")
    assert not (tmp_path / "out").exists()


def test_logits_but_no_other_columns_may_have_names_of_results(tmp_path):
    given, field = named_like_results()
    source, target = tmp_path / "in" / "a.parquet", tmp_path / "out" / "a.parquet"
    source.parent.mkdir()
    pq.write_table(given, source)
    rescored(tmp_path, field, columns=TAKEN, modes=True)
    found = pq.read_table(target)
    assert found.column_names == [
        "id", "predicted", "uncertainty", "outlier", "novelty", "mode_1", "mode_2",
    ]  # fmt: skip
    logits = np.stack([given[name].to_numpy() for name in ("uncertainty", "mode_2")], axis=1)
    for name, values in steady_results(field, logits, result_names(field, True)).items():
        assert found[name].to_numpy().tobytes() == values.tobytes(), name
    # the first of the results' names is a logit; a later one is not
    target.unlink()
    pq.write_table(given.append_column("mode_1", given["id"]), source)
    with pytest.raises(QIPFInputError, match="already has a column 'mode_1'"):
        rescored(tmp_path, field, columns=TAKEN, modes=True)
    rescored(tmp_path, field, columns=TAKEN)
    assert pq.read_table(target).column_names == [
        "id", "mode_1", "predicted", "uncertainty", "outlier", "novelty",
    ]  # fmt: skip


def test_a_damaged_shard_is_named_and_finished_ones_are_kept(folder, field):
    bad = folder / "in" / "day=3" / "part-002.parquet"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-9])
    with pytest.raises(QIPFFileError, match=r"part-002\.parquet cannot be read; it may be damaged"):
        rescored(folder, field)
    assert not (folder / "out").exists()
    bad.write_bytes(whole)
    end = pq.read_metadata(bad).row_group(0).column(0).total_compressed_size
    bad.write_bytes(whole[:4] + bytes(end - 4) + whole[end:])
    with pytest.raises(QIPFFileError, match=r"part-002\.parquet cannot be read; it may be damaged"):
        rescored(folder, field)
    assert len(contents(folder / "out")) == 3
    bad.write_bytes(whole)
    assert rescored(folder, field).kept == 3


def test_missing_numbers_are_reported_by_row(tmp_path, field):
    (tmp_path / "in").mkdir()
    holes = pa.array([None if k == 33 else float(k) for k in range(50)], pa.float32())
    table = replaced_column(rich_table(50), "logit_4", holes)
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    with pytest.raises(QIPFInputError, match="row 33: logit_4 is null"):
        rescored(tmp_path, field)
    assert contents(tmp_path / "out") == {}


def test_the_field_must_be_fitted(folder):
    for other in (None, "field.qipf", 3):
        with pytest.raises(QIPFInputError, match="field must be a fitted QIPF"):
            score_shards(other, folder / "in", folder / "out")
    with pytest.raises(QIPFError, match="not fitted yet"):
        score_shards(QIPF(), folder / "in", folder / "out")
