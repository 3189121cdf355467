"""The page of a run shows its results."""

import json
import re
import shutil

import pytest

from qipf import QIPFError
from qipf.bench.results import read_results
from qipf.metrics.error_detection import HIGHER_IS_BETTER
from qipf.reporting.run.page import run_page, write_run_report
from qipf.reporting.run.results import Run
from qipf.reporting.run.sections import commands_of
from qipf.reporting.tables import summarise
from tests.reporting.own.test_page import plain
from tests.reporting.test_page import Outline, addresses


@pytest.fixture(scope="module")
def page(tiny_run):
    return run_page(Run(tiny_run))


@pytest.mark.slow
def test_the_page_is_complete_and_small(page):
    assert addresses(page) == []
    headings = [a["id"] for tag, a in Outline(page).elements if tag == "section"]
    assert headings == [
        "summary", "methods-compared", "tables", "severity-curves", "gallery", "risk-and-coverage",
        "certified-thresholds", "shift-timeline", "accuracy-without-labels",
        "cost-beside-quality", "methods-explained", "how-it-was-made",
    ]  # fmt: skip
    assert len(page) < 1_000_000


def test_the_summary_counts_wins(tiny_run, page):
    table = summarise(read_results(tiny_run), ["roc_auc"], "all").tables[0]
    wins, winners = table.contests.wins, table.contests.leaders
    assert len(table.contests.rows) == 4
    text = plain(page)
    assert f"{winners[-1]} {'is' if len(winners) == 1 else 'are'} best most often" in text
    assert f"in {wins[winners[0]]} of 4 comparisons" in text
    means = table.means()
    place = sorted(means.values(), reverse=True).index(means["qipf"]) + 1
    assert f"qipf is best in {wins['qipf']} of 4." in text
    assert f"mean ROC-AUC is {means['qipf']:.3f}, place {place} of 5" in text


@pytest.mark.slow
def test_every_cell_of_the_tables_is_there(tiny_run, page):
    for table in summarise(read_results(tiny_run), methods="all").tables:
        for row in table.rows:
            for cell in row.ours.values():
                assert f'<td data-key="{cell.mean:.10g}">' in page


def test_severity_curves_hold_the_recorded_values(tiny_run, page):
    specs = [json.loads(s) for s in re.findall(r'json">(.*?)</script>', page)]
    views = next(s["views"] for s in specs if "tiny_mlp|zoom|roc_auc" in s.get("views", {}))
    view = views["tiny_mlp|zoom|roc_auc"]
    assert view["shared"] == [0.5, 1, 2]
    drawn = next(s["y"] for s in view["series"] if s["name"] == "entropy")
    known = Run(tiny_run).curve("tiny_mlp", "zoom", "entropy", "roc_auc")
    assert drawn == pytest.approx(list(known.values()), rel=1e-3)
    assert len(views) == 2 * 2 * len(HIGHER_IS_BETTER)


def test_the_origin_of_the_results(tiny_run, page):
    text = plain(page)
    assert "qipf.bench.runner.run(tiny, " in text
    assert "qipf report runs/tiny -o report.html" in text
    assert "epochs 8" in text
    assert "options of mc_dropout rate default, passes 4" in text
    assert str(tiny_run.parent) not in page


def test_commands_name_the_suite_and_the_seeds(tmp_path):
    record = {
        "network": "digits_mlp", "corruption": "zoom", "level": 2.0, "method": "entropy",
    }  # fmt: skip
    made = [("digits", 0), ("digits", 3), ("mine", 0)]
    lines = [json.dumps(record | {"suite": suite, "seed": seed}) for suite, seed in made]
    old = json.dumps(record | {"seed": 4})  # from before results named their suite
    (tmp_path / "results.jsonl").write_text("\n".join([*lines, old]) + "\n")
    assert commands_of(Run(tmp_path), "x") == [
        "qipf bench run --suite digits --out runs/x",
        'qipf.bench.runner.run(mine, "runs/x", seed=0)',
        "qipf bench run --suite digits --seed 3 --out runs/x",
        'qipf.bench.runner.run(YOURS, "runs/x", seed=4)',
    ]


def test_half_a_run_has_a_page_too(tiny_run, tmp_path):
    lines = (tiny_run / "results.jsonl").read_text().splitlines(keepends=True)
    for count in (1, 7, 33):
        (tmp_path / "results.jsonl").write_text("".join(lines[:count]))
        text = plain(run_page(Run(tmp_path)))
        assert "tiny_mlp is left out: " in text
        assert "The run kept no uncertainties" not in text
        for part in ("Risk and coverage", "Certified thresholds", "Shift timeline"):
            assert part in text.partition("The run lacks scores of single predictions")[2]
            assert f"<h2>{part}" not in run_page(Run(tmp_path))
    (tmp_path / "results.jsonl").write_text(lines[0])
    text = plain(run_page(Run(tmp_path)))
    assert "There is no comparison yet" in text
    assert "or corruptions for: Severity curves" in text


@pytest.mark.slow
def test_the_report_is_written_and_refusals_leave_nothing(tiny_run, tmp_path):
    target = write_run_report(tiny_run, tmp_path / "report.html")
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    with pytest.raises(QIPFError, match="There are no results in"):
        write_run_report(tmp_path, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_out_of_distribution_sets_have_tables_and_a_note_but_no_curves(tmp_path, tiny_run):
    kept = {r["network"]: [] for r in read_results(tiny_run)}
    records = [
        {**r, "corruption": "svhn", "level": 0.0, "suite": "ood"}
        for r in read_results(tiny_run)
        if (r["corruption"], r["level"]) == ("zoom", 2.0)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    run = Run(tmp_path)
    assert {name: run.corruptions(name) for name in run.networks} == kept
    note = (
        "svhn: out-of-distribution inputs, to be detected among the clean test inputs, whatever is"
    )
    assert any(note in line for line in summarise(records).notes)
    text = plain(run_page(run))
    assert note in text
    assert len(summarise(records, ["fpr95"], "all").tables[0].contests.rows) == 2


def test_the_page_of_other_data_sets_says_so(tiny_run, tmp_path):
    records = [json.loads(line) for line in (tiny_run / "results.jsonl").read_text().splitlines()]
    lines = [json.dumps({**r, "corruption": "svhn", "level": 0.0}) for r in records[:3]]
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    assert "tell inputs of other data sets from the clean test" in plain(run_page(Run(tmp_path)))
    assert "tell inputs of other data sets" not in plain(run_page(Run(tiny_run)))
