"""The field of a run's predictions along their first principal axis."""

import shutil

import numpy as np
import pytest

from qipf import QIPFError
from qipf.reporting.figures.field import draw_field, run_field
from qipf.reporting.run.results import Run
from qipf.reporting.run.trained import TrainedNetwork
from tests.reporting.figures.svg import texts


def test_the_figure_names_the_projection(tiny_run, tmp_path):
    target = tmp_path / "field.svg"
    draw_field(tiny_run, target, network="tiny_mlp", corruption="rotation", level=90)
    assert "first principal axis of the training logits" in " ".join(texts(target))


def test_the_projected_field_has_all_test_predictions(tiny_run):
    run = Run(tiny_run)
    trained = TrainedNetwork(run, "tiny_mlp")
    field = run_field(trained, "rotation", 30.0)
    wrong = run.scores("tiny_mlp", "rotation")[30.0][1]
    assert (len(field.right), len(field.wrong)) == ((~wrong).sum(), wrong.sum())
    assert field.density.max() == 1
    assert field.modes.shape == (len(field.places), 4)
    np.testing.assert_allclose(field.modes.max(0), 1)
    # the axis is the first eigenvector of the covariance, its largest component positive
    centers = np.asarray(trained.field.centers_, np.float64)
    values, vectors = np.linalg.eigh(np.cov(centers.T))
    axis = vectors[:, -1] * np.sign(vectors[np.abs(vectors[:, -1]).argmax(), -1])
    np.testing.assert_allclose(field.projection.components_[0], axis, atol=1e-8)
    share = field.projection.explained_variance_ratio_[0]
    assert share == pytest.approx(values[-1] / values.sum())
    places = (centers - centers.mean(0)) @ axis
    densest = field.places[field.density.argmax()]
    assert np.quantile(places, 0.02) < densest < np.quantile(places, 0.98)


def test_runs_without_trained_networks_raise(tiny_run, tmp_path):
    shutil.copy(tiny_run / "results.jsonl", tmp_path)
    with pytest.raises(QIPFError, match="does not hold the trained short_mlp"):
        draw_field(tmp_path, tmp_path / "a.png", network="short_mlp", corruption="zoom", level=2)
    assert not (tmp_path / "a.png").exists()
