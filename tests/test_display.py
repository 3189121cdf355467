"""What results say of themselves: short, true, and escaped in HTML."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from qipf import (
    QIPF,
    Calibration,
    FeatureQIPF,
    LayeredQIPF,
    Prediction,
    ShiftMonitor,
    accept_rule,
    estimate_accuracy,
    risk_coverage,
    wrap,
)
from qipf.display import Shown, aligned
from qipf.layered.explanation import Explanation, LayerPosterior, Neighbor

LOGITS = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 3)))
EVIL = "<script>alert('&')</script>"


def test_values_are_below_each_other_however_long_the_names():
    text = aligned({"a": "1\n2", "fifteen letters": "3"})
    assert text == "a                1\n                 2\nfifteen letters  3"
    assert aligned({"a": "1"}) == "a             1"


def test_html_is_escaped():
    html = Shown(EVIL, {EVIL: f"{EVIL}\n{EVIL}"}, (EVIL,), [(EVIL,)], EVIL).html()
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;") == 7
    assert html.count("<br>") == 1


def test_html_without_facts_or_rows_has_no_tables():
    assert Shown("title", {}).html() == "<p><strong>title</strong></p>"
    assert Shown("title", {}).text() == "title"


def prediction(**changes):
    count = 8
    values = {
        "logits": torch.zeros(count, 3),
        "predicted": torch.arange(count) % 3,
        "uncertainty": torch.arange(count, dtype=torch.float32),
        "p_value": torch.tensor([0.01, 0.04, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),
        "p_error": torch.full((count,), 0.25),
        "accepted": torch.tensor([True, True, True, False, False, False, False, False]),
    }
    return Prediction(**{**values, **changes})


def test_a_prediction_shows_counts_shares_and_the_first_rows():
    assert str(prediction()).splitlines() == [
        "Prediction of 8 inputs, 3 classes",
        "  uncertainty   median 3.5, nine of ten from 0.35 to 6.65",
        "  p_value       at most 0.05: 2 (25 %)",
        "  p_error       mean 25 %",
        "  accepted      3 (37.5 %)",
        "     predicted  uncertainty  p_value  p_error  accepted",
        "  0          0            0    0.010    25.0%       yes",
        "  1          1            1    0.040    25.0%       yes",
        "  2          2            2    0.500    25.0%       yes",
        "  3          0            3    0.500    25.0%        no",
        "  4          1            4    0.500    25.0%        no",
        "  … and 3 more",
    ]
    assert repr(prediction()) == str(prediction())
    assert prediction()._repr_html_().count("<tr>") == 4 + 6


def test_predictions_of_all_kinds_can_be_shown():
    scores = torch.tensor([[1.0, torch.nan], [3.0, 2.0]])
    pixels = Prediction(torch.zeros(2, 4, 1, 2), torch.zeros(2, 1, 2), scores[:, None])
    text = str(pixels)
    assert "2 inputs, 4 classes, 1 × 2 predictions each" in text
    assert "without scores  1 (NaN or infinity in the logits)" in text
    assert len(text.splitlines()) == 3
    half = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    assert "uncertainty   1\n" in str(Prediction(torch.zeros(3, 2), np.zeros(3, int), half))
    nothing = Prediction(np.zeros((0, 2)), np.zeros(0, int), np.zeros(0))
    assert str(nothing) == "Prediction of 0 inputs, 2 classes"
    unknown = Prediction(np.zeros((1, 2)), np.zeros(1, int), np.array([np.nan]))
    assert "uncertainty     none" in str(unknown)


def test_a_rule_says_what_it_accepts_and_promises():
    rule = accept_rule(np.linspace(0, 1, 400), np.zeros(400, bool), max_risk=0.05)
    assert repr(rule) == (
        f"AcceptRule(threshold={rule.threshold:.6g}: 100 % of 400 accepted, at most 5 % wrong with "
        "95 % confidence)"
    )
    none = accept_rule([0.1, 0.2], [True, True])
    assert "0 % of 2 accepted, nothing certified" in repr(none)
    novel = accept_rule(
        np.linspace(0, 1, 400), np.zeros(400, bool), 0.05,
        novelty=np.arange(400.0), min_novelty_p=0.1,
    )  # fmt: skip
    assert f"max_novelty={novel.max_novelty:.6g}: 90" in repr(novel)
    assert all(line in rule._repr_html_() for line in str(rule).splitlines())


def test_a_verdict_and_its_monitor(rng):
    held_out = Calibration(rng.normal(size=300), rng.random(300) < 0.1)
    monitor = ShiftMonitor(held_out, window=100)
    quiet = monitor.update_scores(rng.normal(size=120))
    assert repr(quiet) == f"Verdict(no shift found, 120 predictions, p-value {quiet.p_value:.3g})"
    loud = monitor.update_scores(rng.normal(3.0, size=60))
    found = f"shift, alarm at {loud.alarm_at}, change point about {loud.change_point}, 180 pred"
    assert found in repr(loud)
    assert repr(monitor) == f"ShiftMonitor(alpha=0.01, uncertainty: {repr(loud)[8:-1]})"
    text = str(loud)
    assert f"  last 100      {loud.window}" in text
    assert f"  first 100     {loud.start}" in text
    assert f"estimated {loud.accuracy}" in text
    assert f"probability {loud.window.superiority:.3f};" in text
    assert "10 to the power of" in monitor._repr_html_()
    assert repr(loud.window) != str(loud.window)


def test_an_accuracy_says_how_sure_it_is():
    held_out = Calibration(np.arange(100.0), np.arange(100) >= 90)
    found = estimate_accuracy(np.arange(50.0), held_out)
    low, high = (f"{100 * share:.4g} %" for share in (found.low, found.high))
    assert repr(found) == (
        f"AccuracyEstimate(100 % (95 % interval {low} to {high}) of 50 predictions, from 100 "
        "held-out ones)"
    )
    assert low in found._repr_html_()


def test_a_curve_is_one_line():
    curve = risk_coverage([0.1, 0.2, 0.2, 0.9], [False, False, True, True])
    assert repr(curve) == "RiskCoverage(3 thresholds, 50 % wrong at full coverage)"


def explanation(name="softmax", novelty=0.5):
    return Explanation(
        1, -2.0, 0.9, (LayerPosterior(name, 1.0, 1, 0.8, 0.8, 1.0),), name, 2,
        (Neighbor(7, 1, 0.99),), (), novelty, (("constant", -2.0),), (("energy", 0.5),),
    )  # fmt: skip


def test_an_explanation_in_a_notebook():
    assert repr(explanation()) == "Explanation(class 1, uncertainty -2, novelty above zero)"
    assert repr(explanation(novelty=None)) == "Explanation(class 1, uncertainty -2)"
    html = explanation(EVIL)._repr_html_()
    assert "<script" not in html
    for text in ("7 (cosine 0.990)", "class 2: none", "-2 = -2 (constant)", "80.0%"):
        assert text in html


@pytest.mark.filterwarnings("ignore:The layers are")
@pytest.mark.parametrize("kind", ["field", "wrap", "layers", "features"])
def test_a_model_shows_its_facts(kind, rng):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    batches = [(LOGITS.float(), LOGITS.argmax(1))]
    model, data = {
        "field": (QIPF(bandwidth=1.0), (LOGITS,)),
        "wrap": (wrap(net, field=QIPF(bandwidth=1.0)), (batches,)),
        "layers": (LayeredQIPF(net, max_tuning=20), (batches,)),
        "features": (FeatureQIPF(max_tuning=20), ({"a": LOGITS}, LOGITS, LOGITS.argmax(1))),
    }[kind]
    assert model._repr_html_() == f"<p><strong>{repr(model).replace(chr(39), '&#39;')}</strong></p>"
    html = model.fit(*data)._repr_html_()
    assert "<th" in html
    lines = [line[14:].strip() for line in model.summary().splitlines()]
    shown = re.sub(r"<[^>]*>", " ", html)
    assert all(line in shown for line in lines if line.isascii() and not set(line) & set("'\"<>&"))


def test_showing_a_field_does_not_build_it():
    field = QIPF(bandwidth=1.0).partial_fit(LOGITS)
    bundle = field._repr_mimebundle_(include=None, exclude=None)
    assert bundle == {"text/plain": "QIPF(bandwidth=1.0)", "text/html": field._repr_html_()}
    assert wrap(nn.Linear(3, 3), field=field)._repr_html_().count("<table") == 0
    assert not hasattr(field, "centers_")
    assert "200 rows of 3 numbers" in field.build()._repr_mimebundle_()["text/html"]
