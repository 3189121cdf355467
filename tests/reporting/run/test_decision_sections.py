"""Sections about decisions hold the numbers of the rules, the monitor and the estimators."""

import json
import math
import re
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest

from qipf.reporting.page import percent
from qipf.reporting.rule_evaluation import split_evaluation
from qipf.reporting.run import decision_sections, decisions
from qipf.reporting.run.charts import MOST_EVIDENCE
from qipf.reporting.run.decision_sections import accuracy_html, rules_html, timeline_html
from qipf.reporting.run.decisions import RISKS, accuracy_comparisons, monitor_stream
from qipf.reporting.run.results import Run
from tests.reporting.own.test_page import cells, plain


def stored_run(**corruptions):
    """A run of one network, from arrays: corruption -> level -> (scores by method, wrong)."""
    return SimpleNamespace(
        networks=["net"],
        seed_note="",
        methods=["qipf", "softmax"],
        corruptions=lambda network: [name for name in corruptions if name != "none"],
        scores=lambda network, corruption, seed=None: corruptions.get(corruption, {}),
        clean_scores=lambda network: corruptions.get("none", {}).get(0.0),
    )


def views(page):
    return json.loads(re.search(r'json">(.*?)</script>', page)[1])["views"]


def scored(values, wrong=None):
    return {"qipf": values}, np.zeros(len(values), bool) if wrong is None else wrong


@pytest.fixture
def run(paired_run):
    return Run(paired_run)


@pytest.fixture
def clean(rng):
    doubt = rng.random(4000)
    wrong = rng.random(4000) < doubt**4 / 4
    return {0.0: ({"qipf": doubt, "softmax": rng.random(4000)}, wrong)}


@pytest.mark.slow
def test_the_tables_hold_every_rule_and_its_results(paired_run):
    run = Run(paired_run)
    page = rules_html(run)
    for network in run.networks:
        scores, wrong = run.scores(network, "none")[0.0]
        rows = {row[0]: row[1:] for row in cells(page, f"{network}, by every score")}
        assert list(rows) == run.methods
        columns = []  # without limits at which nothing is certified; equal ones once
        for risk in RISKS:
            found = [split_evaluation(scores[name], wrong, risk) for name in run.methods]
            column = [f"{e.coverage:.1%}" if e.rule.certified else "–" for e in found]
            if set(column) != {"–"} and column not in columns:
                columns.append(column)
        assert list(rows.values()) == [list(row) for row in zip(*columns, strict=True)]
        for row, risk in zip(cells(page, f"{network}, by qipf"), RISKS, strict=True):
            each = split_evaluation(scores["qipf"], wrong, risk)
            shown = [f"{each.rule.threshold:.4g}", f"{each.rule.coverage:.1%}"]
            shown += [f"{each.coverage:.1%}", f"{each.risk:.2%}"]
            if not each.rule.certified:
                shown = ["–", "0.0%", "0.0%", "–"]
                assert str(each.rule).splitlines()[-1] in plain(page)
            assert row == [percent(risk), shown[0], f"{len(wrong) // 2:,}", *shown[1:]]


def test_the_reason_where_nothing_can_be_certified(rng):
    wrong = rng.random(1000) < 0.5
    page = plain(rules_html(stored_run(none={0.0: ({"qipf": rng.random(1000)}, wrong)})))
    for risk in ("1%", "5%", "10%"):
        assert page.count(f"At most {risk} wrong: nothing can be certified by any score") == 1
    assert "Even the least uncertain of 500 held-out predictions are wrong too often" in page
    assert "On corrupted images" not in page
    assert "by every score" not in page  # a table without columns


def test_the_effect_of_shift_is_shown_by_the_worst_level(clean):
    fine = {"qipf": np.zeros(4000)}, np.arange(4000) % 2 == 0
    worst = {"qipf": np.where(np.arange(4000) % 4 == 0, 0.0, 9.0)}, np.ones(4000, bool)
    far = {"qipf": np.full(4000, 9.0)}, np.ones(4000, bool)  # all rejected
    run = stored_run(none=clean, rotation={15.0: fine, 30.0: worst, 60.0: far})
    text = plain(rules_html(run))
    worst = "up to 100% of what the 5% rule accepts is wrong (rotation, 30 degrees: 2"
    assert worst in text
    scores, wrong = clean[0.0]
    rule = split_evaluation(scores["qipf"], wrong, 0.05).rule
    assert "The 5% rule: " + " ".join(str(rule).splitlines()) in text


