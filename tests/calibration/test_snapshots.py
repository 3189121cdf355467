"""Models that are fitted or calibrated while they score: a call belongs to one fit."""

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf.calibration.mixin import CalibrationMixin
from qipf.field import estimator
from tests.conftest import make_logits

OLD, NEW = make_logits(200).numpy(), make_logits(150, spread=0.3, seed=1).numpy() + 3
ROWS, HELD_OUT = make_logits(20, seed=2).numpy(), make_logits(90, seed=3).numpy()


def fitted(rows, orders=(1, 2, 3, 4)):
    field = qipf.QIPF(bandwidth="silverman", orders=orders).fit(rows)
    return field.calibrate(HELD_OUT, np.arange(90) % 10)


@pytest.mark.parametrize("method", ["uncertainty", "modes", "potential", "p_values", "predict"])
@pytest.mark.parametrize("again", ["fit", "fit and calibrate", "partial_fit"])
def test_a_fit_during_a_call_does_not_change_it(monkeypatch, method, again):
    """The fit begins and ends, as in another thread, after the call has computed the moments."""
    field = fitted(OLD)
    expected, plain = getattr(field, method)(ROWS), qipf.QIPF._moments

    def moments(self, rows):
        found = plain(self, rows)
        monkeypatch.setattr(qipf.QIPF, "_moments", plain)
        if again == "partial_fit":
            field.partial_fit(NEW).build()
        else:
            field.fit(NEW)
        if again == "fit and calibrate":
            field.calibrate(HELD_OUT)
        return found

    monkeypatch.setattr(qipf.QIPF, "_moments", moments)
    np.testing.assert_array_equal(getattr(field, method)(ROWS), expected)
    assert not np.array_equal(field.uncertainty(ROWS), fitted(OLD).uncertainty(ROWS))


def test_a_call_during_a_fit_is_of_the_fit_before(monkeypatch):
    field, seen = fitted(OLD), []
    expected, plain = field(ROWS), estimator.build_field

    def build(*arguments):
        engine = plain(*arguments)
        seen.append(field(ROWS))
        return engine

    monkeypatch.setattr(estimator, "build_field", build)
    field.fit(NEW)
    assert field.calibration_ is None
    for name, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(seen[0], name), value, err_msg=name)


def test_calibration_set_and_rule_change_together(monkeypatch):
    field = fitted(OLD)
    field.accept_rule(max_risk=0.99)
    before, seen = field.calibration_, []

    class Calibration(CalibrationMixin._set_calibration.__globals__["Calibration"]):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            seen.append((field.calibration_, field.rule_))

    monkeypatch.setattr("qipf.calibration.mixin.Calibration", Calibration)
    rule = field.rule_
    field.calibrate(HELD_OUT[:50])
    assert seen == [(before, rule)]
    assert field.rule_ is None
    assert len(field.calibration_) == 50


@pytest.mark.parametrize(("kind", "step"), [(qipf.wrap, "_run"), (qipf.LayeredQIPF, "_row_scores")])
def test_a_network_fitted_again_during_a_call(monkeypatch, kind, step):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    inputs = torch.randn(240, 4)
    labels, rows = inputs[:, :3].argmax(1), inputs[:30]
    model = kind(net).fit([(inputs, labels)]).calibrate([(inputs[:120] + 0.01, labels[:120])])
    expected, plain = model(rows), getattr(type(model), step)

    def fit(self, *arguments):
        monkeypatch.setattr(type(model), step, plain)
        model.fit([(3 * inputs[:200], labels[:200])])
        return plain(self, *arguments)

    monkeypatch.setattr(type(model), step, fit)
    found = model(rows)
    assert torch.equal(found.uncertainty, expected.uncertainty)
    assert torch.equal(found.p_value, expected.p_value)
    assert model.calibration_ is None
    assert not torch.equal(model(rows).uncertainty, expected.uncertainty)
