"""A folder of shards is judged as its rows would be, and survives whatever happens to it."""

import gc
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch

import qipf
from qipf import QIPF, QIPFError, QIPFInputError, QIPFWarning
from qipf.tables import score_shards, shards
from qipf.tables import table as limits
from qipf.tables.origins import read_origin
from qipf.tables.parquet_files import BYTES_PER_BLOCK, batches
from qipf.tables.scoring import Scored, steady_results
from tests.conftest import make_logits
from tests.tables.shard_files import contents, logits_in, rich_table, write_shards
from tests.test_cli import run as command

REPOSITORY = Path(__file__).parents[2]
LOGITS = [f"logit_{k}" for k in range(10)]


@pytest.fixture(scope="module")
def field():
    return QIPF(bandwidth=3.0).fit(make_logits(200).numpy())


@pytest.fixture
def folder(tmp_path):
    write_shards(tmp_path / "in", 4, 30)
    return tmp_path


# ---------------------------------------------------------------------- what comes out


def test_every_shard_has_the_scores_of_its_rows_and_all_other_columns(folder, field, monkeypatch):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 7)
    result = score_shards(field, folder / "in", folder / "out", modes=True)
    every = []
    for source in sorted((folder / "in").rglob("*.parquet")):
        given = pq.read_table(source, partitioning=None)
        found = pq.read_table(folder / "out" / source.relative_to(folder / "in"), partitioning=None)
        others = [name for name in given.column_names if name not in LOGITS]
        modes = [f"mode_{p}" for p in (1, 2, 3, 4)]
        assert found.column_names == [*others, "uncertainty", *modes]
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


def test_the_frame_that_pandas_wrote_comes_back_with_its_index(tmp_path, field):
    pandas = pytest.importorskip("pandas")
    index = pandas.Index([f"r{k}" for k in range(5)], name="row")
    frame = pandas.DataFrame(make_logits(5).numpy(), columns=LOGITS, index=index)
    frame["kind"] = pandas.Categorical(list("abcab"))
    (tmp_path / "in").mkdir()
    frame.to_parquet(tmp_path / "in" / "a.parquet")
    score_shards(field, tmp_path / "in", tmp_path / "out")
    found = pandas.read_parquet(tmp_path / "out" / "a.parquet")
    pandas.testing.assert_frame_equal(found[["kind"]], frame[["kind"]])


def test_a_shard_without_rows_gives_one_without_rows(tmp_path, field):
    (tmp_path / "in").mkdir()
    pq.write_table(rich_table(20), tmp_path / "in" / "a.parquet")
    pq.write_table(rich_table(20).slice(0, 0), tmp_path / "in" / "b.parquet")
    result = score_shards(field, tmp_path / "in", tmp_path / "out")
    assert result.total.rows == 20
    found = pq.read_table(tmp_path / "out" / "b.parquet")
    assert found.num_rows == 0
    assert found.schema.names[-1] == "uncertainty"
    assert score_shards(field, tmp_path / "in", tmp_path / "out").kept == 2


def test_columns_in_another_order_are_still_the_same_logits(tmp_path):
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
            found.append(steady_results(field, logits, modes=False)["uncertainty"])
    finally:
        torch.set_num_threads(before)
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    np.testing.assert_allclose(found[0], field.uncertainty(logits), rtol=1e-5)


@pytest.mark.parametrize("dimension", [10, 600])
@pytest.mark.parametrize("size", [1, 33, 300, 769, 2000])
def test_batches_do_not_change_a_bit_of_rows_that_float32_resolves(size, dimension):
    field = QIPF(bandwidth=20.0).fit(make_logits(150, dimension=dimension).numpy())
    logits = make_logits(2000, seed=7, dimension=dimension).numpy()
    whole = steady_results(field, logits, modes=True)
    parts = [
        steady_results(field, logits[at : at + size], modes=True)
        for at in range(0, min(2000, 10 * size), size)
    ]
    for name, values in whole.items():
        joined = np.concatenate([part[name] for part in parts])
        assert joined.tobytes() == values[: len(joined)].tobytes(), name


def test_summaries_join_as_if_the_rows_had_come_together(rng):
    values = rng.normal(size=100)
    parts = Scored()
    for part in (values[:1], values[1:1], values[1:60], values[60:]):
        summary = Scored()
        if len(part):
            summary.add(part, 0.5)
        parts.join(summary)
    whole = Scored()
    whole.add(values, 0.5)
    assert asdict(parts) == pytest.approx(asdict(whole), rel=1e-12)


# ---------------------------------------------------------------------- going on


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
        [sys.executable, "-m", "tests.tables.interrupted_shards", kind, tmp_path],
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


def rescored(folder, field, **options):
    return score_shards(field, folder / "in", folder / "out", **options)


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


