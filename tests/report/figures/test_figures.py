"""Figures of runs: drawn for any network, corruption and level, and refused where there is none."""

import json
import re

import numpy as np
import pytest

from qipf import QIPFError
from qipf.report.figures.detection import draw_detection
from qipf.report.figures.field import draw_field, principal_axis, projected_field
from qipf.report.figures.severity import draw_severity
from qipf.report.run.run import Run
from qipf.report.run.trained import TrainedNetwork


def texts(path):
    """What is written in an SVG."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))


def test_severity_draws_a_row_for_each_corruption(tiny_run, tmp_path):
    target = tmp_path / "severity.svg"
    methods = Run(tiny_run).methods
    draw_severity(
        tiny_run, target, network="tiny_mlp", corruptions=["rotation", "zoom"], methods=methods
    )
    written = texts(target)
    for text in (
        "ROC-AUC",
        "PR-AUC",
        "Point-biserial correlation",
        "chance",
        *methods,
    ):
        assert written.count(text) == 1
    for text in ("rotation (degrees)", "zoom (factor)"):
        assert written.count(text) == 3


def test_severity_draws_only_the_methods_asked_for(tiny_run, tmp_path):
    target = tmp_path / "severity.svg"
    draw_severity(tiny_run, target, network="short_mlp", methods=["qipf"])
    written = texts(target)
    assert "qipf" in written
    assert "entropy" not in written


def test_detection_draws_histograms_and_curves(tiny_run, tmp_path):
    target = tmp_path / "detection.svg"
    methods = ["qipf", "entropy"]
    draw_detection(
        tiny_run, target, network="tiny_mlp", corruption="rotation", level=30, methods=methods
    )
    written = " ".join(texts(target))
    records = Run(tiny_run).records
    for method in methods:
        known = next(
            r for r in records
            if (r["network"], r["corruption"], r["level"], r["method"])
            == ("tiny_mlp", "rotation", 30, method)
        )  # fmt: skip
        assert f"{method} (ROC-AUC {known['roc_auc']:.2f})" in written
        assert f"{method} ({known['roc_auc']:.2f} / {known['pr_auc']:.2f})" in written
    assert f"{1 - known['accuracy']:.1%} wrong" in written


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_field_says_what_it_draws(tiny_run, tmp_path, kind):
    target = tmp_path / f"field.{kind}"
    draw_field(tiny_run, target, network="tiny_mlp", corruption="rotation", level=90)
    assert {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind] in target.read_bytes()[:99]
    if kind == "svg":
        assert "first principal axis of the training logits" in " ".join(texts(target))


def test_the_projected_field_has_all_test_predictions(tiny_run):
    run = Run(tiny_run)
    trained = TrainedNetwork(run, "tiny_mlp")
    field = projected_field(trained, "rotation", 30.0)
    wrong = run.scores("tiny_mlp", "rotation")[30.0][1]
    assert (len(field.right), len(field.wrong)) == ((~wrong).sum(), wrong.sum())
    assert field.density.max() == 1
    assert field.modes.shape == (len(field.places), 4)
    np.testing.assert_allclose(field.modes.max(0), 1)
    centers = field.projection(trained.field.centers_)
    densest = field.places[field.density.argmax()]
    assert np.quantile(centers, 0.02) < densest < np.quantile(centers, 0.98)


def test_the_principal_axis_is_the_covariances_first_eigenvector(rng):
    points = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 4)) + 7
    found = principal_axis(points)
    values, vectors = np.linalg.eigh(np.cov(points.T))
    np.testing.assert_allclose(abs(found.axis @ vectors[:, -1]), 1, atol=1e-10)
    assert found.share == pytest.approx(values[-1] / values.sum())
    assert found.axis[np.abs(found.axis).argmax()] > 0
    np.testing.assert_allclose(found(points).mean(), 0, atol=1e-10)
    assert np.var(found(points), ddof=1) == pytest.approx(values[-1])


def copy_of(run, folder, keep):
    (folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in run if keep(r)))
    return folder


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda folder, path: draw_detection(folder, path, corruption="zoom", level=2),
            "{folder} holds no scores of short_mlp under zoom with seed 0.",
        ),
        (
            lambda folder, path: draw_field(folder, path, corruption="zoom", level=2),
            "{folder} does not hold the trained short_mlp (network.pt is missing). Use the folder "
            "in which the run was made.",
        ),
    ],
)
def test_folders_with_results_alone_say_what_is_missing(tiny_run, tmp_path, draw, message):
    folder = tmp_path / "copied"
    folder.mkdir()
    copy_of(Run(tiny_run).records, folder, lambda r: r["network"] == "short_mlp")
    with pytest.raises(QIPFError) as refused:
        draw(folder, tmp_path / "a.png")
    assert str(refused.value) == message.format(folder=folder)
    assert not (tmp_path / "a.png").exists()


def test_severity_of_clean_images_alone_is_refused(tiny_run, tmp_path):
    copy_of(Run(tiny_run).records, tmp_path, lambda r: r["corruption"] == "none")
    with pytest.raises(QIPFError) as refused:
        draw_severity(tmp_path, tmp_path / "a.png", network="tiny_mlp")
    assert str(refused.value) == "tiny_mlp was tried on clean images only: there is no severity."
