"""The rule itself: its decisions and counts, its texts, and values that contradict each other."""

import re
import warnings
from dataclasses import FrozenInstanceError, asdict, replace

import numpy as np
import pytest
import torch

from qipf import AcceptRule, QIPFInputError, QIPFWarning
from qipf.calibration.rule import Tally, within

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
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        accept = RULE(values)
    assert accept.tolist() == [True, False, False, False, True]
    assert [(w.category, w.filename) for w in warned] == [(QIPFWarning, __file__)]
    assert "3 of 5 uncertainties are NaN or infinite (first: row 1)" in str(warned[0].message)
    assert RULE.tally(values) == Tally(accepted=2, abstained=3, unusable=3)
    all_accepting = replace(RULE, threshold=np.finfo(float).max)
    assert all_accepting.tally(values) == Tally(2, 3, 3)


@pytest.mark.parametrize(
    ("uncertainty", "phrase"),
    [
        (np.zeros((2, 2)), "uncertainty must have one dimension"),
        (torch.zeros(2, 2), "uncertainty must have one dimension"),
        (torch.zeros(2, dtype=torch.complex64), "uncertainty must hold real numbers"),
        (["a"], "uncertainty must hold real numbers"),
    ],
)
def test_invalid_uncertainties_are_rejected(uncertainty, phrase):
    with pytest.raises(QIPFInputError, match=phrase):
        RULE(uncertainty)


def test_the_text_states_threshold_guarantee_and_grounds():
    text = str(RULE)
    for phrase in (
        "uncertainty of at most 1.25",
        "With 95 % confidence, at most 2 % of the accepted predictions are wrong",
        "1,000 held-out predictions: 700 of them (70 %)",
        "7 (1 %)",
        "does not hold for shifted data",
    ):
        assert phrase in text
    covering = replace(RULE, max_risk=None, min_coverage=0.65)
    assert "at least 65 % are accepted, and at most 2 % of the" in str(covering)
    assert (RULE.coverage, RULE.risk, RULE.certified) == (0.7, 0.01, True)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"errors": 701}, "errors must not exceed accepted"),
        ({"accepted": 1001}, "nor that held_out"),
        ({"held_out": 1e3}, "held_out must be an integer"),
        ({"errors": True}, "errors must be an integer"),
        ({"confidence": 0.0}, "confidence must be a number above 0"),
        ({"risk_bound": "0.1"}, "risk_bound must be a number above 0"),
        ({"risk_bound": None}, "risk_bound must be a number above 0"),
        ({"max_risk": None}, "max_risk or min_coverage"),
        ({"min_coverage": 0.5}, "not both"),
        ({"threshold": np.nan}, "threshold must be a number"),
        ({"threshold": np.inf}, "threshold must be finite"),
        ({"max_novelty": np.inf}, "max_novelty must be a finite number or None"),
        ({"max_novelty": 1}, "max_novelty must be a finite number or None"),
        ({"accepted": 0, "errors": 0}, "-inf where nothing is accepted"),
    ],
)
def test_contradictory_values_are_rejected(changes, phrase):
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        AcceptRule(**{**asdict(RULE), **changes})


def test_a_rule_does_not_change():
    with pytest.raises(FrozenInstanceError):
        RULE.threshold = 9.0


def test_the_decision_of_a_graph_has_both_limits():
    uncertainty, novelty = torch.tensor([1.0, 1.0, 2.0, 2.1]), torch.tensor([5.0, 5.1, 5.0, 0.0])
    assert within(uncertainty, novelty, 2.0).tolist() == [True, True, True, False]
    assert within(uncertainty, novelty, 2.0, 5.0).tolist() == [True, False, True, False]
