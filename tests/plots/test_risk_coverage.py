"""What a risk-coverage plot shows is the curve itself."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot

from qipf import (
    QIPF,
    FeatureQIPF,
    LayeredQIPF,
    QIPFInputError,
    QIPFNotFittedError,
    risk_coverage,
    wrap,
)
from tests.plots.conftest import labels, line
from tests.plots.models import LABELS, LOGITS, NET, batches, features, held_out, inputs

SCORES = np.random.default_rng(0).random(300).round(2)
WRONG = np.random.default_rng(1).random(300) < SCORES**2


def test_the_lines_are_the_curve(ax):
    curve = risk_coverage(SCORES, WRONG)
    assert curve.plot(ax, name="mine") is ax
    np.testing.assert_array_equal(line(ax, "mine"), (curve.coverage, curve.risk))
    assert line(ax, "chance")[1].tolist() == [WRONG.mean()] * len(curve.risk)
    order = np.sort(WRONG)  # right predictions first
    kept = np.rint(curve.coverage * 300).astype(int)
    best = order.cumsum()[kept - 1] / kept
    np.testing.assert_allclose(line(ax, "best possible")[1], best, atol=1e-12)
    (band,) = ax.collections
    points = {tuple(point) for point in band.get_paths()[0].vertices}
    assert set(zip(curve.coverage, curve.low, strict=True)) <= points
    assert set(zip(curve.coverage, curve.high, strict=True)) <= points
    assert ax.get_xlim() == (0, 1)
    assert ax.get_ylim()[0] == 0
    assert max(curve.risk[curve.coverage >= 0.1]) < ax.get_ylim()[1] <= 1


def test_curves_share_axes(ax):
    low = risk_coverage(SCORES, WRONG & (SCORES > 0.9))
    risk_coverage(SCORES, WRONG).plot(ax, name="one")
    top = ax.get_ylim()[1]
    low.plot(ax, name="two", color="green", linestyle="--")
    assert labels(ax) == ["chance", "best possible", "one", "two"]
    assert ax.lines[-1].get_color() == "green"
    assert ax.get_ylim()[1] == top


def test_without_errors_there_is_an_axis_too(ax):
    risk_coverage(SCORES, np.zeros(300, bool)).plot(ax)
    assert 0 < ax.get_ylim()[1] < 0.1


def test_new_axes():
    ax = risk_coverage(SCORES, WRONG).plot()
    assert ax.get_xlabel() == "coverage: share of predictions accepted"
    assert pyplot.gcf() is ax.figure
    pyplot.close(ax.figure)


def test_axes_must_be_axes(ax):
    with pytest.raises(QIPFInputError, match="ax must be the axes of one matplotlib plot, got nd"):
        risk_coverage(SCORES, WRONG).plot(np.array([ax, ax]))


def test_a_model_draws_its_calibration_set_and_rule(ax):
    field = QIPF(bandwidth=1.0).fit(LOGITS, LABELS).calibrate(*held_out(1))
    rule = field.accept_rule(min_coverage=0.5)
    assert field.plot_risk_coverage(ax=ax) is ax
    found = field.calibration_
    curve = risk_coverage(found.scores, found.wrong)
    np.testing.assert_array_equal(line(ax, "QIPF"), (curve.coverage, curve.risk))
    label = f"accept rule: {rule.coverage:.1%} accepted"
    assert 0 < rule.coverage < 1
    assert [values.tolist() for values in line(ax, label)] == [[rule.coverage], [rule.risk]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The layers are")
def test_every_model_draws_labelled_data(ax):
    logits, truth = held_out(2)
    x, _ = inputs(2)
    models = {
        "field": (QIPF(bandwidth=1.0).fit(LOGITS, LABELS), (logits, truth)),
        "wrap": (wrap(NET, field=QIPF(bandwidth=1.0)).fit(batches(0)), batches(2)),
        "layers": (LayeredQIPF(NET, max_tuning=60).fit(batches(0)), batches(2)),
        "features": (
            FeatureQIPF(max_tuning=60).fit(features(0), LOGITS, LABELS),
            (features(2), logits, truth),
        ),
    }
    given = {"field": (logits,), "wrap": (x,), "layers": (x,), "features": (features(2), logits)}
    for name, (model, data) in models.items():
        model.plot_risk_coverage(data, ax=ax, name=name)
        scores = model.uncertainty(*given[name])
        curve = risk_coverage(scores, logits.argmax(1) != truth)
        np.testing.assert_allclose(line(ax, name), (curve.coverage, curve.risk), atol=1e-6)
    colors = {name: ax.lines[labels(ax).index(name)].get_linestyle() for name in models}
    assert colors["layers"] == colors["features"] != colors["field"] == colors["wrap"]


def test_unknown_errors_raise(ax):
    field = QIPF(bandwidth=1.0).fit(LOGITS)
    with pytest.raises(QIPFNotFittedError, match="is not calibrated"):
        field.plot_risk_coverage(ax=ax)
    for data in (None, (LOGITS[:50],)):
        with pytest.raises(QIPFInputError, match="errors of these predictions are unknown"):
            field.calibrate(torch.randn(50, 3)).plot_risk_coverage(data, ax=ax)
    for data, got in (
        ([held_out(2)], "list of batches"),
        ([held_out(2), held_out(3)], "list of batches"),
        ((*held_out(2), 1), "tuple of length 3"),
    ):
        with pytest.raises(QIPFInputError, match=rf"QIPF pass \(logits, labels\), got a {got}"):
            field.plot_risk_coverage(data, ax=ax)
    logits, truth = held_out(2)
    for data in (((features(2), logits), truth), (((features(2), logits), truth),), ()):
        with pytest.raises(QIPFInputError, match=r"pass \(features, logits, labels\), got a tup"):
            FeatureQIPF().plot_risk_coverage(data, ax=ax)
    with pytest.raises(QIPFInputError, match="must be a tuple of the arrays .* got Tensor"):
        field.plot_risk_coverage(LOGITS, ax=ax)
