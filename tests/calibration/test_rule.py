"""AcceptRule: masks of the kind that came, nothing unusable accepted, and what it says."""

import re
from dataclasses import FrozenInstanceError, asdict, replace

import numpy as np
import pytest
import torch

from qipf import AcceptRule, QIPFInputError, QIPFWarning, accept_rule
from qipf.calibration.accept_rule import Tally

RULE = AcceptRule(
    threshold=1.25,
    risk_bound=0.02,
    confidence=0.95,
    held_out=1000,
    accepted=700,
    errors=7,
    max_risk=0.02,
    min_coverage=None,
)


def test_the_mask_is_of_the_kind_that_came():
    values = [-3.0, 1.25, np.nextafter(1.25, 2), 9.0]
    expected = [True, True, False, False]
    array = RULE(np.array(values))
    assert isinstance(array, np.ndarray)
    assert (array.dtype, array.tolist()) == (bool, expected)
    tensor = RULE(torch.tensor(values, dtype=torch.float64, requires_grad=True))
    assert (tensor.dtype, tensor.tolist()) == (torch.bool, expected)
    assert RULE(values).tolist() == expected
    assert RULE(1.0).tolist() == [True]
    assert RULE([]).tolist() == RULE(torch.empty(0)).tolist() == []


def test_the_threshold_is_not_rounded_to_a_narrower_kind():
    rule = replace(RULE, threshold=0.1)  # 0.1 as float32 is more than 0.1
    assert not rule(torch.tensor([0.1]))
    assert not rule(np.array([0.1], np.float32))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_nan_and_infinity_are_abstained_from_and_counted(as_tensor):
    values = np.array([0.0, np.nan, np.inf, -np.inf, 0.5])
    values = torch.from_numpy(values) if as_tensor else values
    with pytest.warns(QIPFWarning) as told:
        accept = RULE(values)
    assert accept.tolist() == [True, False, False, False, True]
    assert str(told[0].message) == (
        "3 of 5 uncertainties are NaN or infinite (first: row 1); the rule abstains from these "
        "predictions."
    )
    assert RULE.tally(values) == Tally(accepted=2, abstained=3, unusable=3)
    all_accepting = replace(RULE, threshold=np.finfo(float).max)
    assert all_accepting.tally(values) == Tally(2, 3, 3)


@pytest.mark.parametrize(
    ("uncertainty", "message"),
    [
        (np.zeros((2, 2)), "uncertainty must have one dimension"),
        (torch.zeros(2, 2), "uncertainty must have one dimension"),
        (torch.zeros(2, dtype=torch.complex64), "uncertainty must hold real numbers"),
        (["a"], "uncertainty must hold real numbers"),
    ],
)
def test_what_is_no_uncertainty_is_refused(uncertainty, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        RULE(uncertainty)


def test_it_says_what_it_promises_and_when_that_is_void():
    assert str(RULE) == (
        "Accept predictions with an uncertainty of at most 1.25.\n"
        "With 95 % confidence, at most 2 % of the accepted predictions are wrong.\n"
        "It rests on 1,000 held-out predictions: 700 of them (70 %) are accepted; wrong among "
        "these: 7 (1 %).\n"
        "This holds for data like the held-out ones. When the data shift it is void: more "
        "abstentions are likely, but accepted predictions may be wrong more often than this says. "
        "Watch for shift, and make a new rule from data like the new ones."
    )
    covering = replace(RULE, max_risk=None, min_coverage=0.65)
    assert "With 95 % confidence, at least 65 % are accepted, and at most 2 % of the" in str(
        covering
    )
    assert (RULE.coverage, RULE.risk, RULE.certified) == (0.7, 0.01, True)


def test_it_says_plainly_that_nothing_can_be_certified():
    few = accept_rule(np.arange(60.0), np.zeros(60, bool))
    assert (few.certified, few.accepted, few.threshold, few.risk_bound) == (False, 0, -np.inf, 1.0)
    assert np.isnan(few.risk)
    assert not few(np.array([-1e308, 0.0])).any()
    assert str(few) == (
        "No threshold can be certified: abstain from all predictions.\n"
        "Wanted: at most 1 % wrong among the accepted, with 95 % confidence.\n"
        "There are 60 held-out predictions; 299 are needed even if none of them were wrong. Asked "
        "for beforehand, max_risk=0.049 is certified here."
    )
    assert accept_rule(np.arange(60.0), np.zeros(60, bool), max_risk=0.049).accepted == 60
    bad = accept_rule(np.arange(900.0), np.arange(900) % 3 == 0)
    assert "Even the least uncertain of 900 held-out predictions are wrong too often" in str(bad)
    assert accept_rule(np.arange(900.0), np.arange(900) % 3 == 0, bad.reachable_risk).certified
    hopeless = accept_rule(np.arange(900.0), np.ones(900, bool))
    assert hopeless.reachable_risk is None
    assert "max_risk=" not in str(hopeless)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"errors": 701}, "errors must not exceed accepted, nor that held_out, got 701."),
        ({"accepted": 1001}, "errors must not exceed accepted, nor that held_out, got 7."),
        ({"held_out": 1e3}, "held_out must be an integer, got 1000.0."),
        ({"errors": True}, "errors must be an integer, got True."),
        ({"confidence": 0.0}, "confidence must be a number above 0, up to 1, got 0.0."),
        ({"risk_bound": "0.1"}, "risk_bound must be a number above 0, up to 1, got '0.1'."),
        ({"risk_bound": None}, "risk_bound must be a number above 0, up to 1, got None."),
        ({"max_risk": None}, "max_risk or min_coverage must be given, not both, got None."),
        ({"min_coverage": 0.5}, "max_risk or min_coverage must be given, not both, got 0.02."),
        ({"threshold": np.nan}, "threshold must be a number, got nan."),
        ({"threshold": np.inf}, "threshold must be finite, or -inf where nothing is accepted, got"),
        ({"accepted": 0, "errors": 0}, "threshold must be finite, or -inf where nothing is acc"),
    ],
)
def test_a_rule_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(QIPFInputError, match=re.escape(f"An accept rule's {message}")):
        AcceptRule(**{**asdict(RULE), **changes})


def test_a_rule_does_not_change():
    with pytest.raises(FrozenInstanceError):
        RULE.threshold = 9.0