def test_limits_that_no_score_meets_are_left_out_of_the_table(rng):
    wrong = np.arange(1000) % 50 == 0  # 2 %, whatever the scores: 1 % is never certified
    scores = {"qipf": rng.random(1000), "softmax": rng.random(1000)}
    page = rules_html(stored_run(none={0.0: (scores, wrong)}))
    assert plain(page).count("At most 1% wrong: nothing can be certified by any score") == 1
    assert "at most 1% wrong" not in page
    assert "at most 5% or 10% wrong" in page or "at most 5% wrong" in page


@pytest.mark.parametrize(
    ("kept", "deciding", "watched"),
    [
        (("qipf", "softmax"), "qipf", "qipf"),
        (("softmax", "qipf", "qipf_plus"), "qipf_plus", "qipf_plus"),
        (("qipf_plus_novelty", "qipf", "qipf_plus"), "qipf_plus", "qipf_plus_novelty"),
    ],
)
def test_decisions_are_by_the_best_score_that_was_kept(rng, kept, deciding, watched):
    values = {name: rng.random(400) for name in kept}
    run = stored_run(
        none={0.0: (values, values[deciding] > 0.98)},
        shear={10.0: ({name: 1 + score for name, score in values.items()}, np.ones(400, bool))},
    )
    run.methods = list(kept)
    assert f"net, by {deciding}: thresholds" in rules_html(run)
    page = timeline_html(run)
    assert f"A monitor (qipf.ShiftMonitor) of {watched}, calibrated" in plain(page)
    view = views(page)["net|shear"]
    assert view["series"][0]["name"] == watched
    line = monitor_stream(values[watched], {10.0: 1 + values[watched]})
    assert view["title"] == f"net, shear: alarm after {line.delay} corrupted predictions"


def test_a_limit_that_is_exceeded_is_marked(monkeypatch, clean):
    def unlucky(uncertainty, wrong, risk):
        made = split_evaluation(uncertainty, np.zeros(len(wrong), bool), risk)
        return type(made)(made.rule, count=100, accepted=50, errors=25)

    monkeypatch.setattr(decision_sections, "split_evaluation", unlucky)
    text = plain(rules_html(stored_run(none=clean)))
    assert text.count("50.00% above the limit") == 3  # of qipf
    assert "score at most 1% or 5% or 10% wrong" in text  # the same at every limit: one column
    assert text.count("50.00% wrong: above the limit") == 2  # of both scores


def test_runs_without_scores_or_with_few_have_no_rules(rng):
    few = {0.0: ({"qipf": rng.random(19)}, np.zeros(19, bool))}
    for run in (stored_run(), stored_run(none=few)):
        assert not rules_html(run).strip()
    enough = {0.0: ({"qipf": rng.random(20)}, np.zeros(20, bool))}
    text = plain(rules_html(stored_run(none=enough)))
    assert "Given: 10 held-out predictions; 299 are needed" in text


def test_without_qipf_the_other_scores_are_there(clean):
    scores, wrong = clean[0.0]
    page = rules_html(stored_run(none={0.0: ({"softmax": scores["softmax"]}, wrong)}))
    assert "by qipf" not in page
    assert [row[0] for row in cells(page, "net, by every score")] == ["softmax"]


@pytest.mark.slow
def test_the_timeline_is_drawn_with_its_levels_and_its_alarm(run):
    page = timeline_html(run)
    shown = views(page)
    assert list(shown) == [f"{n}|{c}" for n in run.networks for c in ("rotation", "zoom")]
    clean = run.scores("tiny_mlp", "none")[0.0][0]["qipf"]
    kept = run.scores("tiny_mlp", "zoom")
    line = monitor_stream(clean, {level: kept[level][0]["qipf"] for level in (0.5, 2.0)})
    view = shown["tiny_mlp|zoom"]
    qipf, level = view["series"]
    assert qipf["y"] == pytest.approx(line.evidence, rel=1e-3, abs=1e-9)
    assert level["y"] == [2, 2]
    assert view["y"]["high"] == MOST_EVIDENCE
    assert [(m["x"], m["label"]) for m in view["marks"][:3]] == [
        (0, "clean"), (line.clean, "0.5×"), (line.starts[1][0], "2×"),
    ]  # fmt: skip
    assert view["marks"][3:] == [{"x": line.alarm_at, "label": "alarm", "strong": True}]
    assert view["title"] == f"tiny_mlp, zoom: alarm after {line.delay} corrupted predictions"
    row = next(row for row in cells(page, "Alarms of each stream") if row[0] == "tiny_mlp, zoom")
    alarm = [str(line.delay), f"factor {line.alarm_level:g}", f"{line.change_point:,}"]
    assert row[1:] == [f"{line.clean:,}", *alarm]


