"""The page of one's own predictions says what the numbers say."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest

from qipf import QIPFInputError
from qipf.bench.evaluation import evaluate
from qipf.report.own import own_page, write_own_report
from qipf.report.own_study import METHODS, Threshold, study
from qipf.tables import Block
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


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        (4, "Suggested: trust predictions up to an uncertainty of 1.5. On test predictions it was "
            "not chosen on, it keeps 66.7% with an error rate of 4.00% (wanted: at most 5.00%)."),
        (40, "No threshold is suggested: the one that keeps to an error rate of 5.00% on half of "
             "the test predictions (1.5) gives 40.00% on the other half."),
    ],
)  # fmt: skip
def test_the_threshold_tells_what_it_rests_on(labelled, errors, told):
    limit = Threshold(1.5, target=0.05, chosen_on=150, checked_on=150, kept=100, errors=errors)
    page = html.unescape(own_page(replace(labelled, threshold=limit)))
    assert page.count(told) == 2  # in short, and in its section
    assert "Chosen on a random half of the test predictions (150)" in page
    assert f"Tried on the other half (150): 100 kept, of which {errors} are wrong" in page
    assert "It is no guarantee" in page


def test_where_no_threshold_keeps_to_the_target_none_is_suggested(labelled):
    page = own_page(replace(labelled, threshold=None))
    assert page.count("No threshold is suggested: none keeps enough predictions") == 2


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
