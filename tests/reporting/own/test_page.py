"""The page of one's own predictions says what the numbers say."""

import html
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from qipf import QIPF, AcceptRule, QIPFFileError
from qipf.io.logits import Block
from qipf.metrics.error_detection import evaluate
from qipf.reporting.own.page import own_page, write_own_report
from qipf.reporting.own.study import METHODS, OWN, study
from qipf.reporting.page import render
from qipf.reporting.rule_evaluation import RuleEvaluation
from tests.conftest import make_logits

TRAIN = make_logits(400).double().numpy()
TEST = make_logits(300, seed=3).double().numpy()
NOISE = np.random.default_rng(0).normal(scale=4.0, size=TEST.shape)
LABELS = (TEST + NOISE).argmax(1)


HELD_OUT = make_logits(500, seed=4).double().numpy()


@pytest.fixture(scope="module")
def field():
    return QIPF().fit(TRAIN, TRAIN.argmax(1)).calibrate(HELD_OUT)


@pytest.fixture(scope="module")
def labelled(field):
    return study(field, Block(TEST, LABELS))


@pytest.fixture(scope="module")
def page(labelled):
    return own_page(labelled)


def plain(page):
    """The text of a page, without tags, style, script and repeated blanks."""
    bare = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page, flags=re.S)
    return re.sub(r"\s+([.,;])", r"\1", re.sub(r"\s+", " ", html.unescape(bare)))


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


@pytest.mark.slow
def test_the_sections_with_labels_and_without(page, field):
    assert headings(page) == [
        "In short", "Finding errors", "Right and wrong predictions", "Risk and coverage",
        "Held out and test", "Most uncertain predictions", "A threshold", "How it was made",
    ]  # fmt: skip
    blind = own_page(study(field, Block(TEST)))
    assert headings(blind) == [
        "In short", "Held out and test", "Most uncertain predictions", "A threshold",
        "How it was made",
    ]  # fmt: skip
    assert "There are no labels, so errors are unknown" in blind
    assert "it shows what is unusual, not what is wrong" in blind


def test_without_held_out_predictions_nothing_is_said_about_shift():
    alone = plain(own_page(study(QIPF(bandwidth=3.0).fit(TRAIN), Block(TEST))))
    assert "Held out and test" not in alone
    assert "held-out predictions; 5% are expected" not in alone
    assert "Whether the data has shifted is not shown" in alone
    assert "No threshold is suggested: there are neither labels nor held-out predictions" in alone
    assert "300 test predictions. " in alone


@pytest.mark.slow
def test_the_metrics_are_those_of_the_scores(labelled, page):
    rows = cells(page, "How well each score finds the errors.")
    assert [row[0] for row in rows] == list(METHODS)
    for name, *values in rows:
        metrics = evaluate(labelled.scores[name], labelled.wrong)
        del metrics["accuracy"]
        small = {"aurc", "augrc"}
        shown = [f"{value:{'.2g' if kind in small else '.3f'}}" for kind, value in metrics.items()]
        assert values == shown


def test_the_summary_names_the_best_score(labelled, page):
    page = plain(page)
    right = 1 - labelled.wrong.mean()
    assert f"The model is right in {right:.1%} of 300 test predictions" in page
    aucs = {name: evaluate(labelled.scores[name], labelled.wrong)["roc_auc"] for name in METHODS}
    best = max(aucs, key=aucs.get)
    told = "no other score does better." if best == OWN else f"{best} does better here: "
    assert told in page


def test_differences_below_the_shown_digits_are_not_reported(labelled):
    found = replace(labelled)
    found.metrics.update({name: {"roc_auc": area} for name, area in AREAS.items()})
    assert found.best == OWN
    text = plain(render("own.html", "summary", found=found, flagged=0.05, own=OWN))
    assert (
        "with probability 0.969 (ROC-AUC of this model; chance is 0.5); no other score does" in text
    )
    found.metrics["energy"] = {"roc_auc": 0.9696}
    assert found.best == "energy"


AREAS = {OWN: 0.9686, "softmax": 0.9694, "entropy": 0.9, "energy": 0.8}


def test_a_certified_rule_of_the_model_comes_before_one_from_the_test_data(labelled):
    second = RuleEvaluation(NOTHING, 150, 0, 0)
    for own, shown in ((RULE, False), (NOTHING, True)):
        found = replace(labelled, evaluation=second, own_rule=RuleEvaluation(own, 300, 200, 2))
        summary = plain(render("own.html", "summary", found=found, flagged=0.05, own=OWN))
        assert "The model's own rule accepts" in summary
        assert ("No threshold can be certified" in summary) == shown
        section = plain(render("own.html", "threshold", found=found, count=4))
        assert ("a second rule, made from half of the test predictions;" in section) != shown
        assert ("Until there is a rule" in section) == shown
        assert "No threshold can be certified" in section


def test_the_most_uncertain_come_first(labelled, page):
    best = labelled.best
    rows = cells(page, f"The 25 most uncertain test predictions, by {best}.")
    order = np.argsort(-labelled.scores[best], kind="stable")[:25]
    assert [int(row[0]) for row in rows] == order.tolist()
    assert [int(row[1]) for row in rows] == TEST.argmax(1)[order].tolist()
    assert [int(row[2]) for row in rows] == LABELS[order].tolist()
    assert [row[3] for row in rows] == [f"{labelled.scores[best][k]:.4g}" for k in order]
    below = [(labelled.reference < labelled.uncertainty[k]).mean() for k in order]
    assert [row[-1] for row in rows] == [f"{share:.1%}" for share in below]


