"""Provenance of scored shards: changed inputs and foreign outputs are detected."""

import os
import re

import pyarrow.parquet as pq
import pytest

from qipf import QIPF, QIPFInputError
from qipf.io.logits import table as limits
from qipf.scoring import score_shards, shard_plan
from qipf.scoring.provenance import read_provenance
from qipf.scoring.shards import score_shard
from tests.conftest import make_logits
from tests.scoring.shard_files import contents, rescored, rich_table


def test_foreign_shards_are_rejected_then_overwritten_on_request(folder, field):
    other = QIPF(bandwidth=2.0).fit(make_logits(200).numpy())
    rescored(folder, other)
    target = folder / "out" / "day=1" / "part-000.parquet"
    before = contents(folder / "out")
    for options, names in (({}, "field"), ({"modes": True}, "field, options")):
        with pytest.raises(QIPFInputError, match=f"{target} was made with another {names}\\."):
            rescored(folder, field, **options)
    assert contents(folder / "out") == before
    rescored(folder, field, overwrite=True)
    score_shards(field, folder / "in", folder / "fresh")
    assert contents(folder / "out") == contents(folder / "fresh")


def test_another_rule_or_share_of_outliers_is_another_option(folder):
    held_out = make_logits(400, seed=8).numpy()
    field = QIPF(bandwidth=3.0).fit(make_logits(200).numpy())
    field.calibrate(held_out, held_out.argmax(1)).accept_rule(max_risk=0.05)
    rescored(folder, field)
    before = contents(folder / "out")
    field.accept_rule(max_risk=0.1)
    with pytest.raises(QIPFInputError, match=r"was made with another options\."):
        rescored(folder, field)
    assert rescored(folder, field, overwrite=True).kept == 0
    field.contamination = 0.2
    with pytest.raises(QIPFInputError, match=r"was made with another options\."):
        rescored(folder, field)
    field.contamination = 0.1
    field.accept_rule(max_risk=0.05)
    rescored(folder, field, overwrite=True)
    assert contents(folder / "out") == before


def test_a_changed_input_is_detected(folder, field):
    rescored(folder, field)
    pq.write_table(rich_table(31, seed=50), folder / "in" / "day=2" / "part-001.parquet")
    with pytest.raises(QIPFInputError, match=r"part-001\.parquet was made with another input\."):
        rescored(folder, field)
    assert rescored(folder, field, overwrite=True).kept == 3


def test_other_files_in_the_output_are_rejected(folder, field):
    rescored(folder, field)
    target = folder / "out" / "day=1" / "part-000.parquet"
    whole = target.read_bytes()
    for content in (b"", b"torn", whole[:-20], (folder / "in/day=1/part-000.parquet").read_bytes()):
        target.write_bytes(content)
        assert read_provenance(target) is None
        with pytest.raises(QIPFInputError, match=r"part-000\.parquet was not made by qipf score"):
            rescored(folder, field)
    rescored(folder, field, overwrite=True)
    assert target.read_bytes() == whole
    (folder / "out" / "stranger.parquet").write_bytes(whole)
    for overwrite in (False, True):
        with pytest.raises(QIPFInputError, match="is not the output of any of these shards"):
            rescored(folder, field, overwrite=overwrite)


@pytest.mark.parametrize("lie", ['"rows": "3"', '"mean": "abc"', '"outliers": 1.5'])
def test_an_invalid_summary_is_rejected(folder, field, lie):
    score_shards(field, folder / "in", folder / "out")
    target = next((folder / "out").rglob("*.parquet"))
    table = pq.read_table(target, partitioning=None)
    said = pq.read_metadata(target).metadata[b"qipf"].decode()
    name = lie.split(":")[0]
    changed = re.sub(f"{name}: [^,}}]+", lie, said).encode()
    pq.write_table(table.replace_schema_metadata({b"qipf": changed}), target)
    with pytest.raises(QIPFInputError, match=r"was not made by qipf score"):
        score_shards(field, folder / "in", folder / "out")


def changing(change):
    """Shards whose input is changed after their first rows were read."""

    def run(field, todo, progress):
        for shard in todo:
            left = [change]
            yield (
                shard,
                score_shard(field, shard, lambda _, at=shard.source, left=left: left.pop()(at)),
            )

    return run


def rewritten(path):
    """In place, as long and as old as before, with one bit flipped."""
    state, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def exchanged(path):
    other = path.with_suffix(".other")
    pq.write_table(rich_table(30, seed=99), other)
    other.replace(path)


@pytest.mark.parametrize("change", [rewritten, exchanged])
def test_an_input_that_changes_while_it_is_read_is_rejected(folder, field, change):
    with pytest.raises(QIPFInputError, match=r"part-000\.parquet was changed while it was read"):
        rescored(folder, field, run=changing(change))
    assert contents(folder / "out") == {}


def test_an_input_that_is_removed_while_it_is_read_is_rejected(folder, field):
    with pytest.raises(QIPFInputError, match="Cannot read"):
        rescored(folder, field, run=changing(lambda path: path.unlink()))
    assert contents(folder / "out") == {}


def test_an_input_with_the_same_content_is_unchanged(folder, field):
    def same(path):
        path.write_bytes(path.read_bytes())

    assert rescored(folder, field, run=changing(lambda path: path.touch())).kept == 0
    assert rescored(folder, field).kept == 4
    again = score_shards(field, folder / "in", folder / "again", run=changing(same))
    assert again.total.rows == 126
    assert contents(folder / "again") == contents(folder / "out")


def test_the_change_is_reported_instead_of_its_consequences(folder, field, monkeypatch):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 7)

    def torn(path):
        path.write_bytes(b"PAR1")
        raise QIPFInputError("what is read now makes no sense")

    with pytest.raises(QIPFInputError, match=r"part-000\.parquet was changed while it was read"):
        rescored(folder, field, run=changing(torn))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["logit_3"]),
        lambda table: table.slice(0, 5),
        lambda table: table.append_column("uncertainty", table["count"]),
    ],
)
def test_an_input_that_changed_after_planning_is_rejected(folder, field, change):
    def run(field, todo, progress):
        pq.write_table(change(rich_table(todo[1].rows)), todo[1].source)
        for shard in todo:
            yield shard, score_shard(field, shard, progress)

    with pytest.raises(QIPFInputError, match="was changed after the run began"):
        rescored(folder, field, run=run)
    assert list(contents(folder / "out")) == ["day=1/part-000.parquet"]


def test_comparing_finished_shards_shows_progress(folder, field, monkeypatch):
    rescored(folder, field)
    (folder / "out" / "day=1" / "part-003.parquet").unlink()
    shown = []

    class Bar:
        def __init__(self, description, total, unit):
            shown.append([description, total, unit, 0])

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, count):
            shown[-1][-1] += count

    monkeypatch.setattr(shard_plan, "progress_bar", Bar)
    rescored(folder, field)
    sources = [path for path in (folder / "in").rglob("*.parquet") if "003" not in path.name]
    size = sum(path.stat().st_size for path in sources)
    assert shown == [["comparing finished shards with their input", size, "B", size]]
