"""Charts hold the right numbers, and nothing in them can break the page."""

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import QIPFError
from qipf.metrics.error_detection import aurc
from qipf.report.charts import (
    BARS,
    CURVE_POINTS,
    Axis,
    Chart,
    Choice,
    Mark,
    Series,
    chart_html,
    embedded,
    histogram_chart,
    risk_coverage_chart,
    risks,
)

SCORED = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()), min_size=1, max_size=6
)


def spec_of(html):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html).group(1))


def a_chart(*names, title="title"):
    return Chart(title, Axis("x"), Axis("y"), [Series(name, [0, 1], [0, 1]) for name in names])


@given(SCORED)
def test_risks_are_the_mean_over_all_ways_to_break_ties(rows):
    scores, wrong = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    curves = []
    for order in itertools.permutations(range(len(rows))):
        if (np.diff(scores[list(order)]) >= 0).all():
            kept = wrong[list(order)]
            curves.append(np.cumsum(kept) / np.arange(1, len(rows) + 1))
    np.testing.assert_allclose(risks(scores, wrong), np.mean(curves, axis=0), atol=1e-12)


@given(SCORED)
def test_the_area_under_risks_is_the_metric(rows):
    scores, wrong = [r[0] for r in rows], [r[1] for r in rows]
    assert risks(scores, wrong).mean() == pytest.approx(aurc(scores, wrong))


def test_risk_coverage_between_the_best_possible_and_the_error_rate(rng):
    wrong = rng.random(200) < 0.3
    chart = risk_coverage_chart({"good": wrong + rng.normal(0, 0.5, 200), "oracle": wrong}, wrong)
    good, oracle, chance, best = (np.asarray(series.y) for series in chart.series)
    assert [series.name for series in chart.series] == ["good", "oracle", "chance", "best possible"]
    np.testing.assert_allclose(oracle, best, atol=1e-12)
    assert (good >= best - 1e-12).all()
    assert good[-1] == chance[-1] == pytest.approx(wrong.mean())
    assert len(good) == CURVE_POINTS


def test_risks_refuse_what_does_not_match():
    with pytest.raises(QIPFError) as refused:
        risks([0.1, 0.2], [True])
    assert str(refused.value) == (
        "uncertainty and wrong must be of one shape (n,), n at least 1; got (2,) and (1,)."
    )


def test_histograms_count_each_kind_by_itself(rng):
    scores, wrong = rng.normal(size=1000), rng.random(1000) < 0.2
    scores[0] = 1e6  # one far out must not squeeze the others into one bar
    right, bad = histogram_chart(scores, wrong, "title").series
    for series, chosen in ((right, ~wrong), (bad, wrong)):
        assert np.sum(series.y) == pytest.approx(1.0)
        assert len(series.x) == BARS + 1
        assert f"({chosen.sum()})" in series.name
    assert right.x[-1] < 10
    inside = ~wrong & (scores >= right.x[0]) & (scores < right.x[1])
    assert right.y[0] == pytest.approx(inside.sum() / (~wrong).sum())


@pytest.mark.parametrize("wrong", [[False, False], [True, True], [True, False]])
def test_histograms_of_equal_scores_and_of_one_kind(wrong):
    chart = histogram_chart([2.0, 2.0], wrong, "title")
    assert chart.series[0].x[0] == 2.0
    assert chart.series[0].x[-1] == 3.0
    total = sum(float(np.sum(series.y)) for series in chart.series)
    assert total == len(set(wrong))


def test_shared_x_stands_there_once_and_gaps_are_null():
    chart = Chart(
        "t", Axis("x"), Axis("y"), [Series("a", [0, 1], [1, np.nan]), Series("b", [0, 1], [2, 3])]
    )
    view = spec_of(chart_html(chart, alt="a"))["views"][""]
    assert view["shared"] == [0, 1]
    assert [series["y"] for series in view["series"]] == [[1, None], [2, 3]]
    assert "x" not in view["series"][0]
    other = Chart("t", Axis("x"), Axis("y"), [Series("a", [0], [1]), Series("b", [2], [3])])
    view = spec_of(chart_html(other, alt="a"))["views"][""]
    assert (view["shared"], view["series"][1]["x"]) == (None, [2])


def test_what_is_shown_first_and_by_presets_exists():
    html = chart_html(
        a_chart("a", "b"), alt="a", shown=["b", "gone"], presets={"some": ["a", "gone"]}
    )
    spec = spec_of(html)
    assert (spec["names"], spec["shown"], spec["presets"]) == (["a", "b"], ["b"], [["some", ["a"]]])


def test_no_text_breaks_out_of_the_data():
    nasty = "</script><script>alert(1)</script>"
    html = chart_html(a_chart(nasty), alt=nasty, caption=nasty)
    assert "<script>alert" not in html
    assert spec_of(html)["names"] == [nasty]
    assert embedded("<!--") == '<script type="application/json">"\\u003c!--"</script>'


def test_charts_that_no_box_chooses_are_refused():
    with pytest.raises(QIPFError) as refused:
        chart_html({("b",): a_chart("q")}, alt="a", choices=[Choice("Which", {"a": "A"})])
    assert str(refused.value) == "The chart ('b',) cannot be chosen with the boxes given."


def test_marks_and_the_wish_to_print_all_reach_the_page():
    chart = Chart(
        "t", Axis("x"), Axis("y"), [Series("a", [0, 1], [0, 1])],
        marks=[Mark(0.5, "here"), Mark(1, "alarm", strong=True)],
    )  # fmt: skip
    spec = spec_of(chart_html(chart, alt="a", print_all=True))
    assert spec["printAll"] is True
    assert spec["views"][""]["marks"] == [
        {"x": 0.5, "label": "here", "strong": False},
        {"x": 1, "label": "alarm", "strong": True},
    ]
    assert spec_of(chart_html(a_chart("a"), alt="a"))["printAll"] is False
