"""Folders and shards that cannot be judged are refused by name."""

import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qipf import QIPF, QIPFError, QIPFInputError, QIPFWarning
from qipf.scoring import score_shards
from qipf.scoring.table import steady_results
from tests.scoring.shard_files import (
    LOGITS,
    TAKEN,
    contents,
    named_like_results,
    refusal_of_mode_1,
    rescored,
    rich_table,
    write_shards,
)


def overlap(first, second):
    return (
        f"{second} and {first} overlap: what is written would be taken for input. Choose an output "
        "folder beside it."
    )


def test_folders_must_lie_apart(folder, field):
    inside = folder / "in"
    for output in (inside, inside / "scored", folder, folder / "x" / ".." / "in"):
        with pytest.raises(QIPFInputError, match=re.escape(overlap(inside, output))):
            score_shards(field, inside, output)
    with pytest.raises(QIPFInputError, match=r"There is no folder .*nowhere\."):
        score_shards(field, folder / "nowhere", folder / "out")
    (folder / "file").touch()
    with pytest.raises(QIPFInputError, match="is a file; the output of a folder is a folder"):
        score_shards(field, inside, folder / "file")
    (folder / "empty" / "_delta_log").mkdir(parents=True)
    pq.write_table(rich_table(3), folder / "empty" / "_delta_log" / "x.parquet")
    with pytest.raises(QIPFInputError) as refused:
        score_shards(field, folder / "empty", folder / "out")
    assert str(refused.value) == (
        f"There are no .parquet files in {folder}/empty, but for names that begin with . or _, "
        "which are passed over."
    )
    (folder / "nothing").mkdir()
    with pytest.raises(QIPFInputError) as refused:
        score_shards(field, folder / "nothing", folder / "out")
    assert str(refused.value) == f"There are no .parquet files in {folder}/nothing."


def test_a_folder_where_a_shard_belongs_is_refused(folder, field):
    place = folder / "out" / "day=1" / "part-000.parquet"
    place.mkdir(parents=True)
    for overwrite in (False, True):
        with pytest.raises(QIPFInputError) as refused:
            rescored(folder, field, overwrite=overwrite)
        assert str(refused.value) == (
            f"{place} is a folder, but a shard is to be written there. Choose another output "
            "folder."
        )


def test_links_are_followed_but_not_in_circles(folder, field):
    write_shards(folder / "elsewhere", 2, 20)
    (folder / "in" / "linked").symlink_to(folder / "elsewhere")
    (folder / "in" / "alone.parquet").symlink_to(folder / "elsewhere/day=1/part-000.parquet")
    assert rescored(folder, field).shards == 4 + 2 + 1
    assert (folder / "out" / "linked" / "day=2" / "part-001.parquet").is_file()
    with pytest.raises(QIPFInputError) as refused:
        score_shards(field, folder / "in", folder / "elsewhere")
    assert str(refused.value) == overlap(folder / "in", folder / "elsewhere")
    (folder / "in" / "linked" / "round").symlink_to(folder / "elsewhere")
    with pytest.raises(QIPFInputError) as refused:
        score_shards(field, folder / "in", folder / "other")
    assert str(refused.value) == (
        f"{folder}/in/linked/round links to a folder that it lies in. Remove the link."
    )
    assert not (folder / "other").exists()


def test_links_to_nothing_and_folders_that_cannot_be_read_are_refused(folder, field, monkeypatch):
    dangling = folder / "in" / "gone.parquet"
    dangling.symlink_to(folder / "nowhere.parquet")
    with pytest.raises(QIPFInputError) as refused:
        rescored(folder, field)
    assert str(refused.value) == f"Cannot read {dangling}: No such file or directory."
    dangling.unlink()
    look = os.scandir

    def closed(place):
        if str(place).endswith("day=2"):
            raise PermissionError(13, "Permission denied", str(place))
        return look(place)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(QIPFInputError) as refused:
        rescored(folder, field)
    assert str(refused.value) == f"Cannot read {folder}/in/day=2: Permission denied."
    assert not (folder / "out").exists()


def replaced_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)