def test_shares_above_quantiles_of_the_held_out_data(labelled, page):
    rows = cells(page, "Test predictions above quantiles")
    marks = np.quantile(labelled.reference, [0.5, 0.9, 0.95, 0.99, 0.999])
    above = [(labelled.uncertainty > mark).mean() for mark in marks]
    assert [row[2] for row in rows] == [f"{share:.1%}" for share in above]


RULE = AcceptRule(1.5, 0.05, 0.95, 150, 100, 2, max_risk=0.05, min_coverage=None)
NOTHING = AcceptRule(
    -math.inf, 1.0, 0.95, 150, 0, 0, max_risk=0.01, min_coverage=None, reachable_risk=0.21
)


def text_of(labelled, rule, **results):
    evaluation = RuleEvaluation(rule, count=150, **results)
    found = replace(labelled, evaluation=evaluation)
    return plain(render("own.html", "threshold", found=found, count=4))


@pytest.mark.parametrize("errors", [4, 40])
def test_the_threshold_comes_with_the_rules_own_text(labelled, errors):
    page = text_of(labelled, RULE, accepted=100, errors=errors)
    lines = str(RULE).splitlines()
    suggestion = (
        f"Suggested, by {labelled.best}: {lines[0]} {lines[1]} Of 150 other predictions this rule "
        f"accepts 66.7%, and {errors}% of these are wrong."
    )
    assert suggestion in page
    for line in lines[2:]:
        assert line in page
    assert f"100 are accepted, and {errors} of these are wrong: {errors}.00%, 95 % inter" in page
    assert ("This is above the limit." in page) == (errors == 40)


def test_a_rule_that_accepts_none_of_the_others(labelled):
    page = text_of(labelled, RULE, accepted=0, errors=0)
    assert "Of 150 other predictions this rule accepts 0%." in page
    assert "Evaluated on the other half" not in page


def test_where_nothing_can_be_certified_the_rule_gives_the_reason(labelled):
    page = text_of(labelled, NOTHING, accepted=0, errors=0)
    assert " ".join(str(NOTHING).splitlines()[:2]) in page
    assert str(NOTHING).splitlines()[-1] in page
    assert "A rule needs more labelled predictions, a higher limit (--risk)" in page
    assert "Suggested" not in page
    assert " inf" not in page


@pytest.mark.parametrize(("shift", "kind"), [(0, "right"), (1, "wrong")])
def test_a_perfect_model_and_one_that_is_always_wrong(field, shift, kind):
    labels = (TEST.argmax(1) + shift) % 10
    page = own_page(study(field, Block(TEST[:40], labels[:40])))
    assert f"All test predictions are {kind}" in page


@pytest.mark.slow
def test_files_are_read_and_the_page_is_whole(tmp_path):
    np.savez(tmp_path / "train.npz", logits=TRAIN)
    np.savez(tmp_path / "<test>.npz", logits=TEST, labels=LABELS)
    write_own_report(tmp_path / "train.npz", tmp_path / "<test>.npz", tmp_path / "mine.html")
    page = (tmp_path / "mine.html").read_text()
    assert "&lt;test&gt;.npz" in page
    assert "<test>" not in page
    with pytest.raises(QIPFFileError, match=r"There is no file .*no\.npz"):
        write_own_report(tmp_path / "no.npz", tmp_path / "<test>.npz", tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()


@pytest.mark.slow
def test_the_command_is_the_one_that_was_run_and_the_fit_that_of_qipf_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, array in (
        ("train", TRAIN), ("train_y", TRAIN.argmax(1)), ("held", HELD_OUT), ("my test", TEST),
        ("y", LABELS),
    ):  # fmt: skip
        np.save(f"{name}.npy", array)
    found = write_own_report(
        "train.npy", "my test.npy", "mine.html", labels="y.npy", target=0.4,
        calibrate="held.npy", train_labels="train_y.npy",
    )  # fmt: skip
    expected = QIPF().fit(TRAIN, TRAIN.argmax(1)).calibrate(HELD_OUT)
    assert found.model.n_samples_seen_ == len(TRAIN)
    np.testing.assert_array_equal(found.uncertainty, expected.uncertainty(TEST))
    np.testing.assert_array_equal(found.reference, expected.calibration_.scores)
    assert found.labels.tolist() == LABELS.tolist()
    command = (
        "qipf report --train train.npy --train-labels train_y.npy --calibrate held.npy "
        "--test 'my test.npy' --labels y.npy --risk 0.4 -o mine.html"
    )
    assert command in plain((tmp_path / "mine.html").read_text())


@pytest.mark.slow
def test_clean_data_shows_no_shift_and_other_data_does():
    """A network treats its training rows differently; only other rows show what is usual."""
    learned = TRAIN * 0.5
    field = QIPF(bandwidth=3.0).fit(learned[:320])
    usual = np.quantile(field.uncertainty(learned[320:]), 0.9)
    assert (field.uncertainty(TEST) > usual).mean() > 0.5  # what other training rows would say
    found = study(field.calibrate(HELD_OUT), Block(TEST))
    assert found.above(0.9)[1] == pytest.approx(0.1, abs=0.04)
    assert study(field, Block(TEST * 2)).above(0.9)[1] > 0.5
