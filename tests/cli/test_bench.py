"""qipf bench."""

import json

import pytest

from qipf.bench import runner
from qipf.bench.results import read_results
from qipf.bench.suites import SUITES, BenchNetwork, Suite
from tests.cli.commands import error_line, run

BRIEF = Suite(
    "brief",
    (BenchNetwork("digits_brief", "digits", "mlp", {"epochs": 1}),),
    corruptions={"rotation": (30,)},
    methods=("entropy", "qipf"),
)


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.setitem(SUITES, "brief", BRIEF)
    return "brief"


@pytest.mark.slow
def test_run_then_table(monkeypatch, capsys, tmp_path, suite):
    out = tmp_path / "out"
    code, text, err = run(
        monkeypatch, capsys, "bench", "run", "--suite", suite, "--out", out, "--device", "cpu"
    )
    assert (code, err) == (0, "")
    assert text == f"4 results in {out}/results.jsonl\nShow them: qipf bench table {out}\n"
    code, text, _ = run(
        monkeypatch, capsys, "bench", "run", "--suite", suite, "--out", out, "--json"
    )
    assert json.loads(text) == {"output": f"{out}/results.jsonl", "results": 4}
    code, text, err = run(
        monkeypatch, capsys, "bench", "table", out, "--methods", "qipf, entropy",
        "--metric", "aurc", "--format", "json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    cells = json.loads(text)["cells"]
    by_task = {(r["corruption"], r["method"]): r["aurc"] for r in read_results(out)}
    assert {(c["corruption"], c["method"]): c["mean"] for c in cells} == by_task


def record(method, seed, roc_auc):
    return {
        "suite": "x", "network": "n", "dataset": "digits", "corruption": "zoom", "level": 2.0,
        "method": method, "seed": seed, "accuracy": 0.5, "roc_auc": roc_auc, "test_images": 10,
    }  # fmt: skip


def write_run(folder, *records):
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def test_several_folders_are_one_run_and_fewer_seeds_are_marked(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", record("qipf", 0, 0.6), record("svi", 0, 0.9))
    write_run(tmp_path / "b", record("qipf", 1, 0.8))
    code, out, err = run(
        monkeypatch, capsys, "bench", "table", "a", "b", "--metric", "roc_auc",
        "--format", "markdown",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "| zoom | n | ours | **0.900†** | 0.700 |\n" in out
    assert "(each the mean over the seeds 0, 1)" in out
    assert "- † fewer seeds than other methods of the same row: not the same average.\n" in out
    code, out, err = run(monkeypatch, capsys, "bench", "table", "a", "b")  # the best first
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines.index(["1", "svi", "0.900†", "0.900†"]) + 1 == lines.index(
        ["2", "qipf", "0.700", "0.700"]
    )
    write_run(tmp_path / "c", record("svi", 0, 0.5))
    err = error_line(monkeypatch, capsys, "bench", "table", "a", "b", "c")
    assert "Both a and c hold svi on n, zoom 2 with seed 0" in err


def test_options_reach_the_runner(monkeypatch, capsys, tmp_path):
    seen = {}

    def noted(suite, out, **options):
        seen.update(suite=suite, out=str(out), **options)
        out.mkdir(parents=True)
        (out / "results.jsonl").touch()

    monkeypatch.setattr(runner, "run", noted)
    monkeypatch.chdir(tmp_path)
    code, *_ = run(
        monkeypatch, capsys, "bench", "run", "--suite", "paper", "--jobs", 3, "--seed", 5,
        "--only", "method=qipf", "--only", "level=2", "--data", "d", "--no-keep-scores", "--tf32",
    )  # fmt: skip
    assert code == 0
    assert str(seen.pop("data")) == "d"
    assert seen == {
        "suite": "paper",
        "out": "runs/paper",
        "device": "auto",
        "jobs": 3,
        "seed": 5,
        "only": ["method=qipf", "level=2"],
        "keep_scores": False,
        "tf32": True,
    }


def test_ctrl_c_prints_how_to_continue(monkeypatch, capsys, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    code, out, err = run(monkeypatch, capsys, "bench", "run", "--out", tmp_path)
    assert (code, out) == (130, "")
    assert f"finished results are in {tmp_path}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--suite", "digit"), "Unknown suite 'digit'. Did you mean 'digits'?"),
        (("run", "--only", "method=qipv"), "Unknown method of this suite 'qipv'"),
        (("table", "nowhere"), "There is no run nowhere"),
        (("table", "."), "There are no results in ."),
    ],
)
def test_bad_input_is_one_line(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert message in error_line(monkeypatch, capsys, "bench", *arguments)
    assert list(tmp_path.iterdir()) == []
