"""What a page says of an accept rule."""

from dataclasses import replace

import numpy as np
import pytest

from qipf import accept_rule
from qipf.report.rule_words import grounds, promise, share, why_nothing

SURE = accept_rule(np.arange(1000.0), np.arange(1000) >= 900, max_risk=0.05)
NOTHING = accept_rule(np.arange(400.0), np.arange(400) % 2 == 0, max_risk=0.01)


def test_a_promise_and_its_grounds():
    accepted, errors = SURE.accepted, SURE.errors
    assert promise(SURE) == (
        f"accept predictions with an uncertainty of at most {accepted - 1}. With 95% confidence, "
        "at most 5% of what is accepted is wrong."
    )
    assert grounds(SURE) == (
        f"It rests on 1,000 held-out predictions: {accepted} of them ({accepted / 10:.3g}%) are "
        f"accepted, of which {errors} are wrong."
    )


def test_why_nothing_can_be_certified():
    assert why_nothing(NOTHING) == (
        "Even the least uncertain of 400 held-out predictions are wrong too often for that, or are "
        "too few. The lowest limit that these predictions could have certified, had it been asked "
        f"for beforehand, is {share(NOTHING.reachable_risk)}."
    )
    assert why_nothing(replace(NOTHING, held_out=40, reachable_risk=None)) == (
        "40 held-out predictions are too few for that: 299 would be needed even if none of them "
        "were wrong. No other limit could be certified either."
    )


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0%"), (1.0, "100%"), (0.00012345, "0.0123%"), (0.8684, "86.8%")]
)
def test_shares(value, text):
    assert share(value) == text