BAD = {
    "short": (lambda t: t.drop_columns(["logit_3"]), "it has no column 'logit_3'"),
    "more": (lambda t: t.append_column("x", t["id"]), "it has a column 'x' more"),
    "types": (
        lambda t: replaced_column(t, "count", t["count"].cast(pa.int64())),
        "its column 'count' holds int64, not int16",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_mixed_schemas_are_refused_before_any_work(folder, field, kind):
    spoil, reason = BAD[kind]
    bad = folder / "in" / "day=2" / "part-001.parquet"
    pq.write_table(spoil(rich_table(31)), bad)
    with pytest.raises(QIPFInputError) as refused:
        rescored(folder, field)
    first = folder / "in" / "day=1" / "part-000.parquet"
    assert str(refused.value) == (
        f"{bad} differs from {first}: {reason}. Shards of one folder must have one schema; score "
        "others as a folder of their own."
    )
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("spoil", "columns", "message"),
    [
        (
            lambda t: t,
            "logit_1?",
            " has no column 'logit_1?'. Did you mean 'logit_1'? It has: id, ",
        ),
        (lambda t: t, "logit_0", " has 1 logits a row, but the field was fitted with 10."),
        (lambda t: t, "id", ": the column 'id' holds string, not numbers."),
        (
            lambda t: t,
            "boxes",
            ": the column 'boxes' holds list<element: double>, not numbers. One column for each "
            "logit is expected.",
        ),
        (
            lambda t: t.append_column("uncertainty", t["count"]),
            None,
            " has a column 'uncertainty' already. Rename it first.",
        ),
        (
            lambda t: t.append_column("id", t["count"]),
            None,
            " has columns of the same name. Rename them.",
        ),
    ],
)
def test_shards_that_do_not_fit_are_named(tmp_path, field, spoil, columns, message):
    (tmp_path / "in").mkdir()
    pq.write_table(spoil(rich_table(5)), tmp_path / "in" / "a.parquet")
    with pytest.raises(QIPFInputError) as refused:
        rescored(tmp_path, field, columns=columns)
    assert str(refused.value).startswith(f"{tmp_path}/in/a.parquet{message}")
    assert not (tmp_path / "out").exists()


def test_logits_may_be_called_as_results_and_other_columns_not(tmp_path):
    given, field = named_like_results()
    source, target = tmp_path / "in" / "a.parquet", tmp_path / "out" / "a.parquet"
    source.parent.mkdir()
    pq.write_table(given, source)
    rescored(tmp_path, field, columns=TAKEN, modes=True)
    found = pq.read_table(target)
    assert found.column_names == ["id", "uncertainty", "mode_1", "mode_2"]
    logits = np.stack([given[name].to_numpy() for name in ("uncertainty", "mode_2")], axis=1)
    for name, values in steady_results(field, logits, modes=True).items():
        assert found[name].to_numpy().tobytes() == values.tobytes(), name
    # the first of the results' names is a logit; a later one is not
    target.unlink()
    pq.write_table(given.append_column("mode_1", given["id"]), source)
    with pytest.raises(QIPFInputError) as refused:
        rescored(tmp_path, field, columns=TAKEN, modes=True)
    assert str(refused.value) == refusal_of_mode_1(source)
    rescored(tmp_path, field, columns=TAKEN)
    assert pq.read_table(target).column_names == ["id", "mode_1", "uncertainty"]


def test_a_corrupt_shard_is_named_and_finished_ones_stay(folder, field):
    bad = folder / "in" / "day=3" / "part-002.parquet"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-9])
    with pytest.raises(QIPFInputError, match=re.escape(f"{bad} is not a Parquet file (")):
        rescored(folder, field)
    assert not (folder / "out").exists()
    bad.write_bytes(whole)
    end = pq.read_metadata(bad).row_group(0).column(0).total_compressed_size
    bad.write_bytes(whole[:4] + bytes(end - 4) + whole[end:])
    with pytest.raises(QIPFInputError, match=re.escape(f"{bad} is damaged (")):
        rescored(folder, field)
    assert len(contents(folder / "out")) == 3
    bad.write_bytes(whole)
    assert rescored(folder, field).kept == 3


def test_numbers_that_are_missing_are_told_by_row(tmp_path, field):
    (tmp_path / "in").mkdir()
    table = rich_table(50)
    holes = pa.array([None if k == 33 else float(k) for k in range(50)], pa.float32())
    pq.write_table(replaced_column(table, "logit_4", holes), tmp_path / "in" / "a.parquet")
    with pytest.raises(QIPFInputError) as refused:
        rescored(tmp_path, field)
    assert str(refused.value) == (
        f"{tmp_path}/in/a.parquet, row 33: logit_4 is null. Drop rows without a number, or fill "
        "them in."
    )
    assert contents(tmp_path / "out") == {}


def test_probabilities_in_the_place_of_logits_are_told_once(tmp_path, field):
    (tmp_path / "in").mkdir()
    for name in "ab":
        shares = {column: np.full(5, 0.1) for column in LOGITS}
        pq.write_table(pa.table(shares), tmp_path / "in" / f"{name}.parquet")
    with pytest.warns(QIPFWarning, match=r"a\.parquet seems to hold probabilities") as told:
        rescored(tmp_path, field)
    assert len(told) == 1


@pytest.mark.parametrize("other", [None, "field.qipf", 3])
def test_what_is_no_field_is_refused(folder, other):
    with pytest.raises(QIPFInputError, match=r"^field must be a fitted QIPF, such as qipf.load"):
        score_shards(other, folder / "in", folder / "out")
    with pytest.raises(QIPFError, match=r"^This QIPF is not fitted yet\. Call fit"):
        score_shards(QIPF(), folder / "in", folder / "out")