# ---------------------------------------------------------------------- refusals


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
    with pytest.raises(QIPFInputError, match=r"There are no \.parquet files in .*empty\."):
        score_shards(field, folder / "empty", folder / "out")


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
        f"{tmp_path}/in/a.parquet, row 33: logit_4 is nan. Drop rows with NaN or inf, or repair "
        "them."
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


# ---------------------------------------------------------------------- memory


def noise(rows, width):
    """Text that does not compress."""
    letters = np.random.default_rng(0).integers(33, 126, rows * width, np.uint8)
    ends = np.arange(0, rows * width + 1, width, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters))


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

        def sampled(field, todo, tell, before=before, held=held):
            for shard in todo:
                note = lambda _: held.append(pa.total_allocated_bytes() - before)  # noqa: E731
                yield shard, shards.score_shard(field, shard, note)

        score_shards(field, source.parent, tmp_path / f"out{rows}", run=sampled)
        assert len(held) >= rows // 2048
        peaks.append(max(held))
    assert peaks[1] < 1.2 * peaks[0] + 2**20
    assert peaks[1] < source.stat().st_size / 3


# ---------------------------------------------------------------------- the command


def test_text_that_repeats_is_not_decoded_all_at_once(tmp_path):
    text = "x" * 20_000  # a hundred bytes on the disk, in a dictionary
    table = pa.table({"logit_0": np.zeros(9000), "logit_1": np.ones(9000), "text": [text] * 9000})
    pq.write_table(table, tmp_path / "a.parquet")
    largest = max(batch.nbytes for batch in batches(tmp_path / "a.parquet"))
    assert largest < 1.1 * BYTES_PER_BLOCK < table.nbytes


@pytest.mark.parametrize("other", [None, "field.qipf", 3])
def test_what_is_no_field_is_refused(folder, other):
    with pytest.raises(QIPFInputError, match=r"^field must be a fitted QIPF, such as qipf.load"):
        score_shards(other, folder / "in", folder / "out")
    with pytest.raises(QIPFError, match=r"^This QIPF is not fitted yet\. Call fit"):
        score_shards(QIPF(), folder / "in", folder / "out")


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


def test_the_command_scores_a_folder_and_goes_on(folder, field, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    qipf.save(field, "field.qipf")
    code, out, err = command(monkeypatch, capsys, "score", "field.qipf", "in", "-o", "out")
    total = score_shards(field, "in", "again").total
    told = f"126 rows, mean uncertainty {total.mean:.4g}, {total.outliers} outliers "
    assert (code, err) == (0, "")
    assert out == f"wrote out: 4 shards, {told}({total.outliers / 126:.1%})\n"
    (folder / "out" / "day=2" / "part-001.parquet").unlink()
    code, out, _ = command(monkeypatch, capsys, "score", "field.qipf", "in", "-o", "out", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "output": "out", "shards": 4, "kept": 3, "rows": 126,
            "uncertainty": {"mean": total.mean, "min": total.lowest, "max": total.highest},
            "outliers": total.outliers,
        },
    )  # fmt: skip
    assert contents(folder / "out") == contents(folder / "again")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("in", "-o", "in"),
            "in and in overlap: what is written would be taken for input. Choose an output folder "
            "beside it.",
        ),
        (
            ("in", "-o", "out", "--engine", "rai"),
            "Unknown engine 'rai'. Did you mean 'ray'? Known: local, ray.",
        ),
        (("in", "-o", "out", "--workers", 2), "--address and --workers belong to --engine ray."),
        (
            ("in/day=1/part-000.parquet", "-o", "s.csv", "--engine", "ray"),
            "--engine ray is for a folder of .parquet shards; in/day=1/part-000.parquet is none.",
        ),
        (
            ("in/day=1/part-000.parquet", "-o", "s.csv", "--overwrite"),
            "--overwrite is for a folder of .parquet shards; in/day=1/part-000.parquet is none.",
        ),
        (("none", "-o", "out"), "Cannot read 'none': a file in .npz, .npy, .csv or .parquet is "),
    ],
)
def test_the_command_refuses_in_one_line(folder, field, arguments, line, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    qipf.save(field, "field.qipf")
    code, out, err = command(monkeypatch, capsys, "score", "field.qipf", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"qipf: {line}")
    assert err.count("\n") == 1
    assert not (folder / "out").exists()


def test_ctrl_c_says_how_to_go_on(folder, field, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    qipf.save(field, "field.qipf")
    once, done = shards.score_shard, []

    def interrupted(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(once(*arguments))
        return done[-1]

    monkeypatch.setattr(shards, "score_shard", interrupted)
    code, out, err = command(monkeypatch, capsys, "score", "field.qipf", "in", "-o", "out")
    assert (code, out) == (130, "")
    assert err == "\nStopped; finished shards are in out. Run the same command again to go on.\n"
    assert len(contents(folder / "out")) == 1
