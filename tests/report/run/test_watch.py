"""The sections about a stream without labels hold the monitor's and the estimator's numbers."""

import json
import math
import re
from statistics import fmean

import numpy as np
import pytest

from qipf.report.run.decisions import guesses, timeline
from qipf.report.run.run import Run
from qipf.report.run.watch import MOST_EVIDENCE, accuracy_html, timeline_html
from tests.report.own.test_page import cells
from tests.report.run.test_page import plain
from tests.report.run.test_rules import stored_run


def views(page):
    return json.loads(re.search(r'json">(.*?)</script>', page)[1])["views"]


def scored(values, wrong=None):
    return {"qipf": values}, np.zeros(len(values), bool) if wrong is None else wrong


@pytest.fixture
def run(paired_run):
    return Run(paired_run)


def test_the_timeline_is_drawn_with_its_levels_and_its_alarm(run):
    page = timeline_html(run)
    shown = views(page)
    assert list(shown) == [f"{n}|{c}" for n in run.networks for c in ("rotation", "zoom")]
    clean = run.scores("tiny_mlp", "none")[0.0][0]["qipf"]
    kept = run.scores("tiny_mlp", "zoom")
    line = timeline(clean, {level: kept[level][0]["qipf"] for level in (0.5, 2.0)})
    view = shown["tiny_mlp|zoom"]
    qipf, level = view["series"]
    assert qipf["y"] == pytest.approx(line.evidence, rel=1e-3, abs=1e-9)
    assert level["y"] == [2, 2]
    assert view["y"]["high"] == MOST_EVIDENCE
    assert [(m["x"], m["label"]) for m in view["marks"][:3]] == [
        (0, "clean"), (line.clean, "0.5×"), (line.starts[1][0], "2×"),
    ]  # fmt: skip
    assert view["marks"][3:] == [{"x": line.alarm_at, "label": "alarm", "strong": True}]
    assert view["title"] == f"tiny_mlp, zoom: alarm after {line.delay} spoilt predictions"
    row = next(row for row in cells(page, "When each alarm") if row[0] == "tiny_mlp, zoom")
    told = [f"{line.clean:,}", str(line.delay), f"factor {line.alarm_level:g}", f"{line.since:,}"]
    assert row[1:] == told


def test_streams_without_an_alarm_and_with_a_false_one_say_so(rng, monkeypatch):
    quiet = stored_run(none={0.0: scored(rng.random(400))}, shear={10.0: scored(rng.random(400))})
    page = timeline_html(quiet)
    assert views(page)["net|shear"]["title"] == "net, shear: no alarm"
    assert [m["label"] for m in views(page)["net|shear"]["marks"]] == ["clean", "10°"]
    assert cells(page, "When each alarm") == [["net, shear", "100", "–", "–", "–"]]
    # sorted scores are no stream without memory: the alarm comes before anything is spoilt
    from qipf.report.run import decisions

    def in_order(count, seed):
        return decisions.Halves(*np.arange(count).reshape(2, -1))

    monkeypatch.setattr(decisions, "halves", in_order)
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
            for g in guesses(run, "short_mlp", way)
            if g.corruption in ("none", "zoom")
        }
        view = shown[f"short_mlp|zoom|{way}"]
        assert view["shared"] == [0.5, 1, 2]
        told = {series["name"]: series["y"] for series in view["series"]}
        expected = {"true accuracy": [found[x].truth for x in (0.5, 1.0, 2.0)]}
        for name in ("qipf", "softmax"):
            expected[name] = [found[x].told[name].accuracy for x in (0.5, 1.0, 2.0)]
        expected["clean accuracy"] = [found[1.0].assumed] * 3
        assert list(told) == list(expected)
        for name, values in expected.items():
            assert told[name] == pytest.approx(values, rel=1e-3)


def test_the_errors_are_means_over_all_spoilt_levels(run):
    page = accuracy_html(run)
    rows = {row[0]: row[1:] for row in cells(page, "Mean absolute error")}
    every = {
        network: [g for g in guesses(run, network) if g.corruption != "none"]
        for network in run.networks
    }
    for network, own in every.items():
        for at, name in enumerate(("qipf", "softmax")):
            error = fmean(abs(g.told[name].accuracy - g.truth) for g in own)
            assert rows[network][at] == f"{100 * error:.1f}"
        assert rows[network][4] == f"{100 * fmean(abs(g.assumed - g.truth) for g in own):.1f}"
    spoilt = [g for own in every.values() for g in own]
    held = sum(g.told["qipf"].low <= g.truth <= g.told["qipf"].high for g in spoilt)
    assert f"holds in {held} of 10" in page
    text = plain(page)
    error = 100 * fmean(abs(g.told["qipf"].accuracy - g.truth) for g in spoilt)
    assert f"Over 10 spoilt levels the estimate (“threshold”) is off by {error:.1f} points" in text
    worst = max(spoilt, key=lambda g: abs(g.told["qipf"].accuracy - g.truth))
    assert (
        f"at worst qipf says {worst.told['qipf'].accuracy:.1%} where {worst.truth:.1%} are right"
        in text
    )


def test_a_method_that_was_not_measured_is_left_out(rng):
    wrong = rng.random(400) < 0.2
    clean, spoilt = scored(rng.random(400), wrong), scored(rng.random(400), wrong)
    page = accuracy_html(stored_run(none={0.0: clean}, shear={10.0: spoilt}))
    names = [series["name"] for series in views(page)["net|shear|threshold"]["series"]]
    assert names == ["true accuracy", "qipf", "clean accuracy"]
    assert len(cells(page, "Mean absolute error")[0]) == 1 + 2 + 1
    assert all(math.isfinite(float(text)) for text in cells(page, "Mean absolute error")[0][1:])


def test_what_there_is_nothing_for_is_said(rng):
    kept = {0.0: scored(rng.random(100))}
    others = {0.0: ({"energy": rng.random(100)}, np.zeros(100, bool))}
    for run in (stored_run(), stored_run(none=kept), stored_run(none=others, shear=others)):
        assert "It also needs the method qipf, and a corruption." in plain(timeline_html(run))
        assert "It also needs a corruption, and qipf or softmax." in plain(accuracy_html(run))
