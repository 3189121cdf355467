"""Several seeds, in one folder or in several: numbers are averaged, pictures are of one seed."""

import shutil

import numpy as np
import pytest

from qipf import QIPFError, QIPFWarning
from qipf.bench.results import read_results
from qipf.bench.runner import run
from qipf.bench.suites import BenchNetwork, Suite
from qipf.reporting.figures.severity import draw_severity
from qipf.reporting.run.page import run_page
from qipf.reporting.run.results import Run
from qipf.reporting.run.trained import TrainedNetwork

pytestmark = pytest.mark.slow

BRIEF = Suite(
    "brief",
    (BenchNetwork("brief_mlp", "digits", "mlp", {"epochs": 2}),),
    corruptions={"rotation": (30, 90)},
    methods=("qipf", "entropy"),
    options={"qipf": {"bandwidth": "silverman"}},
)
AT = ("brief_mlp", "rotation")


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Seeds 0 and 1 in one folder."""
    folder = tmp_path_factory.mktemp("seeds") / "both"
    for seed in (0, 1):
        run(BRIEF, folder, device="cpu", seed=seed)
    return folder


@pytest.fixture(scope="module")
def apart(together):
    """The same seeds in a folder each."""
    folders = []
    for seed in (0, 1):
        folder = together.parent / f"seed{seed}"
        for part in ("networks", "scores"):
            shutil.copytree(together / part / f"seed{seed}", folder / part / f"seed{seed}")
        lines = (together / "results.jsonl").read_text().splitlines(keepends=True)
        own = [line for line in lines if f'"seed": {seed},' in line]
        (folder / "results.jsonl").write_text("".join(own))
        folders.append(folder)
    return folders


def test_curves_are_means_over_the_seeds_wherever_they_lie(together, apart):
    both, split = Run(together), Run(*apart)
    assert both.seeds == split.seeds == [0, 1]
    singles = [list(Run(folder).curve(*AT, "qipf", "roc_auc").values()) for folder in apart]
    for each in (both, split):
        curve = each.curve(*AT, "qipf", "roc_auc")
        np.testing.assert_allclose(list(curve.values()), np.mean(singles, axis=0), rtol=1e-12)
    assert singles[0] != singles[1]


def test_single_predictions_are_those_of_one_seed(together, apart):
    for each in (Run(together), Run(*apart)):
        for seed, folder in zip((0, 1), apart, strict=True):
            scores, wrong = each.scores(*AT, seed)[30.0]
            known, errors = Run(folder).scores(*AT, seed)[30.0]
            np.testing.assert_array_equal(scores["qipf"], known["qipf"])
            np.testing.assert_array_equal(wrong, errors)
            said = TrainedNetwork(each, "brief_mlp", seed=seed).predict("rotation", 30.0)
            truth = TrainedNetwork(each, "brief_mlp", seed=seed).labels
            np.testing.assert_array_equal(said.predicted.numpy() != truth, errors)
        np.testing.assert_array_equal(each.scores(*AT)[30.0][1], each.scores(*AT, 0)[30.0][1])
    assert Run(apart[1]).seed("brief_mlp") == 1


def test_the_page_says_what_is_a_mean_and_what_is_one_seed(together, apart):
    for page in (run_page(Run(together)), run_page(Run(*apart))):
        assert "(each the mean over the seeds 0, 1)" in page
        assert "Each value is the mean of 2 seeds." in page
        assert page.count("Of the 2 seeds, the lowest of each network is shown.") == 5
        assert "runner.run(brief, " in page
        assert "seed=1)" in page
        assert "†" not in page


def test_a_method_with_fewer_seeds_is_told_of(together, tmp_path):
    records = read_results(together)
    kept = [
        line
        for line, record in zip(
            (together / "results.jsonl").read_text().splitlines(keepends=True), records, strict=True
        )
        if (record["method"], record["seed"]) != ("entropy", 1)
    ]
    (tmp_path / "results.jsonl").write_text("".join(kept))
    target = tmp_path / "severity.png"
    with pytest.warns(QIPFWarning, match="entropy: fewer seeds"):
        draw_severity(tmp_path, target, methods=["qipf", "entropy"])
    draw_severity(tmp_path, target, methods=["qipf"])  # nothing to warn of
    page = run_page(Run(tmp_path))
    assert "† fewer seeds than other methods of the same row: not the same average." in page


def test_the_same_result_twice_raises(together, apart):
    with pytest.raises(QIPFError, match=r"Both .* hold .* on brief_mlp, none 0 with seed 1"):
        Run(together, apart[1])
