"""A folder of shards gets the scores of its rows, in constant memory, from any workers."""

import gc
import threading
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch

from qipf import QIPF, QIPFError
from qipf.io.logits import table as limits
from qipf.io.logits.parquet_files import BYTES_PER_BLOCK, read_batches
from qipf.scoring import score_shards
from qipf.scoring.results import result_names, steady_results
from qipf.scoring.shards import score_shard
from qipf.scoring.table import Scored
from tests.conftest import make_logits
from tests.scoring.shard_files import LOGITS, contents, drafts, logits_in, rescored, rich_table


def test_every_shard_has_the_scores_of_its_rows_and_all_other_columns(folder, field, monkeypatch):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 7)
    result = score_shards(field, folder / "in", folder / "out", modes=True)
    every = []
    for source in sorted((folder / "in").rglob("*.parquet")):
        given = pq.read_table(source, partitioning=None)
        found = pq.read_table(folder / "out" / source.relative_to(folder / "in"), partitioning=None)
        others = [name for name in given.column_names if name not in LOGITS]
        modes = [f"mode_{p}" for p in (1, 2, 3, 4)]
        assert found.column_names == [
            *others, "predicted", "uncertainty", "outlier", "novelty", *modes,
        ]  # fmt: skip
        np.testing.assert_allclose(found["novelty"], field.novelty(logits_in(source)), rtol=1e-5)
        assert found["predicted"].to_pylist() == logits_in(source).argmax(1).tolist()
        np.testing.assert_array_equal(
            found["outlier"], found["uncertainty"].to_numpy() > field.outlier_limit_
        )
        for name in others:
            assert found.schema.field(name).equals(given.schema.field(name)), name
            assert found[name].to_pylist() == given[name].to_pylist(), name
        assert found.schema.metadata[b"source"] == b"a test"
        logits = logits_in(source)
        np.testing.assert_allclose(found["uncertainty"], field.uncertainty(logits), rtol=1e-5)
        np.testing.assert_allclose(
            np.stack([found[name] for name in modes], 1), field.modes(logits), rtol=1e-5
        )
        every.append(found["uncertainty"].to_numpy())
    everything = np.concatenate(every)
    assert (result.shards, result.kept) == (4, 0)
    assert result.total.rows == len(everything) == 4 * 30 + 6
    assert result.total.mean == pytest.approx(everything.mean(), rel=1e-12)
    assert (result.total.lowest, result.total.highest) == (everything.min(), everything.max())
    assert result.total.outliers == int((everything > -field.offset_).sum())


def test_the_output_is_a_dataset_like_the_input(folder, field):
    score_shards(field, folder / "in", folder / "out")
    given = ds.dataset(folder / "in", partitioning="hive").to_table(columns=["id", "day"])
    found = ds.dataset(folder / "out", partitioning="hive").to_table(columns=["id", "day"])
    assert found.to_pylist() == given.to_pylist()


def test_columns_are_chosen_by_name_and_pattern(folder, field):
    score_shards(field, folder / "in", folder / "all")
    score_shards(field, folder / "in", folder / "named", "logit_?")
    swapped = ",".join(LOGITS[::-1])
    score_shards(field, folder / "in", folder / "swapped", swapped)
    place = "day=1/part-000.parquet"
    first, same, other = (
        pq.read_table(folder / out / place)["uncertainty"] for out in ("all", "named", "swapped")
    )
    assert first == same
    reversed_logits = logits_in(folder / "in" / place)[:, ::-1]
    np.testing.assert_allclose(other, field.uncertainty(reversed_logits.copy()), rtol=1e-5)


def test_the_index_of_a_pandas_frame_is_kept(tmp_path, field):
    pandas = pytest.importorskip("pandas")
    index = pandas.Index([f"r{k}" for k in range(5)], name="row")
    frame = pandas.DataFrame(make_logits(5).numpy(), columns=LOGITS, index=index)
    frame["kind"] = pandas.Categorical(list("abcab"))
    (tmp_path / "in").mkdir()
    frame.to_parquet(tmp_path / "in" / "a.parquet")
    score_shards(field, tmp_path / "in", tmp_path / "out")
    found = pandas.read_parquet(tmp_path / "out" / "a.parquet")
    pandas.testing.assert_frame_equal(found[["kind"]], frame[["kind"]])


