"""On a cluster of two workers everything comes out as on one machine, even when one is killed."""

import json
import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import qipf
from qipf import QIPF, QIPFError, QIPFInputError, QIPFNotFittedError, distributed
from qipf.distributed.blocks import logits_of
from qipf.tables import score_shards
from qipf.tables.scoring import steady_results
from tests.conftest import make_logits
from tests.ray_cluster import killing, own_workers, running
from tests.tables.shard_files import contents, rich_table, write_shards
from tests.test_cli import run as command

ray = pytest.importorskip("ray")
# Ray's own: it warns of options that it sets itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROWS = 3000
LOGITS = make_logits(ROWS).numpy()
LABELS = (LOGITS + np.random.default_rng(0).normal(scale=3.0, size=LOGITS.shape)).argmax(1)
CUTS = [0, 700, 701, 1900, ROWS]


@pytest.fixture(scope="module", autouse=True)
def crew():
    with running(workers=2) as crew:
        yield crew


@pytest.fixture(scope="module")
def field():
    return QIPF(bandwidth=3.0).fit(make_logits(2000, seed=8).numpy())


def table(**more):
    named = {f"logit_{k}": LOGITS[:, k] for k in range(10)}
    return pa.table({"id": np.arange(ROWS), **named, **more})


def dataset(whole=None):
    """The table in four blocks of odd sizes."""
    import ray.data

    whole = table(label=LABELS) if whole is None else whole
    parts = pairwise(CUTS)
    made = ray.data.from_arrow([whole.slice(start, end - start) for start, end in parts])
    made.context.enable_progress_bars = False
    return made


# ---------------------------------------------------------------------- shards


@pytest.fixture(scope="module")
def folder(tmp_path_factory, field):
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder / "in", 6, 2500)
    score_shards(field, folder / "in", folder / "local", modes=True)
    return folder


def test_the_cluster_has_a_worker_for_each_cpu(crew):
    assert (crew.workers, crew.needs) == (2, {"num_cpus": 1.0})


def begun_in(out):
    """The processes that are writing shards."""

    def victims():
        for path in out.rglob(".*.tmp"):
            yield int(path.name.split(".")[-2].split("-")[0])

    return victims


def test_shards_come_out_the_same_though_workers_are_killed(folder, field):
    with killing(begun_in(folder / "ray"), times=2) as killed:
        result = score_shards(
            field, folder / "in", folder / "ray", modes=True, run=distributed.on_ray(workers=2)
        )
    assert len(killed) == 2
    assert contents(folder / "ray") == contents(folder / "local")
    local = score_shards(field, folder / "in", folder / "local", modes=True)
    assert (result.shards, result.kept, result.total) == (6, 0, local.total)


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
    from qipf.distributed import connecting, scoring

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


# ---------------------------------------------------------------------- datasets: scoring


def test_a_dataset_is_scored_as_at_home_though_a_worker_is_killed(field):
    import ray.data

    text = [f"t{k}" if k % 3 else None for k in range(ROWS)]
    given = pa.concat_tables([table(text=text)] * 8)
    given = given.set_column(0, "id", pa.array(np.arange(8 * ROWS)))
    made = ray.data.from_arrow([given.slice(at, 997) for at in range(0, 8 * ROWS, 997)])
    made.context.enable_progress_bars = False
    with killing(lambda: own_workers("MapWorker(MapBatches(_Scorer)).submit")) as killed:
        scored = distributed.score(made, field, modes=True, workers=2)
        found = pa.concat_tables(ray.get(scored.to_arrow_refs()))
    assert len(killed) == 1
    assert found.column_names == ["id", "text", "uncertainty", *(f"mode_{p}" for p in range(1, 5))]
    assert found["id"].to_pylist() == list(range(8 * ROWS))
    assert found["text"].to_pylist() == 8 * text
    for name, values in steady_results(field, LOGITS, modes=True).items():
        assert found[name].to_numpy().tobytes() == np.tile(values, 8).tobytes(), name


def test_logits_stand_in_columns_of_their_own_or_in_one():
    import ray.data

    few = LOGITS[:20]
    tensors = ray.get(ray.data.from_numpy(few).to_arrow_refs())[0].rename_columns(["x"])
    lists = pa.table({"x": few.astype(np.float64).tolist()})
    fixed = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(few.ravel()), 10)})
    names = [f"logit_{k}" for k in range(10)]
    for block, columns, kind in (
        (table().slice(0, 20), names, np.float32),
        (tensors, ["x"], np.float32),
        (fixed, ["x"], np.float32),
        (lists, ["x"], np.float64),
    ):
        found = logits_of(block, columns)
        assert found.dtype == kind
        np.testing.assert_array_equal(found, few)
    np.testing.assert_array_equal(logits_of(table(), ["logit_3"]), LOGITS[:, 3:4])
    assert logits_of(lists.slice(0, 0), ["x"]).shape == (0, 0)
    for values, message in (
        ([[1.0], [1.0, 2.0]], "The dataset has rows with different numbers of logits."),
        (["a", "b"], "The dataset's logits must be numbers, one column each or all in one as a"),
        ([[[1.0]], [[2.0]]], "The dataset's logits must be numbers, one column each or all in"),
    ):
        with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}"):
            logits_of(pa.table({"x": values}), ["x"])


# ---------------------------------------------------------------------- datasets: fitting


