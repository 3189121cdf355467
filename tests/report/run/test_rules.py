"""The section of certified thresholds says what the rules say."""

from types import SimpleNamespace

import numpy as np
import pytest

from qipf.errors import QIPFInputError
from qipf.report.rule_words import share, why_nothing
from qipf.report.run.decisions import RISKS, halved_trial
from qipf.report.run.rules import rules_html
from qipf.report.run.run import Run
from tests.report.own.test_page import cells
from tests.report.run.test_page import plain


def stored_run(**corruptions):
    """A run of one network, from arrays: corruption -> level -> (scores by method, wrong)."""

    def scores(network, corruption, seed=None):
        if corruption not in corruptions:
            raise QIPFInputError("not kept")
        return corruptions[corruption]

    clean = corruptions.get("none", {0.0: (None, None)})[0.0][0]
    return SimpleNamespace(
        networks=["net"],
        seeds=[0],
        methods=["qipf", "softmax"],
        corruptions=lambda network: [name for name in corruptions if name != "none"],
        scores=scores,
        clean_scores=lambda network: clean,
    )


@pytest.fixture
def clean(rng):
    doubt = rng.random(4000)
    wrong = rng.random(4000) < doubt**4 / 4
    return {0.0: ({"qipf": doubt, "softmax": rng.random(4000)}, wrong)}


def test_every_rule_stands_there_with_what_it_does(paired_run):
    run = Run(paired_run)
    page = rules_html(run)
    for network in run.networks:
        scores, wrong = run.scores(network, "none")[0.0]
        rows = {row[0]: row[1:] for row in cells(page, f"{network}, by every score")}
        assert list(rows) == run.methods
        for name in run.methods:
            for text, risk in zip(rows[name], RISKS, strict=True):
                trial = halved_trial(scores[name], wrong, risk)
                sure = trial.rule.certified
                assert text == (f"{trial.coverage:.1%}" if sure else "nothing certified")
        for row, risk in zip(cells(page, f"{network}, by qipf"), RISKS, strict=True):
            trial = halved_trial(scores["qipf"], wrong, risk)
            told = [f"{trial.rule.threshold:.4g}", f"{trial.rule.coverage:.1%}"]
            told += [f"{trial.coverage:.1%}", f"{trial.risk:.2%}"]
            if not trial.rule.certified:
                told = ["–", "0.0%", "0.0%", "–"]
                assert why_nothing(trial.rule) in plain(page)
            assert row == [share(risk), told[0], f"{len(wrong) // 2:,}", *told[1:]]


def test_where_nothing_can_be_certified_it_says_so(rng):
    wrong = rng.random(1000) < 0.5
    page = plain(rules_html(stored_run(none={0.0: ({"qipf": rng.random(1000)}, wrong)})))
    for risk in ("1%", "5%", "10%"):
        told = f"At most {risk} wrong: nothing can be certified, so every prediction is held back."
        assert told in page
    assert "Even the least uncertain of 500 held-out predictions are wrong too often" in page
    assert "When the images are spoilt" not in page


def test_what_shift_does_is_told_by_its_worst_level(clean, rng):
    fine = {"qipf": np.zeros(4000)}, np.arange(4000) % 2 == 0
    worst = {"qipf": np.where(np.arange(4000) % 4 == 0, 0.0, 9.0)}, np.ones(4000, bool)
    far = {"qipf": np.full(4000, 9.0)}, np.ones(4000, bool)  # all held back
    run = stored_run(none=clean, rotation={15.0: fine, 30.0: worst, 60.0: far})
    text = plain(rules_html(run))
    accepted = text.split("of what the 5% rule still accepts, up to ")[1].split(").")[0]
    assert accepted.startswith("100% is wrong (rotation, 30 degrees, where it accepts 2")
    assert "When the data shifts it is void" in text


def test_a_limit_that_is_exceeded_is_marked(monkeypatch, clean):
    from qipf.report.run import rules as run_rules

    def unlucky(uncertainty, wrong, risk):
        made = halved_trial(uncertainty, np.zeros(len(wrong), bool), risk)
        return type(made)(made.rule, count=100, accepted=50, errors=25)

    monkeypatch.setattr(run_rules, "halved_trial", unlucky)
    text = plain(rules_html(stored_run(none=clean)))
    assert text.count("50.00% above the limit") == 3  # of qipf
    assert text.count("50.00% wrong: above the limit") == 6  # of both scores


def test_runs_without_scores_or_with_a_handful_say_so(rng):
    told = "The run kept no uncertainties of clean images (--no-keep-scores), or of too few"
    few = {0.0: ({"qipf": rng.random(19)}, np.zeros(19, bool))}
    for run in (stored_run(), stored_run(none=few)):
        assert told in plain(rules_html(run))
    enough = {0.0: ({"qipf": rng.random(20)}, np.zeros(20, bool))}
    text = plain(rules_html(stored_run(none=enough)))
    assert "10 held-out predictions are too few for that: 299 would be needed" in text


def test_without_qipf_the_other_scores_are_there(clean):
    scores, wrong = clean[0.0]
    page = rules_html(stored_run(none={0.0: ({"softmax": scores["softmax"]}, wrong)}))
    assert "by qipf" not in page
    assert [row[0] for row in cells(page, "net, by every score")] == ["softmax"]