def test_an_empty_shard_gives_an_empty_shard(tmp_path, field):
    (tmp_path / "in").mkdir()
    pq.write_table(rich_table(20), tmp_path / "in" / "a.parquet")
    pq.write_table(rich_table(20).slice(0, 0), tmp_path / "in" / "b.parquet")
    result = score_shards(field, tmp_path / "in", tmp_path / "out")
    assert result.total.rows == 20
    found = pq.read_table(tmp_path / "out" / "b.parquet")
    assert found.num_rows == 0
    assert found.schema.names[-4:] == ["predicted", "uncertainty", "outlier", "novelty"]
    assert [str(kind) for kind in found.schema.types[-4:]] == ["int64", "double", "bool", "double"]
    assert score_shards(field, tmp_path / "in", tmp_path / "out").kept == 2


def test_shards_may_have_columns_in_another_order(tmp_path):
    field = QIPF(bandwidth=1.0).fit(make_logits(50, dimension=2).numpy())
    (tmp_path / "in").mkdir()
    rows = pa.table({"logit_cat": [1.0, 2.0], "logit_dog": [-3.0, 0.5]})
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    pq.write_table(rows.select(["logit_dog", "logit_cat"]), tmp_path / "in" / "b.parquet")
    score_shards(field, tmp_path / "in", tmp_path / "out")
    first, second = (pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in "ab")
    assert first["uncertainty"].to_pylist() == second["uncertainty"].to_pylist()


@pytest.mark.parametrize("rows", [1, 5, 63, 64, 100, 767, 769])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_do_not_change_a_bit(field, rows, dtype):
    logits = make_logits(rows, seed=7).numpy().astype(dtype)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(steady_results(field, logits, result_names(field))["uncertainty"])
    finally:
        torch.set_num_threads(before)
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    np.testing.assert_allclose(found[0], field.uncertainty(logits), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [10, 600])
@pytest.mark.parametrize("size", [1, 33, 300, 769, 2000])
def test_batches_do_not_change_a_bit(size, dimension):
    field = QIPF(bandwidth=20.0).fit(make_logits(150, dimension=dimension).numpy())
    logits = make_logits(2000, seed=7, dimension=dimension).numpy()
    whole = steady_results(field, logits, result_names(field, True))
    parts = [
        steady_results(field, logits[at : at + size], result_names(field, True))
        for at in range(0, min(2000, 10 * size), size)
    ]
    for name, values in whole.items():
        joined = np.concatenate([part[name] for part in parts])
        assert joined.tobytes() == values[: len(joined)].tobytes(), name


def test_joined_summaries_equal_that_of_all_rows(rng):
    values = rng.normal(size=100)
    parts = Scored()
    for part in (values[:1], values[1:1], values[1:60], values[60:]):
        summary = Scored()
        summary.add(part, 0.5)
        parts.join(summary)
    whole = Scored()
    whole.add(values, 0.5)
    assert asdict(parts) == pytest.approx(asdict(whole), rel=1e-12)


def noise(rows, width):
    """Text that does not compress."""
    letters = np.random.default_rng(0).integers(33, 126, rows * width, np.uint8)
    ends = np.arange(0, rows * width + 1, width, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters))


@pytest.mark.slow
def test_memory_does_not_grow_with_a_shard(tmp_path, field, monkeypatch):
    """What Arrow holds while it works on one row group: eight times the rows, the same peak."""
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 2048)
    peaks = []
    for rows in (20_000, 160_000):
        logits = {name: np.full(rows, 0.5, np.float32) for name in LOGITS}
        source = tmp_path / f"in{rows}" / "a.parquet"
        source.parent.mkdir()
        pq.write_table(pa.table({**logits, "text": noise(rows, 200)}), source)
        gc.collect()
        before, held = pa.total_allocated_bytes(), []

        def sampled(field, todo, progress, before=before, held=held):
            for shard in todo:
                note = lambda _: held.append(pa.total_allocated_bytes() - before)  # noqa: E731
                yield shard, score_shard(field, shard, note)

        score_shards(field, source.parent, tmp_path / f"out{rows}", run=sampled)
        assert len(held) >= rows // 2048
        peaks.append(max(held))
    assert peaks[1] < 1.2 * peaks[0] + 2**20
    assert peaks[1] < source.stat().st_size / 3


