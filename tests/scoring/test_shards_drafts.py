"""One process puts shards in place: workers that come late, lie or vanish change nothing."""

import os
import threading
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from qipf import QIPFError, QIPFInputError
from qipf.io.logits import table as limits
from qipf.scoring import score_shards, shard_folders
from qipf.scoring.shards import score_shard
from tests.scoring.shard_files import contents, drafts, rescored, rich_table


def files(folder):
    """Every file of an output, hidden ones too, and which file it is."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_a_worker_that_comes_late_changes_nothing_and_leaves_nothing(folder, field):
    late = []

    def run(field, todo, tell):
        for shard in todo:
            assert not shard.target.exists()
            yield shard, score_shard(field, shard, tell)
            before = files(folder / "out")
            # its task was given to another, who was faster: it ends all the same
            late.append(score_shard(field, shard, tell))
            assert late[-1].path.exists()
            after = files(folder / "out")
            assert {name: after[name] for name in before} == before

    score_shards(field, folder / "in", folder / "out", run=run)
    assert len(late) == 4
    assert not any(draft.path.exists() for draft in late)
    assert drafts(folder / "out") == []
    score_shards(field, folder / "in", folder / "local")
    assert contents(folder / "out") == contents(folder / "local")


def test_a_worker_that_still_writes_when_the_run_ends_is_cleared_too(folder, field, monkeypatch):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 7)
    begun, ended = threading.Event(), threading.Event()
    late, workers = [], []

    def slow(_):
        begun.set()
        assert ended.wait(60)

    def run(field, todo, tell):
        work = lambda: late.append(score_shard(field, todo[0], slow))  # noqa: E731
        workers.append(threading.Thread(target=work))
        workers[0].start()
        assert begun.wait(60)
        for shard in todo:
            yield shard, score_shard(field, shard, tell)

    score_shards(field, folder / "in", folder / "out", run=run)
    before = files(folder / "out")
    ended.set()
    workers[0].join()
    assert len(late) == 1
    assert files(folder / "out") == before
    assert drafts(folder / "out") == []


def test_what_comes_after_the_run_is_cleared_by_the_next(folder, field):
    held = []

    def crashing(field, todo, tell):
        held.extend(todo)
        yield todo[0], score_shard(field, todo[0], tell)
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


def test_a_shard_that_is_told_twice_is_put_in_place_once(folder, field):
    def run(field, todo, tell):
        for shard in todo:
            yield shard, score_shard(field, shard, tell)
            before = files(folder / "out")
            yield shard, score_shard(field, shard, tell)
            assert {name: files(folder / "out")[name] for name in before} == before

    assert rescored(folder, field, run=run).total.rows == 126
    assert drafts(folder / "out") == []


def test_drafts_that_are_not_as_told_are_not_put_in_place(folder, field):
    def run(spoil):
        def run(field, todo, tell):
            yield todo[0], spoil(score_shard(field, todo[0], tell))

        return run

    def gone(draft):
        draft.path.unlink()
        return draft

    def torn(draft):
        draft.path.write_bytes(draft.path.read_bytes()[:-1])
        return draft

    def other(draft):
        return replace(draft, scored=replace(draft.scored, mean=draft.scored.mean + 1.0))

    place = folder / "out" / "day=1"
    with pytest.raises(QIPFError) as refused:
        rescored(folder, field, run=run(gone))
    hidden, _, tail = str(refused.value).partition(", but it is not to be seen here: ")
    assert hidden.startswith(f"A worker wrote {place}/.part-000.parquet.")
    assert tail == f"all machines must see {place} under the same path."
    for spoil in (torn, other):
        with pytest.raises(QIPFError) as refused:
            rescored(folder, field, run=run(spoil))
        assert str(refused.value).endswith(
            f".tmp is not what a worker said it wrote for {folder}/in/day=1/part-000.parquet. "
            "Check the disk, and run again: finished shards are kept."
        )
    assert files(folder / "out") == {}


# ---------------------------------------------------------------------- inputs that change


def changing(change):
    """Shards whose input is changed after their first rows were read."""

    def run(field, todo, tell):
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
def test_an_input_that_changes_while_it_is_read_is_refused(folder, field, change):
    with pytest.raises(QIPFInputError) as refused:
        rescored(folder, field, run=changing(change))
    assert str(refused.value) == (
        f"{folder}/in/day=1/part-000.parquet was changed while it was read. Run again when nobody "
        "writes to it."
    )
    assert files(folder / "out") == {}


def test_an_input_that_is_gone_while_it_is_read_is_refused(folder, field):
    with pytest.raises(QIPFInputError) as refused:
        rescored(folder, field, run=changing(lambda path: path.unlink()))
    source = folder / "in" / "day=1" / "part-000.parquet"
    assert str(refused.value) == f"Cannot read {source}: No such file or directory."
    assert files(folder / "out") == {}


def test_an_input_that_is_touched_or_written_again_is_as_it_was(folder, field):
    def same(path):
        path.write_bytes(path.read_bytes())

    assert rescored(folder, field, run=changing(lambda path: path.touch())).kept == 0
    assert rescored(folder, field).kept == 4
    again = score_shards(field, folder / "in", folder / "again", run=changing(same))
    assert again.total.rows == 126
    assert contents(folder / "again") == contents(folder / "out")


def test_the_reason_is_the_change_though_something_else_went_wrong_first(
    folder, field, monkeypatch
):
    monkeypatch.setattr(limits, "ROWS_PER_BLOCK", 7)

    def torn(path):
        path.write_bytes(b"PAR1")
        raise QIPFInputError("what is read now makes no sense")

    with pytest.raises(QIPFInputError, match=r"part-000\.parquet was changed while it was read"):
        rescored(folder, field, run=changing(torn))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda t: t.drop_columns(["logit_3"]), "was changed after the run began. Run again."),
        (lambda t: t.slice(0, 5), "was changed after the run began. Run again."),
        (
            lambda t: t.append_column("uncertainty", t["count"]),
            "has a column 'uncertainty' already. Rename it first.",
        ),
    ],
)
def test_an_input_that_changed_before_its_turn_is_refused(folder, field, spoil, told):
    def run(field, todo, tell):
        pq.write_table(spoil(rich_table(todo[1].rows)), todo[1].source)
        for shard in todo:
            yield shard, score_shard(field, shard, tell)

    with pytest.raises(QIPFInputError) as refused:
        rescored(folder, field, run=run)
    changed = folder / "in" / "day=1" / "part-003.parquet"
    assert str(refused.value) == f"{changed} {told}"
    assert list(contents(folder / "out")) == ["day=1/part-000.parquet"]


def test_comparing_finished_shards_with_their_input_shows_how_far_it_is(folder, field, monkeypatch):
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

    monkeypatch.setattr(shard_folders, "progress_bar", Bar)
    rescored(folder, field)
    sources = [path for path in (folder / "in").rglob("*.parquet") if "003" not in path.name]
    size = sum(path.stat().st_size for path in sources)
    assert shown == [["comparing finished shards with their input", size, "B", size]]
