"""Severity curves of a run."""

import json

import pytest

from qipf import QIPFError
from qipf.reporting.figures.severity import draw_severity
from qipf.reporting.run.results import Run
from tests.reporting.figures.svg import texts


@pytest.mark.slow
def test_a_row_for_each_corruption_and_a_line_for_each_method(tiny_run, tmp_path):
    target = tmp_path / "severity.svg"
    methods = Run(tiny_run).methods
    curves = draw_severity(tiny_run, target, network="tiny_mlp", methods=methods)
    written = texts(target)
    for text in ("ROC-AUC", "PR-AUC", "Point-biserial correlation", "chance", *methods):
        assert written.count(text) == 1
    for text in ("rotation (degrees)", "zoom (factor)"):
        assert written.count(text) == 3
    assert len(curves) == 2 * 3 * len(methods)
    known = Run(tiny_run).curve("tiny_mlp", "zoom", "entropy", "pr_auc")
    drawn = next(
        c for c in curves
        if (c["corruption"], c["metric"], c["method"]) == ("zoom", "pr_auc", "entropy")
    )  # fmt: skip
    assert (drawn["levels"], drawn["values"]) == (list(known), list(known.values()))


def test_only_the_methods_asked_for(tiny_run, tmp_path):
    target = tmp_path / "severity.svg"
    draw_severity(tiny_run, target, network="short_mlp", methods=["qipf"], metrics=["roc_auc"])
    assert "qipf" in texts(target)
    assert "entropy" not in texts(target)


def test_clean_images_alone_raise(tiny_run, tmp_path):
    clean = [r for r in Run(tiny_run).records if r["corruption"] == "none"]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in clean))
    with pytest.raises(QIPFError, match="there is no severity"):
        draw_severity(tmp_path, tmp_path / "a.png", network="tiny_mlp")
