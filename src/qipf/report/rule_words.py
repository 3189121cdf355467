"""What an accept rule says, in a reader's words."""

from __future__ import annotations

from qipf.calibration.fixed_sequence import fewest
from qipf.calibration.rule import AcceptRule

#: What becomes of the promise when the data changes.
SHIFT = (
    "The promise is about data like the held-out predictions. When the data shifts it is void: "
    "more predictions are then usually held back, but those accepted may be wrong far more often "
    "than promised. Watch the stream, and make a new rule from data like the new."
)


def share(value: float) -> str:
    """A share as a percentage of three digits.

    >>> share(0.01), share(0.0123456), share(0.9999)
    ('1%', '1.23%', '100%')
    """
    return f"{100 * value:.3g}%"


def promise(rule: AcceptRule) -> str:
    """The threshold, and what holds for what lies below it; for a rule that certifies something."""
    return (
        f"accept predictions with an uncertainty of at most {rule.threshold:.4g}. With "
        f"{share(rule.confidence)} confidence, at most {share(rule.risk_bound)} of what is "
        "accepted is wrong."
    )


def grounds(rule: AcceptRule) -> str:
    """What the promise rests on."""
    return (
        f"It rests on {rule.held_out:,} held-out predictions: {rule.accepted:,} of them "
        f"({share(rule.coverage)}) are accepted, of which {rule.errors:,} are wrong."
    )


def why_nothing(rule: AcceptRule) -> str:
    """Why no threshold is certified, and what would be; for a rule that keeps to a risk."""
    assert rule.max_risk is not None
    needed = fewest(0, rule.max_risk, 1 - rule.confidence)
    if rule.held_out < needed:
        cause = (
            f"{rule.held_out:,} held-out predictions are too few for that: {needed:,} would be "
            "needed even if none of them were wrong."
        )
    else:
        cause = (
            f"Even the least uncertain of {rule.held_out:,} held-out predictions are wrong too "
            "often for that, or are too few."
        )
    if rule.reachable_risk is None:
        return f"{cause} No other limit could be certified either."
    return (
        f"{cause} The lowest limit that these predictions could have certified, had it been asked "
        f"for beforehand, is {share(rule.reachable_risk)}."
    )