def test_streams_without_an_alarm_and_with_a_false_one(rng, monkeypatch):
    quiet = stored_run(none={0.0: scored(rng.random(400))}, shear={10.0: scored(rng.random(400))})
    page = timeline_html(quiet)
    assert views(page)["net|shear"]["title"] == "net, shear: no alarm"
    assert [m["label"] for m in views(page)["net|shear"]["marks"]] == ["clean", "10°"]
    assert cells(page, "Alarms of each stream") == [["net, shear", "100", "–", "–", "–"]]
    # sorted scores are not exchangeable: the alarm comes before the first corrupted prediction

    def in_order(count, seed):
        return tuple(np.arange(count).reshape(2, -1))

    monkeypatch.setattr(decisions, "random_halves", in_order)
    rising = np.arange(400.0)
    page = timeline_html(stored_run(none={0.0: scored(rising)}, shear={10.0: scored(rising)}))
    assert "false alarm at prediction" in views(page)["net|shear"]["title"]
    assert "false alarm" in page.split("<table")[1]


def test_estimates_and_truth_stand_side_by_side(run):
    page = accuracy_html(run)
    shown = views(page)
    assert len(shown) == 2 * 2 * 2
    for way in ("threshold", "isotonic"):
        found = {
            1.0 if g.corruption == "none" else g.level: g
            for g in accuracy_comparisons(run, "short_mlp", way)
            if g.corruption in ("none", "zoom")
        }
        view = shown[f"short_mlp|zoom|{way}"]
        assert view["shared"] == [0.5, 1, 2]
        told = {series["name"]: series["y"] for series in view["series"]}
        expected = {"true accuracy": [found[x].truth for x in (0.5, 1.0, 2.0)]}
        for name in ("qipf", "softmax"):
            expected[name] = [found[x].estimates[name].accuracy for x in (0.5, 1.0, 2.0)]
        expected["clean accuracy"] = [found[1.0].clean_accuracy] * 3
        assert list(told) == list(expected)
        for name, values in expected.items():
            assert told[name] == pytest.approx(values, rel=1e-3)


def test_the_errors_are_means_over_all_corrupted_levels(run):
    page = accuracy_html(run)
    rows = {row[0]: row[1:] for row in cells(page, "Mean absolute error")}
    every = {
        network: [g for g in accuracy_comparisons(run, network) if g.corruption != "none"]
        for network in run.networks
    }
    for network, own in every.items():
        for at, name in enumerate(("qipf", "softmax")):
            error = fmean(abs(g.estimates[name].accuracy - g.truth) for g in own)
            assert rows[network][at] == f"{100 * error:.1f}"
        assert (
            rows[network][4] == f"{100 * fmean(abs(g.clean_accuracy - g.truth) for g in own):.1f}"
        )
    corrupted = [g for own in every.values() for g in own]
    held = sum(g.estimates["qipf"].low <= g.truth <= g.estimates["qipf"].high for g in corrupted)
    assert f"holds in {held} of 10" in page
    text = plain(page)
    error = 100 * fmean(abs(g.estimates["qipf"].accuracy - g.truth) for g in corrupted)
    assert f"the mean absolute error of the estimate (“threshold”) is {error:.1f} points" in text
    worst = max(corrupted, key=lambda g: abs(g.estimates["qipf"].accuracy - g.truth))
    estimate = worst.estimates["qipf"].accuracy
    assert f"at worst qipf gives {estimate:.1%} where {worst.truth:.1%} are right" in text


def test_a_method_that_was_not_measured_is_left_out(rng):
    wrong = rng.random(400) < 0.2
    clean, corrupted = scored(rng.random(400), wrong), scored(rng.random(400), wrong)
    page = accuracy_html(stored_run(none={0.0: clean}, shear={10.0: corrupted}))
    names = [series["name"] for series in views(page)["net|shear|threshold"]["series"]]
    assert names == ["true accuracy", "qipf", "clean accuracy"]
    assert len(cells(page, "Mean absolute error")[0]) == 1 + 2 + 1
    assert all(math.isfinite(float(text)) for text in cells(page, "Mean absolute error")[0][1:])


def test_sections_without_data_are_empty(rng):
    kept = {0.0: scored(rng.random(100))}
    others = {0.0: ({"energy": rng.random(100)}, np.zeros(100, bool))}
    for run in (stored_run(), stored_run(none=kept), stored_run(none=others, shear=others)):
        assert not timeline_html(run).strip()
        assert not accuracy_html(run).strip()