@pytest.mark.parametrize(
    ("parameters", "labels"),
    [
        ({}, "auto"),
        ({"max_centers": 100, "random_state": 7, "contamination": 0.2}, "label"),
        ({"max_centers": 100, "bandwidth": "silverman", "orders": (1, 3)}, None),
    ],
)
def test_random_centres_are_those_of_a_local_fit(parameters, labels, monkeypatch):
    monkeypatch.setattr("qipf.sampling.HELD_OUT", 500)  # so that rows leave the sample
    found = distributed.fit(dataset(), QIPF(**parameters), labels=labels)
    local = QIPF(**parameters).fit(LOGITS, LABELS if labels else None)
    assert found.n_samples_seen_ == ROWS
    assert found.bandwidth_criterion_ == local.bandwidth_criterion_
    for name in ("centers_", "bandwidth_", "energies_", "offset_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(local, name), err_msg=name)
    np.testing.assert_array_equal(found.uncertainty(LOGITS), local.uncertainty(LOGITS))


def test_a_field_may_go_on_learning_at_home():
    more = make_logits(400, seed=2).numpy()
    found = distributed.fit(dataset(), QIPF(max_centers=50), labels=None).partial_fit(more)
    local = QIPF(max_centers=50).fit(np.concatenate([LOGITS, more]))
    np.testing.assert_array_equal(found.uncertainty(more), local.uncertainty(more))


def test_merged_coresets_stand_for_all_rows(monkeypatch):
    monkeypatch.setattr("qipf.sampling.HELD_OUT", 500)
    parameters = {"reduction": "coreset", "max_centers": 150, "random_state": 3}
    found = distributed.fit(dataset(), QIPF(**parameters))
    local = QIPF(**parameters).fit(LOGITS, LABELS)
    assert len(found.centers_) == 150
    weights = np.exp(found.log_weights_)
    # fitted to the field, not to the mean: close is all that it promises
    np.testing.assert_allclose(weights @ found.centers_, LOGITS.mean(0), rtol=0.05, atol=0.1)
    variance = weights @ ((found.centers_ - weights @ found.centers_) ** 2)
    total = variance.sum() + 10 * found.spread_**2
    assert total == pytest.approx(LOGITS.var(0).sum(), rel=0.05)
    # condensed twice, by shard and together, it stands for fewer rows when it is fitted
    assert found.bandwidth_ == pytest.approx(local.bandwidth_, rel=0.05)
    queries = make_logits(500, seed=5).numpy()

    def apart(one, two):
        return float(np.abs(one.log_density(queries) - two.log_density(queries)).mean())

    assert apart(found, local) < 0.05
    again = distributed.fit(dataset(), QIPF(**parameters))
    np.testing.assert_array_equal(again.centers_, found.centers_)


# ---------------------------------------------------------------------- refusals


def test_bad_arguments_are_refused_before_any_work(field):
    made = dataset()
    for given, message in (
        (lambda: distributed.score([1], field), "dataset must be a ray.data.Dataset, got list."),
        (lambda: distributed.fit(LOGITS), "dataset must be a ray.data.Dataset, got ndarray."),
        (lambda: distributed.score(made, field, "x*"), "The dataset has no column 'x*'."),
        (
            lambda: distributed.fit(made, labels="truth"),
            "The dataset has no column 'truth' for the labels.",
        ),
        (
            lambda: distributed.fit(made, columns="*"),
            "The dataset's column 'label' is chosen as a logit and as the label.",
        ),
        (
            lambda: distributed.score(dataset(table(uncertainty=LABELS)), field),
            "The dataset has a column 'uncertainty' already. Rename it first.",
        ),
        (lambda: distributed.on_ray(workers=0), "workers must be at least 1, got 0."),
        (
            lambda: distributed.fit(made, QIPF(max_centers=0)),
            "max_centers must be an integer of at least 1, got 0.",
        ),
    ):
        with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}"):
            given()
    with pytest.raises(QIPFNotFittedError, match="not fitted yet"):
        distributed.score(made, QIPF())


def test_bad_rows_are_told_by_the_workers_as_at_home(field):
    holes = LOGITS.copy()
    holes[1950, 3] = np.inf
    named = {f"logit_{k}": holes[:, k] for k in range(10)}
    with pytest.raises(QIPFInputError) as refused:
        distributed.fit(dataset(pa.table(named)))
    assert str(refused.value) == (
        "The dataset, row 50 of a block: logit_3 is inf. Drop rows with NaN or inf, or repair them."
    )
    with pytest.raises(QIPFInputError, match=r"row 0 of a block: the label is '10', but 10 logits"):
        distributed.fit(dataset(table(label=np.full(ROWS, 10))))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(address, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(QIPFError, match=rf"^Cannot connect to the Ray cluster at '{address}' \("),
        distributed.cluster(address),
    ):
        pass


def test_without_ray_the_way_to_it_is_told(monkeypatch, capsys, tmp_path, field):
    monkeypatch.setitem(sys.modules, "ray", None)
    for given in (distributed.on_ray, lambda: distributed.fit(LOGITS)):
        with pytest.raises(QIPFError) as refused:
            given()
        assert str(refused.value) == "Work on a cluster needs Ray: pip install 'qipf[ray]'."
    qipf.save(field, tmp_path / "field.qipf")
    code, _, err = command(
        monkeypatch, capsys, "score", tmp_path / "field.qipf", tmp_path, "-o", tmp_path / "out",
        "--engine", "ray",
    )  # fmt: skip
    assert (code, err) == (2, "qipf: Work on a cluster needs Ray: pip install 'qipf[ray]'.\n")