@pytest.mark.slow
def test_repeated_text_is_decoded_in_small_batches(tmp_path):
    text = "x" * 20_000  # a hundred bytes on the disk, in a dictionary
    table = pa.table({"logit_0": np.zeros(9000), "logit_1": np.ones(9000), "text": [text] * 9000})
    pq.write_table(table, tmp_path / "a.parquet")
    largest = max(batch.nbytes for batch in read_batches(tmp_path / "a.parquet"))
    assert largest < 1.1 * BYTES_PER_BLOCK < table.nbytes


# ---------------------------------------------------------------------- drafts of workers


def files(folder):
    """Every file of an output, hidden ones too, and which file it is."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_a_late_worker_changes_nothing(folder, field):
    late = []

    def run(field, todo, progress):
        for shard in todo:
            assert not shard.target.exists()
            yield shard, score_shard(field, shard, progress)
            before = files(folder / "out")
            # a second worker with the same task ends later
            late.append(score_shard(field, shard, progress))
            assert late[-1].path.exists()
            after = files(folder / "out")
            assert {name: after[name] for name in before} == before

    score_shards(field, folder / "in", folder / "out", run=run)
    assert len(late) == 4
    assert not any(draft.path.exists() for draft in late)
    assert drafts(folder / "out") == []
    score_shards(field, folder / "in", folder / "local")
    assert contents(folder / "out") == contents(folder / "local")


def test_the_draft_of_a_slow_worker_is_removed(folder, field, monkeypatch):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 7)
    begun, ended = threading.Event(), threading.Event()
    late, workers = [], []

    def slow(_):
        begun.set()
        assert ended.wait(60)

    def run(field, todo, progress):
        work = lambda: late.append(score_shard(field, todo[0], slow))  # noqa: E731
        workers.append(threading.Thread(target=work))
        workers[0].start()
        assert begun.wait(60)
        for shard in todo:
            yield shard, score_shard(field, shard, progress)

    score_shards(field, folder / "in", folder / "out", run=run)
    before = files(folder / "out")
    ended.set()
    workers[0].join()
    assert len(late) == 1
    assert files(folder / "out") == before
    assert drafts(folder / "out") == []


def test_drafts_after_a_run_are_removed_by_the_next(folder, field):
    held = []

    def crashing(field, todo, progress):
        held.extend(todo)
        yield todo[0], score_shard(field, todo[0], progress)
        raise RuntimeError("the driver crashes")

    with pytest.raises(RuntimeError, match="the driver crashes"):
        score_shards(field, folder / "in", folder / "out", run=crashing)
    assert drafts(folder / "out") == []
    for shard in held[:2]:  # of one that is finished, and of one that is not
        score_shard(field, shard, int)
    before = files(folder / "out")
    assert len(drafts(folder / "out")) == 2
    assert rescored(folder, field).kept == 1
    after = files(folder / "out")
    assert drafts(folder / "out") == []
    finished = str(held[0].target.relative_to(folder / "out"))
    assert after[finished] == before[finished]
    score_shards(field, folder / "in", folder / "local")
    assert contents(folder / "out") == contents(folder / "local")


def test_a_shard_is_published_once(folder, field):
    def run(field, todo, progress):
        for shard in todo:
            yield shard, score_shard(field, shard, progress)
            before = files(folder / "out")
            yield shard, score_shard(field, shard, progress)
            assert {name: files(folder / "out")[name] for name in before} == before

    assert rescored(folder, field, run=run).total.rows == 126
    assert drafts(folder / "out") == []


def test_a_draft_that_does_not_exist_here_is_an_error(folder, field):
    def run(field, todo, progress):
        draft = score_shard(field, todo[0], progress)
        draft.path.unlink()
        yield todo[0], draft

    with pytest.raises(QIPFError, match="under the same path"):
        rescored(folder, field, run=run)
    assert files(folder / "out") == {}


def test_a_field_that_partial_fit_has_not_built_yet_is_built(folder):
    field = QIPF(bandwidth=3.0).partial_fit(make_logits(200).numpy())
    assert score_shards(field, folder / "in", folder / "out").shards == 4
