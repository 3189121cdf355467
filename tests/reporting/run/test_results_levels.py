"""Levels of corruptions are ordered by severity and written with their units."""

from qipf.reporting.run.results import by_severity, condition_text, level_text, severity_axis


def test_levels_by_severity():
    assert by_severity("brightness", [4, 0.2, 0.8, 1.5, 0, 0.5, 2]) == [0.8, 1.5, 0.5, 2, 4, 0.2, 0]
    assert by_severity("rotation", [30, 15, 270, 90]) == [15, 30, 90, 270]
    assert by_severity("a corruption of one's own", [3, 1, 2]) == [1, 2, 3]


def test_texts_of_levels():
    assert level_text("unknown", 3.0) == "3"
    assert condition_text("unknown", 3.0) == "unknown, 3"
    assert condition_text("rotation", 30.0) == "rotation, 30 degrees"
    assert condition_text("none", 0.0) == "clean"


def test_factors_have_a_logarithmic_axis():
    zoom, own = severity_axis("zoom", [0.5, 2.0]), severity_axis("unknown", [1.0])
    assert (zoom.label, zoom.ticks, zoom.log) == ("zoom (factor)", (0.5, 2.0), True)
    assert (own.label, own.log) == ("unknown", False)
