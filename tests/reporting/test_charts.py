"""Charts hold the right numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import QIPFError
from qipf.reporting.charts import (
    BARS,
    CURVE_POINTS,
    Axis,
    Chart,
    Mark,
    Series,
    chart_spec,
    choices,
    histogram_chart,
    risk_coverage_chart,
)

SCORED = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()), min_size=1, max_size=5
)


def a_chart(*names, title="title"):
    return Chart(title, Axis("x"), Axis("y"), [Series(name, [0, 1], [0, 1]) for name in names])


@given(SCORED)
def test_risk_is_the_mean_over_all_ways_to_break_ties(rows):
    scores, wrong = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    curves = []
    for order in itertools.permutations(range(len(rows))):
        if (np.diff(scores[list(order)]) >= 0).all():
            curves.append(np.cumsum(wrong[list(order)]) / np.arange(1, len(rows) + 1))
    kept = np.ceil(np.arange(1, CURVE_POINTS + 1) / CURVE_POINTS * len(rows) - 1e-9).astype(int)
    drawn = risk_coverage_chart({"qipf": scores}, wrong).series[0].y
    np.testing.assert_allclose(drawn, np.mean(curves, axis=0)[kept - 1], atol=1e-12)


def test_risk_coverage_between_the_best_possible_and_the_error_rate(rng):
    wrong = rng.random(200) < 0.3
    chart = risk_coverage_chart({"good": wrong + rng.normal(0, 0.5, 200), "oracle": wrong}, wrong)
    good, oracle, chance, best = (np.asarray(series.y) for series in chart.series)
    assert [series.name for series in chart.series] == ["good", "oracle", "chance", "best possible"]
    np.testing.assert_allclose(oracle, best, atol=1e-12)
    assert (good >= best - 1e-12).all()
    assert good[-1] == chance[-1] == pytest.approx(wrong.mean())


def test_risk_coverage_of_unequal_lengths_raises():
    with pytest.raises(QIPFError, match="shape of uncertainty"):
        risk_coverage_chart({"qipf": [0.1, 0.2]}, [True])


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


def test_x_that_all_series_share_is_stored_once_and_gaps_are_null():
    chart = Chart(
        "t", Axis("x"), Axis("y"), [Series("a", [0, 1], [1, np.nan]), Series("b", [0, 1], [2, 3])]
    )
    view = chart_spec(chart)["views"][""]
    assert view["shared"] == [0, 1]
    assert [series["y"] for series in view["series"]] == [[1, None], [2, 3]]
    assert "x" not in view["series"][0]
    other = Chart("t", Axis("x"), Axis("y"), [Series("a", [0], [1]), Series("b", [2], [3])])
    view = chart_spec(other)["views"][""]
    assert (view["shared"], view["series"][1]["x"]) == (None, [2])


def test_series_shown_first_and_by_presets_exist():
    spec = chart_spec(a_chart("a", "b"), shown=["b", "gone"], presets={"some": ["a", "gone"]})
    assert (spec["names"], spec["shown"], spec["presets"]) == (["a", "b"], ["b"], [["some", ["a"]]])


def test_selection_boxes_offer_the_parts_of_the_keys():
    charts = {("n", "x"): a_chart("q"), ("n", "y"): a_chart("q"), ("m", "x"): a_chart("q")}
    spec = chart_spec(charts, ["Network", "Which"], texts={"x": "an X"})
    assert spec["choices"] == [
        {"label": "Network", "options": [("n", "n"), ("m", "m")]},
        {"label": "Which", "options": [("x", "an X"), ("y", "y")]},
    ]
    assert list(spec["views"]) == ["n|x", "n|y", "m|x"]
    with pytest.raises(ValueError, match="zip"):
        choices(charts, ["Network"], {})


def test_marks_and_print_all_are_in_the_spec():
    chart = Chart(
        "t", Axis("x"), Axis("y"), [Series("a", [0, 1], [0, 1])],
        marks=[Mark(0.5, "here"), Mark(1, "alarm", strong=True)],
    )  # fmt: skip
    spec = chart_spec(chart, print_all=True)
    assert spec["printAll"] is True
    assert spec["views"][""]["marks"] == [
        {"x": 0.5, "label": "here", "strong": False},
        {"x": 1, "label": "alarm", "strong": True},
    ]
    assert chart_spec(a_chart("a"))["printAll"] is False
