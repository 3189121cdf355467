"""Shards and datasets get the same scores on a cluster as locally, even if a worker is killed."""

import copy
import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import qipf
from qipf import QIPF, QIPFError, QIPFInputError, QIPFNotFittedError
from qipf import ray as distributed
from qipf.ray import connection, scoring
from qipf.scoring import score_shards
from qipf.scoring.results import result_names, steady_results
from qipf.scoring.shards import score_shard
from tests.ray.shared import LABELS, LOGITS, RAY, ROWS, Missing, dataset, die_once, table
from tests.scoring.shard_files import (
    TAKEN,
    contents,
    drafts,
    named_like_results,
    rescored,
    rich_table,
    write_shards,
)

ray = pytest.importorskip("ray")
pytestmark = RAY

# ---------------------------------------------------------------------- shards


@pytest.fixture(scope="module")
def folder(tmp_path_factory, field):
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder / "in", 4, 900)
    score_shards(field, folder / "in", folder / "local", modes=True)
    return folder


@pytest.fixture
def one_shard(tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(rich_table(5), tmp_path / "in" / "a.parquet")
    return tmp_path


def test_shards_are_equal_though_a_worker_is_killed(folder, field, monkeypatch):
    died = folder / "died"

    def dying(box, shard):
        """As `_score_one`, but on one shard the first worker dies while it writes."""

        def progress(_):
            if shard.target.name == "part-001.parquet":
                assert list(shard.target.parent.glob(f".{shard.target.name}.{os.getpid()}-*.tmp"))
                die_once(died)

        return score_shard(scoring._worker_field(box[0]), shard, progress)

    monkeypatch.setattr(scoring, "_score_one", dying)
    run = distributed.on_ray(workers=2)
    result = score_shards(field, folder / "in", folder / "ray", modes=True, run=run)
    assert died.read_text() != str(os.getpid())
    assert contents(folder / "ray") == contents(folder / "local")
    assert drafts(folder / "ray") == []
    local = score_shards(field, folder / "in", folder / "local", modes=True)
    assert (result.shards, result.kept, result.total) == (4, 0, local.total)


def test_one_draft_of_a_shard_is_published(folder, field, monkeypatch):
    once = scoring._score_one

    def twice(box, shard):
        """As if the connection to a first worker was lost."""
        first, second = once(box, shard), once(box, shard)
        assert not shard.target.exists()
        assert first.path != second.path
        return second

    monkeypatch.setattr(scoring, "_score_one", twice)
    run = distributed.on_ray(workers=2)
    score_shards(field, folder / "in", folder / "twice", modes=True, run=run)
    assert contents(folder / "twice") == contents(folder / "local")
    assert drafts(folder / "twice") == []


def test_the_command_resumes_a_local_run_at_an_address(folder, field):
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
    assert json.loads(ended.stdout)["kept"] == 2
    assert contents(folder / "command") == expected


def test_a_bad_shard_gives_the_same_error_as_locally(tmp_path, field):
    (tmp_path / "in").mkdir()
    good = rich_table(50)
    for name, holes in (("a", []), ("b", [17])):
        values = np.array([np.nan if k in holes else 1.0 for k in range(50)], np.float32)
        at = good.column_names.index("logit_4")
        bad = good.set_column(at, "logit_4", pa.array(values))
        pq.write_table(bad, tmp_path / f"in/{name}.parquet")
    with pytest.raises(QIPFInputError, match=r"b\.parquet, row 17: logit_4 is nan"):
        rescored(tmp_path, field, run=distributed.on_ray(workers=1))
    assert list(contents(tmp_path / "out")) == ["a.parquet"]


def unseen(box, shard, once=scoring._score_one):
    """As a machine that has another folder under the same path."""
    draft = once(box, shard)
    draft.path.unlink()
    return draft


def deadly(box, shard):
    os._exit(1)


@pytest.mark.parametrize(
    ("name", "fault", "phrase"),
    [
        ("_score_one", unseen, "all machines must see"),
        ("_score_one", deadly, r"a\.parquet ended 2 workers"),
        ("_absolute", lambda shard: Missing(), "could not start .* 'not_installed_there'"),
    ],
)
def test_faults_of_workers_are_reported(one_shard, field, monkeypatch, name, fault, phrase):
    monkeypatch.setattr(scoring, name, fault)
    for module in (scoring, connection):
        monkeypatch.setattr(module, "RETRIES", 1)
    with pytest.raises(QIPFError, match=phrase):
        rescored(one_shard, field, run=distributed.on_ray())


# ---------------------------------------------------------------------- datasets


def test_a_dataset_has_equal_scores_though_a_worker_is_killed(field, tmp_path, monkeypatch):
    import ray.data

    died = tmp_path / "died"

    class Dying(scoring._Scorer):
        def __call__(self, batch):
            scored = super().__call__(batch)
            if batch["id"][0].as_py() == 3 * 199:
                die_once(died)
            return scored

    monkeypatch.setattr(scoring, "_Scorer", Dying)
    text = [f"t{k}" if k % 3 else None for k in range(ROWS)]
    given = table(text=text)
    made = ray.data.from_arrow([given.slice(at, 199) for at in range(0, ROWS, 199)])
    made.context.enable_progress_bars = False
    scored = distributed.score(made, field, modes=True, workers=1)
    found = pa.concat_tables(ray.get(scored.to_arrow_refs()))
    assert died.exists()
    assert found.column_names == ["id", "text", *result_names(field, True)]
    assert found["id"].to_pylist() == list(range(ROWS))
    assert found["text"].to_pylist() == text
    for name, values in steady_results(field, LOGITS, result_names(field, True)).items():
        assert found[name].to_numpy().tobytes() == values.tobytes(), name


def test_the_result_is_in_order_and_the_options_of_the_dataset_are_unchanged(field):
    made = dataset()
    everywhere, before = ray.data.DataContext.get_current(), copy.deepcopy(made.context)
    assert not before.execution_options.preserve_order
    scored = distributed.score(made, field)
    assert scored.context.execution_options.preserve_order
    assert scored.map_batches(lambda batch: batch).context.execution_options.preserve_order
    assert made.context == before
    assert not everywhere.execution_options.preserve_order


def test_logits_but_no_other_columns_may_have_names_of_results():
    import ray.data

    given, field = named_like_results()
    alone = ray.data.from_arrow(given.drop_columns(["id"]))
    scored = distributed.score(alone, field, TAKEN, modes=True, workers=1)
    found = pa.concat_tables(ray.get(scored.to_arrow_refs()))
    assert found.column_names == [
        "predicted", "uncertainty", "outlier", "novelty", "mode_1", "mode_2",
    ]  # fmt: skip
    logits = np.stack([given[name].to_numpy() for name in ("uncertainty", "mode_2")], axis=1)
    for name, values in steady_results(field, logits, result_names(field, True)).items():
        assert found[name].to_numpy().tobytes() == values.tobytes(), name
    taken = ray.data.from_arrow(given.append_column("mode_1", given["id"]))
    with pytest.raises(QIPFInputError, match="already has a column 'mode_1'"):
        distributed.score(taken, field, TAKEN, modes=True)
    distributed.score(taken, field, TAKEN)  # without modes the name is free


@pytest.mark.parametrize(
    ("call", "phrase"),
    [
        (lambda field: distributed.score([1], field), "must be a ray.data.Dataset, got list"),
        (lambda field: distributed.fit(LOGITS), "must be a ray.data.Dataset, got ndarray"),
        (lambda field: distributed.score(dataset(), field, "x*"), "has no column 'x*'"),
        (
            lambda field: distributed.score(dataset(), field, "logit_1,logit_2"),
            "has 2 logits a row",
        ),
        (
            lambda field: distributed.fit(dataset(), labels="truth"),
            "has no column 'truth' for the labels",
        ),
        (
            lambda field: distributed.fit(dataset(), columns="*"),
            "the column 'label' is selected both as a logit and as the label",
        ),
        (
            lambda field: distributed.score(dataset(table(uncertainty=LABELS)), field),
            "already has a column 'uncertainty'",
        ),
        (lambda field: distributed.on_ray(workers=0), "workers must be an integer of at least 1"),
        (lambda field: distributed.fit(dataset(), QIPF(max_centers=0)), "max_centers must be"),
    ],
)
def test_bad_arguments_are_rejected_before_any_work(field, call, phrase):
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        call(field)


def test_the_field_must_be_fitted():
    with pytest.raises(QIPFNotFittedError, match="not fitted yet"):
        distributed.score(dataset(), QIPF())
