"""Axes to draw on, closed after each test."""

import matplotlib as mpl
import pytest

mpl.use("Agg")


@pytest.fixture
def ax():
    """Axes of a figure of the test's own."""
    from matplotlib import pyplot

    yield pyplot.figure().add_subplot()
    pyplot.close("all")


def line(ax, label):
    """x and y of the line with this label."""
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found.get_xdata(), found.get_ydata()


def labels(ax):
    """Texts of the legend."""
    return [text.get_text() for text in ax.get_legend().get_texts()]
