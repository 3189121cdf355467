"""qipf.report: the page of a model of one's own."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import entr, softmax

import qipf
from qipf import QIPF, FeatureQIPF, LayeredQIPF, QIPFError, QIPFInputError, wrap
from qipf.metrics.error_detection import evaluate
from tests.plots.models import LABELS, LOGITS, NET, batches, features, held_out, inputs
from tests.reporting.own.test_page import cells, headings, plain

FIELD = QIPF(bandwidth=1.0).fit(LOGITS, LABELS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "page.html"


@pytest.fixture(scope="module")
def models():
    """Models, test data as they take it, and what their uncertainty takes."""
    x, truth = inputs(2)
    logits = held_out(2)[0]
    return {
        "field": (FIELD, (logits, truth), (logits,)),
        "wrap": (wrap(NET, field=FIELD), batches(2), (x,)),
        "layers": (LayeredQIPF(NET, max_tuning=60).fit(batches(0)), batches(2), (x,)),
        "features": (
            FeatureQIPF(max_tuning=60).fit(features(0), LOGITS, LABELS),
            (features(2), logits, truth),
            (features(2), logits),
        ),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The layers are")
@pytest.mark.parametrize("kind", ["field", "wrap", "layers", "features"])
def test_the_page_of_every_model(models, kind, path):
    model, data, given = models[kind]
    found = qipf.report(model, data, path, max_risk=0.2)
    logits, truth = (part.numpy() for part in held_out(2))
    wrong = logits.argmax(1) != truth
    np.testing.assert_allclose(found.uncertainty, model.uncertainty(*given), rtol=1e-5)
    np.testing.assert_allclose(found.novelty, model.novelty(*given), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.scores["entropy"], entr(softmax(logits, 1)).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(found.wrong, wrong)
    np.testing.assert_array_equal(found.labels, truth)
    page = path.read_text()
    rows = {row[0]: row[1:] for row in cells(page, "How well each score finds the errors.")}
    area = evaluate(found.uncertainty, wrong)["roc_auc"]
    assert rows["this model"][0] == f"{area:.3f}"
    assert repr(found).startswith(
        f"Study(240 predictions, {100 * wrong.mean():.4g} % wrong, ROC-AU"
    )
    text = plain(page)
    assert f"qipf.report(model, data, {str(path)!r}, max_risk=0.2)" in text
    assert all(value.split("\n")[0] in text for value in model.facts().values())
    assert found.evaluation.rule.max_risk == 0.2
    assert "--" not in text.replace(str(path), "")


def test_held_out_data_and_the_rule_of_the_model(path):
    field = QIPF(bandwidth=1.0).fit(LOGITS, LABELS).calibrate(*held_out(1))
    rule = field.accept_rule(max_risk=0.3, min_novelty_p=0.1)
    logits, truth = held_out(2)
    found = qipf.report(field, (logits, truth), path)
    accepted = rule(*field.both_scores(logits)).numpy()
    assert (found.own_rule.accepted, found.own_rule.count) == (accepted.sum(), 240)
    assert found.own_rule.errors == (found.wrong & accepted).sum()
    text = plain(path.read_text())
    assert f"own rule accepts {100 * accepted.mean():.3g}% of the test predictions, and " in text
    assert "it promises at most 30% for data like its calibration set." in text
    rows = cells(path.read_text(), "Test predictions above quantiles")
    marks = np.quantile(field.calibration_.novelty, [0.5, 0.9, 0.95, 0.99, 0.999])
    above = [f"{(found.novelty > mark).mean():.1%}" for mark in marks]
    assert [row[4] for row in rows] == above
    assert "A threshold" not in headings(path.read_text())  # the model has its own
    requested = qipf.report(field, (logits, truth), path, max_risk=0.6)
    assert "A threshold" in headings(path.read_text())
    assert requested.threshold["target"] == 0.6
    assert replace(requested, requested=False).threshold is None  # as on the page
    assert f"{above[2]} of them are more novel than 95% of the held-out predictions." in text


def test_without_labels_or_calibration_the_page_says_what_to_pass(path):
    found = qipf.report(FIELD, (held_out(3)[0][:50],), path)
    assert repr(found) == "Study(50 predictions)"
    assert found.evaluation is found.own_rule is None
    text = plain(path.read_text())
    assert "test data with labels, or held-out data with model.calibrate." in text


def test_a_model_that_uses_the_entropy_is_told_first(path):
    unlabelled = QIPF(bandwidth=1.0).fit(LOGITS)  # nothing speaks against the field
    for field, told in ((FIELD, True), (unlabelled, False)):
        for model in (field, wrap(NET, field=field)):
            data = held_out(2) if model is field else batches(2)
            found = qipf.report(model, data, path)
            text = plain(path.read_text())
            expected = "In short The uncertainty of this model is the entropy of the softmax, which"
            assert (expected in text) == found.by_entropy == told


def test_a_rule_that_certifies_nothing(path):
    field = QIPF(bandwidth=1.0).fit(LOGITS, LABELS).calibrate(*held_out(1))
    field.accept_rule(max_risk=0.001)
    qipf.report(field, held_out(2), path)
    told = "own rule accepts 0% of the test predictions; nothing is certified."
    assert told in plain(path.read_text())


def test_lines_of_a_fact_stay_lines(monkeypatch, path):
    monkeypatch.setattr(QIPF, "facts", lambda _: {"layers": "one\ntwo"})
    qipf.report(FIELD, held_out(2), path)
    page = path.read_text()
    assert "<dt>layers</dt><dd>one\ntwo</dd>" in page
    assert re.search(r"\.facts dd \{[^}]*white-space: pre-line;", page)


def test_texts_are_escaped(tmp_path):
    path = tmp_path / "<i>&'.html"
    layer = torch.nn.Sequential()
    layer.add_module("<img src=x>", NET)
    model = wrap(layer, "<img src=x>", field=QIPF(bandwidth=1.0)).fit(batches(0))
    qipf.report(model, batches(2), path)
    page = path.read_text()
    assert "&lt;img src=x&gt;" in page
    assert "<img src=x" not in page
    assert "<i>" not in page


def test_invalid_arguments_raise_before_the_work(path):
    with pytest.raises(QIPFInputError, match="needs a fitted model of qipf, .* got Sequential"):
        qipf.report(NET, batches(2), path)
    with pytest.raises(QIPFInputError, match="max_risk must lie between 0 and 1"):
        qipf.report(FIELD, held_out(2), path, max_risk=5)
    with pytest.raises(QIPFError, match="html"):
        qipf.report(FIELD, held_out(2), path.with_suffix(".txt"))
    with pytest.raises(QIPFInputError, match="tuple of the arrays"):
        qipf.report(FIELD, LOGITS, path)
    with pytest.raises(QIPFInputError, match=r"order is report\(model, data, path\)"):
        qipf.report(FIELD, path, held_out(2))
    assert not path.exists()
