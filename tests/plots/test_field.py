"""The field along the first principal axis of its centres."""

import numpy as np
import pytest
from matplotlib import pyplot

from qipf import QIPF, QIPFNotFittedError
from qipf.plots.field import SOFTENING, projected_field
from tests.plots.conftest import labels, line
from tests.plots.models import LABELS, LOGITS, held_out

FIELD = QIPF(orders=(1, 3), bandwidth=1.0).fit(LOGITS, LABELS)


def projected(points, rows):
    """Places on the axis by an eigenvector of the covariance."""
    vectors = np.linalg.eigh(np.cov(points.T))[1]
    axis = vectors[:, -1] * np.sign(vectors[np.abs(vectors[:, -1]).argmax(), -1])
    return (rows - points.mean(0)) @ axis


def test_the_density_and_the_modes_are_those_of_the_projected_rows(ax):
    centers = LOGITS.double().numpy()
    places = projected(centers, centers)
    line_field = QIPF(orders=(1, 3), bandwidth="silverman", softening=SOFTENING)
    line_field.fit(places[:, None])
    assert FIELD.plot_field(ax=ax) is ax
    x, y = line(ax, "IPF of training predictions")
    density = np.exp(line_field.log_density(x[:, None]))
    np.testing.assert_allclose(y, density / density.max(), rtol=1e-4)
    ax.clear()
    assert FIELD.plot_modes(ax=ax) is ax
    modes = line_field.modes(x[:, None])
    for order, mode in zip((1, 3), modes.T, strict=True):
        np.testing.assert_allclose(line(ax, f"mode {order}")[1], mode / mode.max(), atol=1e-4)
    mean = modes.mean(1)
    np.testing.assert_allclose(line(ax, "uncertainty, their mean")[1], mean / mean.max(), atol=1e-4)


def test_predictions_are_drawn_with_or_without_labels(ax):
    rows, truth = held_out(3)
    wrong = rows.argmax(1) != truth
    FIELD.plot_field(rows, truth, ax=ax)
    count = int(wrong.sum())
    assert 0 < count < 240
    names = [f"right predictions ({240 - count})", f"wrong predictions ({count})"]
    assert labels(ax)[:2] == names
    drawn = {patch.get_label(): patch.get_data() for patch in ax.patches}
    centers = LOGITS.double().numpy()
    places = projected(centers, rows.double().numpy())
    for name, own in zip(names, (places[~wrong], places[wrong]), strict=True):
        heights = np.histogram(own, drawn[name].edges)[0]
        np.testing.assert_allclose(drawn[name].values, heights / heights.max())
    ax.clear()
    FIELD.plot_field(rows, wrong=wrong, ax=ax)
    assert labels(ax)[:2] == names
    ax.clear()
    FIELD.plot_field(rows.numpy(), ax=ax)
    assert labels(ax)[0] == "predictions (240)"


def test_weighted_centres_count_as_often_as_their_weight(rng):
    """Two groups of 30 centres, of which the second stands for 19 times as many rows."""
    field = QIPF(bandwidth=0.3).fit(rng.normal(size=(60, 2)))
    field.centers_ = np.r_[
        rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + np.array([50.0, 0.0])
    ]
    field.log_weights_ = np.log(np.repeat([0.05 / 30, 0.95 / 30], 30))
    found = projected_field(field)
    assert found.places[found.density > 0.25].min() > -10  # the mean is at 2.5 from the second
    field.log_weights_ = None
    found = projected_field(field)
    assert found.places[found.density > 0.25].min() < -20


def test_new_axes_and_an_unfitted_field():
    ax = FIELD.plot_modes()
    assert pyplot.gcf() is ax.figure
    pyplot.close("all")
    with pytest.raises(QIPFNotFittedError):
        QIPF().plot_field()
