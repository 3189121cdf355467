"""Whatever stops it, a run goes on where it was, and mixes nothing in that is not its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from qipf import QIPF, QIPFError, QIPFInputError
from qipf.scoring import score_shards, shards
from qipf.scoring.provenance import read_origin
from tests.conftest import make_logits
from tests.scoring.shard_files import (
    contents,
    rescored,
    rich_table,
)

REPOSITORY = Path(__file__).parents[2]


def test_finished_shards_are_kept_and_the_rest_is_done(folder, field, monkeypatch):
    whole = score_shards(field, folder / "in", folder / "whole")
    done = []
    once = shards.score_shard

    def interrupted(field, shard, tell):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(shard)
        return once(field, shard, tell)

    monkeypatch.setattr(shards, "score_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        score_shards(field, folder / "in", folder / "out")
    assert len(contents(folder / "out")) == 2
    monkeypatch.setattr(shards, "score_shard", lambda *a: done.append(a[1]) or once(*a))
    result = score_shards(field, folder / "in", folder / "out")
    assert len(done) == len(set(done)) == 4
    assert result.kept == 2
    assert result.total == whole.total
    assert contents(folder / "out") == contents(folder / "whole")
    again = score_shards(field, folder / "in", folder / "out")
    assert (again.kept, again.total) == (4, whole.total)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("kind", "least"), [("outside", 12), ("writes", 6)])
def test_killed_again_and_again_it_ends_with_the_same_files(kind, least, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.scoring.interrupted_shards", kind, tmp_path],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["kills"] >= least
    assert (summary["equal"], summary["left over"]) == (True, 0)


def test_leftovers_of_killed_runs_are_cleared_and_nothing_else(folder, field):
    out = folder / "out" / "day=1"
    out.mkdir(parents=True)
    (out / ".part-000.parquet.4711.tmp").write_bytes(b"torn")
    (out / ".mine.tmp").write_bytes(b"kept")
    score_shards(field, folder / "in", folder / "out")
    assert sorted(path.name for path in out.iterdir()) == [
        ".mine.tmp", "part-000.parquet", "part-003.parquet",
    ]  # fmt: skip


def test_what_came_from_elsewhere_is_refused_then_replaced_when_asked(folder, field):
    other = QIPF(bandwidth=2.0).fit(make_logits(200).numpy())
    rescored(folder, other)
    target = folder / "out" / "day=1" / "part-000.parquet"
    way_out = "Choose another output folder, or pass --overwrite to replace it."
    before = contents(folder / "out")
    for options, how in (
        ({}, "was made with another field"),
        ({"modes": True}, "was made with another field, with other options"),
    ):
        with pytest.raises(QIPFInputError) as refused:
            rescored(folder, field, **options)
        assert str(refused.value) == f"{target} {how}. {way_out}"
    assert contents(folder / "out") == before
    rescored(folder, field, overwrite=True)
    score_shards(field, folder / "in", folder / "fresh")
    assert contents(folder / "out") == contents(folder / "fresh")


def test_a_changed_input_is_noticed(folder, field):
    rescored(folder, field)
    pq.write_table(rich_table(31, seed=50), folder / "in" / "day=2" / "part-001.parquet")
    with pytest.raises(QIPFInputError, match=r"part-001\.parquet was made from another input\."):
        rescored(folder, field)
    assert rescored(folder, field, overwrite=True).kept == 3


def test_files_that_are_no_shards_of_ours_are_refused(folder, field):
    rescored(folder, field)
    target = folder / "out" / "day=1" / "part-000.parquet"
    whole = target.read_bytes()
    for content in (b"", b"torn", whole[:-20], (folder / "in/day=1/part-000.parquet").read_bytes()):
        target.write_bytes(content)
        assert read_origin(target) is None
        with pytest.raises(QIPFInputError, match=r"part-000\.parquet was not made by qipf score"):
            rescored(folder, field)
    rescored(folder, field, overwrite=True)
    assert target.read_bytes() == whole
    (folder / "out" / "stranger.parquet").write_bytes(whole)
    for overwrite in (False, True):
        with pytest.raises(QIPFInputError) as refused:
            rescored(folder, field, overwrite=overwrite)
        assert str(refused.value) == (
            f"{folder}/out/stranger.parquet is not the output of any of these shards. Delete it, "
            "or choose another output folder."
        )


def test_two_runs_do_not_share_an_output(folder, field):
    fcntl = pytest.importorskip("fcntl")
    (folder / "out").mkdir()
    with open(folder / "out" / ".lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(QIPFError, match="is in use by another run"):
            rescored(folder, field)


@pytest.mark.parametrize("lie", ['"rows": "3"', '"mean": "abc"', '"outliers": 1.5'])
def test_a_summary_that_is_no_summary_is_not_believed(folder, field, lie):
    score_shards(field, folder / "in", folder / "out")
    target = next((folder / "out").rglob("*.parquet"))
    table = pq.read_table(target, partitioning=None)
    said = pq.read_metadata(target).metadata[b"qipf"].decode()
    name = lie.split(":")[0]
    spoilt = re.sub(f"{name}: [^,}}]+", lie, said).encode()
    pq.write_table(table.replace_schema_metadata({b"qipf": spoilt}), target)
    with pytest.raises(QIPFInputError, match=r"was not made by qipf score"):
        score_shards(field, folder / "in", folder / "out")
