"""On a cluster of two workers shards come out as at home, even when one is killed."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import qipf
from qipf import QIPFError, QIPFInputError
from qipf import ray as distributed
from qipf.ray import connection as connecting
from qipf.ray import scoring
from qipf.scoring import score_shards
from qipf.scoring.shards import score_shard
from tests.ray.ray_cluster import Missing, die_once
from tests.scoring.shard_files import contents, drafts, rich_table, write_shards

ray = pytest.importorskip("ray")
# Ray's own: it warns of options that it sets itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, field):
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder / "in", 6, 2500)
    score_shards(field, folder / "in", folder / "local", modes=True)
    return folder


def test_shards_come_out_the_same_though_workers_are_killed(folder, field, monkeypatch):
    deaths = {name: folder / f"died at {name}" for name in ("part-001.parquet", "part-004.parquet")}

    def dying(box, shard):
        """As `_score_one`, but on two shards the first to come dies amid its draft."""

        def tell(_):
            if shard.target.name in deaths:
                assert list(shard.target.parent.glob(f".{shard.target.name}.{os.getpid()}-*.tmp"))
                die_once(deaths[shard.target.name])

        return score_shard(scoring._own(box[0]), shard, tell)

    monkeypatch.setattr(scoring, "_score_one", dying)
    result = score_shards(
        field, folder / "in", folder / "ray", modes=True, run=distributed.on_ray(workers=2)
    )
    assert len({path.read_text() for path in deaths.values()} - {str(os.getpid())}) == 2
    assert contents(folder / "ray") == contents(folder / "local")
    assert drafts(folder / "ray") == []
    local = score_shards(field, folder / "in", folder / "local", modes=True)
    assert (result.shards, result.kept, result.total) == (6, 0, local.total)


def test_workers_write_drafts_and_the_driver_puts_one_of_them_in_place(folder, field, monkeypatch):
    once = scoring._score_one

    def twice(box, shard):
        """As if the worker of the first were cut off from the driver, and nobody heard of it."""
        first, second = once(box, shard), once(box, shard)
        assert not shard.target.exists()
        assert first.path != second.path
        assert first.path.parent == second.path.parent == shard.target.parent
        return second

    monkeypatch.setattr(scoring, "_score_one", twice)
    result = score_shards(
        field, folder / "in", folder / "twice", modes=True, run=distributed.on_ray(workers=2)
    )
    assert (result.shards, result.kept) == (6, 0)
    assert contents(folder / "twice") == contents(folder / "local")
    assert drafts(folder / "twice") == []


def test_a_draft_that_the_driver_does_not_see_is_told(tmp_path, field, monkeypatch):
    once = scoring._score_one

    def elsewhere(box, shard):
        """As a machine does that has another folder under the same path."""
        draft = once(box, shard)
        draft.path.unlink()
        return draft

    (tmp_path / "in").mkdir()
    pq.write_table(rich_table(5), tmp_path / "in" / "a.parquet")
    monkeypatch.setattr(scoring, "_score_one", elsewhere)
    with pytest.raises(QIPFError) as refused:
        score_shards(field, tmp_path / "in", tmp_path / "out", run=distributed.on_ray())
    assert str(refused.value).endswith(
        f", but it is not to be seen here: all machines must see {tmp_path}/out under the same "
        "path."
    )


def test_the_command_goes_on_at_an_address_where_a_local_run_stopped(folder, field):
    qipf.save(field, folder / "field.qipf")
    score_shards(field, folder / "in", folder / "command")
    expected = contents(folder / "command")
    for path in list((folder / "command").rglob("*.parquet"))[::2]:
        path.unlink()
    address = ray.get_runtime_context().gcs_address
    ended = subprocess.run(
        [
            *(sys.executable, "-c", "from qipf.cli import main; main()"),
            *("score", "field.qipf", "in", "-o", "command"),
            *("--engine", "ray", "--address", address, "--json"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["kept"] == 3
    assert contents(folder / "command") == expected


def test_a_bad_shard_is_told_as_at_home(tmp_path, field):
    (tmp_path / "in").mkdir()
    good = rich_table(50)
    for name, holes in (("a", []), ("b", [17])):
        values = np.array([np.nan if k in holes else 1.0 for k in range(50)], np.float32)
        at = good.column_names.index("logit_4")
        pq.write_table(
            good.set_column(at, "logit_4", pa.array(values)), tmp_path / f"in/{name}.parquet"
        )
    with pytest.raises(QIPFInputError) as refused:
        score_shards(field, tmp_path / "in", tmp_path / "out", run=distributed.on_ray(workers=1))
    assert str(refused.value) == (
        f"{tmp_path}/in/b.parquet, row 17: logit_4 is nan. Drop rows with NaN or inf, or repair "
        "them."
    )
    assert list(contents(tmp_path / "out")) == ["a.parquet"]


def test_a_shard_that_kills_every_worker_is_named(tmp_path, field, monkeypatch):
    def deadly(box, shard):
        import os

        os._exit(1)

    (tmp_path / "in").mkdir()
    pq.write_table(rich_table(5), tmp_path / "in" / "a.parquet")
    monkeypatch.setattr(scoring, "_score_one", deadly)
    for module in (scoring, connecting):
        monkeypatch.setattr(module, "RETRIES", 1)
    with pytest.raises(QIPFError) as refused:
        score_shards(field, tmp_path / "in", tmp_path / "out", run=distributed.on_ray())
    assert str(refused.value) == (
        f"{tmp_path}/in/a.parquet cost a worker its life 2 times, perhaps for want of memory. "
        "Finished shards are kept: run again, with fewer workers."
    )


def test_why_a_worker_does_not_start_is_told(tmp_path, field, monkeypatch):
    (tmp_path / "in").mkdir()
    pq.write_table(rich_table(5), tmp_path / "in" / "a.parquet")
    monkeypatch.setattr(scoring, "_absolute", lambda shard: Missing())
    with pytest.raises(QIPFError) as refused:
        score_shards(field, tmp_path / "in", tmp_path / "out", run=distributed.on_ray())
    assert str(refused.value) == (
        "A worker could not start on the cluster (ModuleNotFoundError: No module named "
        "'not_installed_there'). Every machine of the cluster needs this Python and this qipf: "
        "pip install 'qipf[ray]'."
    )
