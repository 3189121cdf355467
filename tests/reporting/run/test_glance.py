"""The first section of a page answers four questions with the run's numbers."""

import json

import numpy as np
import pytest

from qipf.metrics.error_detection import roc_auc
from qipf.reporting.rule_evaluation import split_evaluation
from qipf.reporting.run.decision_sections import timelines
from qipf.reporting.run.glance import acceptance, detection, glance, glance_html
from qipf.reporting.run.results import Run
from qipf.reporting.tables import summarise
from tests.reporting.own.test_page import plain
from tests.reporting.test_tables import result


def glance_of(run, network):
    summary = summarise(run.records, ("roc_auc",), "all")
    line = next(line for line in summary.networks if line.network == network)
    return glance(run, line, summary.tables[0], len(run.methods), timelines(run))


def test_the_least_uncertain_within_a_limit():
    uncertainty = np.arange(10.0)
    wrong = np.isin(np.arange(10), (4, 9))
    assert acceptance(uncertainty, wrong, 0.01).share == 0.4
    assert acceptance(uncertainty, wrong, 0.12).share == 0.9  # 1 error among 9
    assert acceptance(uncertainty, wrong, 0.2).share == 1.0
    assert acceptance(-uncertainty, wrong, 0.01).share == 0.0
    found = acceptance(uncertainty, wrong, 0.5)
    assert found.certified == split_evaluation(uncertainty, wrong, 0.5)


def test_the_best_method_by_its_mean_and_well_known_ones():
    results = [
        *(result("n", "zoom", 2, m, v) for m, v in (("knn", 0.9), ("entropy", 0.8), ("svi", 0.7))),
        *(result("n", "shear", 2, m, v) for m, v in (("knn", 0.7), ("entropy", 0.6))),
        *(result("n", "none", 0, m, v) for m, v in (("knn", 0.99), ("entropy", 0.98))),
        result("alone", "zoom", 2, "knn", 0.9),
    ]
    table = summarise(results, ["roc_auc"], "all").tables[0]
    found = detection(table, "n")
    assert (found.method, found.clean) == ("knn", 0.99)
    assert found.roc_auc == pytest.approx(0.8)
    assert found.others == {"entropy": pytest.approx(0.7)}
    assert "nearest training example" in found.explanation
    assert detection(table, "alone") is None  # nothing to compare with


@pytest.mark.slow
def test_the_numbers_are_the_runs(tiny_run):
    run = Run(tiny_run)
    found = glance_of(run, "tiny_mlp")
    kept = [run.scores("tiny_mlp", name) for name in ("rotation", "zoom")]
    levels = [level for by_level in kept for level in by_level.values()]
    assert found.levels == len(levels) == 5
    assert found.corrupted_accuracy == pytest.approx(np.mean([1 - w.mean() for _, w in levels]))
    scores, wrong = run.clean_scores("tiny_mlp")
    assert found.line.accuracy == pytest.approx(1 - wrong.mean())
    best = found.detection
    assert best.clean == pytest.approx(roc_auc(scores[best.method], wrong), abs=1e-6)
    aucs = {
        name: np.mean([np.mean([roc_auc(s[name], w) for s, w in k.values()]) for k in kept])
        for name in run.methods
    }
    assert best.roc_auc == pytest.approx(max(aucs.values()), abs=1e-6)
    assert best.method == max(aucs, key=aucs.get)
    assert list(found.accepted) == ["qipf"]
    assert list(found.accepted["qipf"]) == [0.01, 0.05]
    streams = timelines(run)
    assert found.streams == {c: streams["tiny_mlp", c] for c in ("rotation", "zoom")}
    delays = [line.delay for line in found.streams.values() if line.alarm_level is not None]
    assert found.delay == np.median(delays)

    summary = summarise(run.records, ("roc_auc",), "all")
    text = plain(glance_html(run, summary, run, streams))
    assert f"{found.line.accuracy:.1%} right" in text
    assert f"{100 * best.roc_auc:.0f} of 100 cases; guessing gives 50" in text
    assert "It is the highest of 5 methods" in text
    share = found.accepted["qipf"][0.01].share
    assert f"At most 1% wrong: {share:.1%} of the clean inputs by qipf." in text
    assert f"after {found.delay:,.0f} predictions" in text


def test_a_run_of_out_of_distribution_sets_has_one_card(tmp_path):
    values = {"qipf": 0.997, "entropy": 0.7}
    records = [result("cifar10_lenet", "svhn", 0, m, v, seed=0) for m, v in values.items()]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    run = Run(tmp_path)
    text = plain(glance_html(run, summarise(records, ("roc_auc",), "all"), run, {}))
    assert "Are unusual inputs found? 99.7 of 100" in text
    assert "qipf finds the out-of-distribution one more uncertain in 99.7 of 100 cases" in text
    for absent in ("How good", "accepted without review", "drift"):
        assert absent not in text
