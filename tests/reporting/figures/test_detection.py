"""Errors detected at one level of a run."""

import shutil

import pytest

from qipf import QIPFError
from qipf.reporting.figures.detection import draw_detection
from qipf.reporting.run.results import Run
from tests.reporting.figures.svg import texts


@pytest.mark.slow
def test_histograms_and_curves_with_the_recorded_areas(tiny_run, tmp_path):
    target = tmp_path / "detection.svg"
    at = {"network": "tiny_mlp", "corruption": "rotation", "level": 30}
    draw_detection(tiny_run, target, **at, methods=["qipf", "entropy"])
    written = " ".join(texts(target))
    for method in ("qipf", "entropy"):
        known = next(
            r for r in Run(tiny_run).records
            if all(r[name] == value for name, value in {**at, "method": method}.items())
        )  # fmt: skip
        assert f"{method} (ROC-AUC {known['roc_auc']:.2f})" in written
        assert f"{method} ({known['roc_auc']:.2f} / {known['pr_auc']:.2f})" in written
    assert f"{1 - known['accuracy']:.1%} wrong" in written


@pytest.mark.slow
def test_runs_without_scores_raise(tiny_run, tmp_path):
    shutil.copy(tiny_run / "results.jsonl", tmp_path)
    with pytest.raises(QIPFError, match="kept no uncertainties of .* on short_mlp under zoom"):
        draw_detection(
            tmp_path, tmp_path / "a.png", network="short_mlp", corruption="zoom", level=2
        )
    assert not (tmp_path / "a.png").exists()
