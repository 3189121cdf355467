"""An interrupted run is resumed, and gives the same files as one that was not interrupted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qipf import QIPFError
from qipf.io.atomic import locked_folder
from qipf.scoring import score_shards, shards
from tests.scoring.shard_files import contents, rescored

REPOSITORY = Path(__file__).parents[2]


def test_finished_shards_are_kept_and_the_rest_is_scored(folder, field, monkeypatch):
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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_runs_end_with_the_same_files(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.scoring.interrupted_shards", tmp_path],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["kills"] >= 5  # from outside
    assert summary["deaths"] >= 6  # at a write
    assert (summary["equal"], summary["left over"]) == (True, 0)


def test_drafts_of_killed_runs_are_removed_and_nothing_else(folder, field):
    out = folder / "out" / "day=1"
    out.mkdir(parents=True)
    (out / ".part-000.parquet.4711.tmp").write_bytes(b"torn")
    (out / ".mine.tmp").write_bytes(b"kept")
    score_shards(field, folder / "in", folder / "out")
    assert sorted(path.name for path in out.iterdir()) == [
        ".mine.tmp", "part-000.parquet", "part-003.parquet",
    ]  # fmt: skip


def test_two_runs_do_not_share_an_output(folder, field):
    with locked_folder(folder / "out"), pytest.raises(QIPFError, match="is in use by another run"):
        rescored(folder, field)
