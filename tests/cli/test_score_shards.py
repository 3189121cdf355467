"""`qipf score` on a folder of shards."""

import errno
import gc
import json
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import qipf
from qipf.scoring import score_shards, shards
from qipf.scoring.table import outlier_limit
from tests.cli.commands import run as command
from tests.conftest import make_logits
from tests.scoring.shard_files import contents, rich_table, write_shards


@pytest.fixture(scope="module")
def field():
    return qipf.QIPF(bandwidth=3.0).fit(make_logits(200).numpy())


@pytest.fixture
def folder(tmp_path, monkeypatch, field):
    """A folder with field.qipf and shards; the commands run in it."""
    write_shards(tmp_path / "in", 4, 30)
    monkeypatch.chdir(tmp_path)
    qipf.save(field, "field.qipf")
    return tmp_path


def test_the_command_scores_a_folder_and_goes_on(folder, field, monkeypatch, capsys):
    code, out, err = command(monkeypatch, capsys, "score", "field.qipf", "in", "-o", "out")
    total = score_shards(field, "in", "again").total
    line = f"126 rows, mean uncertainty {total.mean:.4g}, {total.outliers} outliers "
    assert (code, err) == (0, "")
    share, limit = total.outliers / 126, outlier_limit(field)
    assert out == f"wrote out: 4 shards, {line}({share:.1%}): {limit}\n"
    (folder / "out" / "day=2" / "part-001.parquet").unlink()
    code, out, _ = command(monkeypatch, capsys, "score", "field.qipf", "in", "-o", "out", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "output": "out", "shards": 4, "kept": 3, "rows": 126,
            "uncertainty": {"mean": total.mean, "min": total.lowest, "max": total.highest},
            "outliers": total.outliers,
            "outlier_limit": {
                "above": limit.above, "share": 0.1, "of": "training rows", "held_out": None,
            },
        },
    )  # fmt: skip
    assert contents(folder / "out") == contents(folder / "again")


def told(monkeypatch, capsys, *arguments):
    code, out, err = command(monkeypatch, capsys, "score", "field.qipf", "in", "-o", *arguments)
    assert (code, err) == (0, "")
    return out


def test_one_shard_one_row_and_none_are_told_in_words(tmp_path, field, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    qipf.save(field, "field.qipf")
    Path("in").mkdir()
    pq.write_table(rich_table(1), "in/a.parquet")
    found = score_shards(field, "in", "one").total
    mean, limit = f"mean uncertainty {found.mean:.4g}", outlier_limit(field)
    share = "1 outlier (100.0%)" if found.outliers else "0 outliers (0.0%)"
    line = f"1 row, {mean}, {share}: {limit}\n"
    assert told(monkeypatch, capsys, "out") == f"wrote out: 1 shard, {line}"
    again = told(monkeypatch, capsys, "out")
    assert again == f"wrote out: 1 shard (finished before: 1), {line}"
    pq.write_table(rich_table(0), "in/a.parquet")
    assert told(monkeypatch, capsys, "none") == "wrote none: 1 shard, no rows\n"
    asked = json.loads(told(monkeypatch, capsys, "none", "--json"))
    assert (asked["rows"], asked["outliers"]) == (0, 0)
    assert asked["uncertainty"] == {"mean": None, "min": None, "max": None}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("in", "-o", "in"), "in and in overlap"),
        (
            ("in", "-o", "out", "--engine", "rai"),
            "Unknown engine 'rai'. Did you mean 'ray'? Known: local, ray.",
        ),
        (("in", "-o", "out", "--workers", 2), "--address and --workers need --engine ray"),
        (
            ("in/day=1/part-000.parquet", "-o", "s.csv", "--engine", "ray"),
            "--engine ray is for a folder of .parquet shards",
        ),
        (
            ("in/day=1/part-000.parquet", "-o", "s.csv", "--overwrite"),
            "--overwrite is for a folder of .parquet shards",
        ),
        (("none", "-o", "out"), "There is no file or folder none."),
    ],
)
def test_the_command_refuses_in_one_line(folder, arguments, line, monkeypatch, capsys):
    code, out, err = command(monkeypatch, capsys, "score", "field.qipf", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"qipf: {line}")
    assert err.count("\n") == 1
    assert not (folder / "out").exists()


def test_ctrl_c_says_how_to_go_on(folder, monkeypatch, capsys):
    once, done = shards.score_shard, []

    def interrupted(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(once(*arguments))
        return done[-1]

    monkeypatch.setattr(shards, "score_shard", interrupted)
    code, out, err = command(monkeypatch, capsys, "score", "field.qipf", "in", "-o", "out")
    assert (code, out) == (130, "")
    assert "finished shards are in out" in err
    assert len(contents(folder / "out")) == 1


def test_shards_with_nan_are_scored_if_asked_for(folder, monkeypatch, capsys):
    source = sorted(Path("in").rglob("*.parquet"))[0]
    table = pq.read_table(source)
    name = next(name for name in table.column_names if name.startswith("logit"))
    values = table[name].to_numpy().copy()
    values[5] = float("nan")
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, name, [values]), source)
    words = ("score", "field.qipf", "in", "-o", "out")
    code, _, err = command(monkeypatch, capsys, *words)
    assert (code, "row 5" in err) == (2, True)
    code, out, _ = command(monkeypatch, capsys, *words, "--nan-policy", "propagate")
    assert code == 0
    assert " (1 with NaN or inf, without scores), mean" in out
    scores = pq.read_table(Path("out", *source.parts[1:]))["uncertainty"].to_numpy()
    assert np.flatnonzero(np.isnan(scores)).tolist() == [5]
    code, out, _ = command(monkeypatch, capsys, *words, "--nan-policy", "propagate")  # all kept
    assert "finished before: 4" in out
    assert " (1 with NaN or inf, without scores), mean" in out


@pytest.mark.parametrize("room", [10, 2000])
def test_a_full_disk_ends_the_run_with_one_line_and_no_draft(folder, monkeypatch, capsys, room):
    """The shards that are finished stay, and the next run scores the others."""
    plain, files = shards.draft_file, []

    @contextmanager
    def draft_file(path):
        with plain(path) as file:
            files.append(file)
            yield Full(file, room) if len(files) == 2 else file

    with monkeypatch.context() as patch:
        patch.setattr(shards, "draft_file", draft_file)
        code, _, err = command(patch, capsys, "score", "field.qipf", "in", "-o", "out")
    gc.collect()
    assert code == 2
    assert "No space left on device" in err + capsys.readouterr().err
    assert "unexpected" not in err
    assert len(err.splitlines()) == 1
    finished = [path.name for path in Path("out").rglob("*") if path.is_file()]
    assert len([name for name in finished if name.endswith(".parquet")]) == 1
    code, out, _ = command(monkeypatch, capsys, "score", "field.qipf", "in", "-o", "out")
    assert (code, "finished before: 1" in out) == (0, True)


class Full:
    """A file on a disk with so many bytes left."""

    def __init__(self, file, room):
        self.file, self.room, self.name = file, room, file.name

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)
