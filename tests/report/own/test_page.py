"""The page of one's own predictions says what the numbers say."""

import html
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from qipf import AcceptRule, QIPFInputError
from qipf.io.logits import Block
from qipf.metrics.error_detection import evaluate
from qipf.report.own.page import own_page, write_own_report
from qipf.report.own.study import METHODS, study
from qipf.report.run.decisions import Trial
from tests.conftest import make_logits

TRAIN = make_logits(400).double().numpy()
TEST = make_logits(300, seed=3).double().numpy()
NOISE = np.random.default_rng(0).normal(scale=4.0, size=TEST.shape)
LABELS = (TEST + NOISE).argmax(1)


@pytest.fixture(scope="module")
def labelled():
    return study(Block(TRAIN, TRAIN.argmax(1)), Block(TEST, LABELS))


def headings(page):
    return [html.unescape(text) for text in re.findall(r"<h2[^>]*>(.*?)</h2>", page)]


def cells(page, caption):
    """A table's rows by its caption's beginning, as texts."""
    table = next(
        part
        for part in re.findall(r"<table.*?</table>", page, re.S)
        if html.unescape(re.search(r"<caption>(.*?)</caption>", part)[1]).startswith(caption)
    )
    body = re.search(r"<tbody>(.*?)</tbody>", table, re.S)[1]
    return [
        [
            html.unescape(re.sub(r"<small>.*?</small>|<.*?>", "", cell))
            for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)
    ]


def test_the_sections_with_labels_and_without(labelled):
    page = own_page(labelled)
    assert headings(page) == [
        "In short", "Finding errors", "Right and wrong predictions", "Risk and coverage",
        "Training and test", "Most suspicious predictions", "A threshold", "How it was made",
    ]  # fmt: skip
    blind = own_page(study(Block(TRAIN), Block(TEST)))
    assert headings(blind) == [
        "In short", "Training and test", "Most suspicious predictions", "A threshold",
        "How it was made",
    ]  # fmt: skip
    assert "There are no labels, so nothing is said about errors" in blind
    assert "it says what is unusual, not what is wrong" in blind


def test_the_metrics_are_those_of_the_scores(labelled):
    rows = cells(own_page(labelled), "How well each score finds the errors.")
    assert [row[0] for row in rows] == list(METHODS)
    for name, *values in rows:
        metrics = evaluate(labelled.scores[name], labelled.wrong)
        del metrics["accuracy"]
        assert values == [f"{value:.3f}" for value in metrics.values()]


def test_the_summary_names_the_best_score(labelled):
    page = html.unescape(own_page(labelled))
    right = 1 - labelled.wrong.mean()
    assert f"The model is right in {right:.1%} of 300 test predictions" in page
    aucs = {name: evaluate(labelled.scores[name], labelled.wrong)["roc_auc"] for name in METHODS}
    best = max(aucs, key=aucs.get)
    told = "no other score does better." if best == "qipf" else f"{best} does better here: "
    assert told in page


def test_the_most_suspicious_come_first(labelled):
    rows = cells(own_page(labelled), "The 25 most uncertain test predictions.")
    order = np.argsort(-labelled.scores["qipf"], kind="stable")[:25]
    assert [int(row[0]) for row in rows] == order.tolist()
    assert [int(row[3]) for row in rows] == TEST.argmax(1)[order].tolist()
    assert [int(row[4]) for row in rows] == LABELS[order].tolist()


def test_shares_beyond_the_training_marks(labelled):
    rows = cells(own_page(labelled), "Test predictions beyond the marks")
    marks = np.quantile(labelled.usual["qipf"], [0.5, 0.9, 0.95, 0.99, 0.999])
    above = [(labelled.scores["qipf"] > mark).mean() for mark in marks]
    assert [row[2] for row in rows] == [f"{share:.1%}" for share in above]


RULE = AcceptRule(1.5, 0.05, 0.95, 150, 100, 2, max_risk=0.05, min_coverage=None)
NOTHING = AcceptRule(
    -math.inf, 1.0, 0.95, 150, 0, 0, max_risk=0.01, min_coverage=None, reachable_risk=0.21
)


@pytest.mark.parametrize("errors", [4, 40])
def test_the_threshold_tells_what_it_rests_on(labelled, errors):
    found = replace(labelled, trial=Trial(RULE, count=150, accepted=100, errors=errors))
    page = html.unescape(own_page(found))
    told = (
        "Suggested: accept predictions with an uncertainty of at most 1.5. With 95% confidence, at "
        "most 5% of what is accepted is wrong. Of 150 predictions it was not made from, it accepts "
        f"66.7%, of which {errors}% are wrong."
    )
    assert page.count(told) == 2  # in short, and in its section
    assert (
        "The test predictions were halved at random. It rests on 150 held-out predictions: 100 of "
        "them (66.7%) are accepted, of which 2 are wrong." in page
    )
    assert (
        "Tried on the other half: of 150 predictions 100 are accepted, of which "
        f"{errors} are wrong: {errors}.00%, 95 % interval" in page
    )
    assert "When the data shifts it is void" in page
    unlucky = "That is above the limit. The guarantee fails for one held-out half in 20 at most"
    assert (unlucky in page) == (errors == 40)


def test_a_rule_that_accepts_none_of_the_others_reads_well(labelled):
    found = replace(labelled, trial=Trial(RULE, count=150, accepted=0, errors=0))
    page = html.unescape(own_page(found))
    assert "Of 150 predictions it was not made from, it accepts 0%." in page
    assert "Tried on the other half" not in page


def test_where_nothing_can_be_certified_it_says_why_and_what_to_do(labelled):
    found = replace(labelled, trial=Trial(NOTHING, count=150, accepted=0, errors=0))
    page = html.unescape(own_page(found))
    told = (
        "No threshold is suggested: none can be certified to keep the error rate among accepted "
        "predictions at 1% or less."
    )
    assert page.count(told) == 2
    assert (
        "150 held-out predictions are too few for that: 299 would be needed even if none of them "
        "were wrong. The lowest limit that these predictions could have certified, had it been "
        "asked for beforehand, is 21%." in page
    )
    assert "A rule takes more labelled predictions, a higher limit (--risk)" in page
    assert "inf" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.S)


def test_a_perfect_model_and_one_that_is_always_wrong():
    for labels in (TEST.argmax(1), (TEST.argmax(1) + 1) % 10):
        page = own_page(study(Block(TRAIN), Block(TEST, labels)))
        assert "There are no right and wrong predictions to be told apart." in page


def test_files_are_read_and_the_page_is_whole(tmp_path):
    np.savez(tmp_path / "train.npz", logits=TRAIN)
    np.savez(tmp_path / "<test>.npz", logits=TEST, labels=LABELS)
    write_own_report(tmp_path / "train.npz", tmp_path / "<test>.npz", tmp_path / "mine.html")
    page = (tmp_path / "mine.html").read_text()
    assert "&lt;test&gt;.npz" in page
    assert "<test>" not in page
    assert str(tmp_path) not in page
    with pytest.raises(QIPFInputError, match=r"There is no file .*no\.npz"):
        write_own_report(tmp_path / "no.npz", tmp_path / "<test>.npz", tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()
