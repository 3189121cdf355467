"""Severity plots show the metrics at each level."""

import numpy as np
import pytest
from matplotlib import pyplot

from qipf import QIPF, QIPFInputError, wrap
from qipf.calibration.detection import entropy_of
from qipf.metrics.error_detection import evaluate
from tests.plots.conftest import labels, line
from tests.plots.models import LABELS, LOGITS, NET, batches, held_out

FIELD = QIPF(bandwidth=1.0).fit(LOGITS, LABELS)
LEVELS = {30: held_out(7, noise=3.0), 0: held_out(6), 15: held_out(8, noise=2.0)}


@pytest.mark.parametrize("metric", ["roc_auc", "aurc"])
def test_the_lines_are_the_metrics(ax, metric):
    assert FIELD.plot_severity(LEVELS, metric, ax=ax) is ax
    wrong = {level: (rows.argmax(1) != truth).numpy() for level, (rows, truth) in LEVELS.items()}
    scores = {"QIPF": FIELD.uncertainty, "softmax entropy": entropy_of}
    for name, score in scores.items():
        x, y = line(ax, name)
        assert list(x) == [0, 15, 30]
        expected = [evaluate(score(LEVELS[level][0]), wrong[level])[metric] for level in x]
        np.testing.assert_allclose(y, expected, rtol=1e-9)
    rates = [wrong[level].mean() for level in (0, 15, 30)]
    assert list(line(ax, "chance")[1]) == ([0.5] * 3 if metric == "roc_auc" else rates)
    assert ax.get_ylabel() == {"roc_auc": "ROC-AUC", "aurc": "AURC"}[metric]


def test_models_share_axes_and_levels_without_errors_are_gaps(ax):
    FIELD.plot_severity(LEVELS, ax=ax)
    model = wrap(NET, field=FIELD)
    x, _ = inputs_and_right = batches(6)[0][0], NET(batches(6)[0][0]).argmax(1)
    model.plot_severity({0: batches(6), 15: [inputs_and_right]}, ax=ax, name="wrapped", color="red")
    assert labels(ax) == ["chance", "QIPF", "softmax entropy", "wrapped"]
    assert ax.lines[-1].get_color() == "red"
    y = line(ax, "wrapped")[1]
    assert y[0] == pytest.approx(line(ax, "QIPF")[1][0], rel=1e-5)
    assert np.isnan(y[1])
    assert len(x) == 64


def test_new_axes_and_invalid_arguments():
    ax = FIELD.plot_severity(LEVELS)
    assert pyplot.gcf() is ax.figure
    pyplot.close("all")
    with pytest.raises(QIPFInputError, match="Did you mean 'roc_auc'"):
        FIELD.plot_severity(LEVELS, "rocauc")
    with pytest.raises(QIPFInputError, match="levels must be a dict .* got list"):
        FIELD.plot_severity([LEVELS[0]])
    with pytest.raises(QIPFInputError, match="The data of level 15 has no labels"):
        FIELD.plot_severity({0: LEVELS[0], 15: (LOGITS,)})
