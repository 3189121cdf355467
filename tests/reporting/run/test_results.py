"""A run is read as it is, finished or not, of one seed or several."""

import json

import numpy as np
import pytest

from qipf import QIPFError
from qipf.metrics.error_detection import chance, evaluate
from qipf.reporting.run.results import Run


def record(**changes):
    return {
        "network": "net", "dataset": "digits", "corruption": "zoom", "level": 2.0,
        "method": "qipf", "seed": 0, "accuracy": 0.75, "roc_auc": 0.5,
    } | changes  # fmt: skip


def written(folder, *records):
    lines = "".join(json.dumps(each) + "\n" for each in records)
    (folder / "results.jsonl").write_text(lines)
    return Run(folder)


def test_what_a_run_holds(tiny_run):
    run = Run(tiny_run)
    assert run.networks == ["tiny_mlp", "short_mlp"]
    assert run.methods == ["mc_dropout", "qipf", "entropy", "energy", "mc_dropout_entropy"]
    assert run.corruptions("tiny_mlp") == ["rotation", "zoom"]
    assert run.levels("tiny_mlp", "rotation") == [15, 30, 90]
    assert run.seeds == [0]
    assert Run(tiny_run / "results.jsonl").folder == tiny_run


def test_scores_give_the_recorded_metrics(tiny_run):
    run = Run(tiny_run)
    for level, (scores, wrong) in run.scores("tiny_mlp", "rotation").items():
        assert set(scores) == set(run.methods)
        for method, values in scores.items():
            known = run.curve("tiny_mlp", "rotation", method, "roc_auc")[level]
            assert evaluate(values, wrong)["roc_auc"] == pytest.approx(known, abs=1e-3)


def test_clean_images_stand_where_the_corruption_does_nothing(tiny_run):
    run = Run(tiny_run)
    clean = next(
        r for r in run.records
        if (r["network"], r["corruption"], r["method"]) == ("tiny_mlp", "none", "qipf")
    )  # fmt: skip
    for corruption, place in (("rotation", 0.0), ("zoom", 1.0)):
        curve = run.curve("tiny_mlp", corruption, "qipf", "roc_auc")
        assert curve[place] == clean["roc_auc"]
        assert list(curve) == sorted([place, *run.levels("tiny_mlp", corruption)])
    assert run.error_rate("tiny_mlp", "zoom")[1.0] == pytest.approx(1 - clean["accuracy"])


def test_seeds_are_averaged_and_what_is_not_defined_is_a_gap(tmp_path):
    run = written(
        tmp_path,
        record(roc_auc=0.5),
        record(roc_auc=0.7, seed=1),
        record(level=3.0, roc_auc=None, accuracy=1.0),
    )
    curve = run.curve("net", "zoom", "qipf", "roc_auc")
    assert list(curve) == [2.0, 3.0]
    np.testing.assert_allclose(list(curve.values()), [0.6, np.nan])
    assert run.curve("net", "zoom", "entropy", "roc_auc") == {}


def test_levels_measured_by_one_method_only_count_for_the_error_rate(tmp_path):
    run = written(tmp_path, record(), record(method="entropy"), record(method="entropy", level=3.0))
    assert run.error_rate("net", "zoom") == {2.0: 0.25, 3.0: 0.25}


@pytest.mark.parametrize(
    ("ask", "phrase"),
    [
        (lambda run: run.network("tiny_mpl"), "network of this run 'tiny_mpl'.*'tiny_mlp'"),
        (lambda run: run.network(None), "several networks"),
        (lambda run: run.corruption("tiny_mlp", "rotaton"), "'rotaton'. Did you mean 'rotation'"),
        (
            lambda run: run.level("tiny_mlp", "rotation", 31.0),
            "level of rotation .*'31'.*15, 30, 90",
        ),
        (lambda run: run.select_methods(["qpif"]), "'qpif'. Did you mean 'qipf'"),
    ],
)
def test_unknown_names_raise(tiny_run, ask, phrase):
    with pytest.raises(QIPFError, match=phrase):
        ask(Run(tiny_run))


def test_runs_without_results_raise(tmp_path):
    (tmp_path / "results.jsonl").touch()
    with pytest.raises(QIPFError, match="There are no results in"):
        Run(tmp_path)


def test_clean_images_that_were_not_evaluated(tmp_path):
    run = written(tmp_path, record())
    assert run.clean_scores("net") is None
    with pytest.raises(QIPFError, match="not evaluated on clean images"):
        run.corruption("net", "none")


def test_chance():
    assert chance("aurc", [0.2]) == chance("pr_auc", [0.2]) == [0.2]
    assert (chance("augrc", [0.2]), chance("naurc", [0.2])) == ([0.1], [1.0])
    assert chance("roc_auc", [0.1, 0.3]) == [0.5, 0.5]
    assert chance("fpr95", [0.2]) == [0.95]


def test_a_run_restricted_to_some_methods_in_their_order(tiny_run):
    run = Run(tiny_run)
    every = len(run.records)
    part = run.restricted(["entropy", "qipf"])
    assert part.methods == ["entropy", "qipf"]
    assert {record["method"] for record in part.records} == {"entropy", "qipf"}
    assert part.networks == run.networks
    assert len(part.error_rate("tiny_mlp", "zoom")) == 3
    assert part.curve("tiny_mlp", "zoom", "energy", "roc_auc") == {}
    assert len(run.records) == every  # unchanged
    assert len(run.methods) == 5
