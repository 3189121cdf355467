"""A rule that accepts predictions or abstains, and what it promises."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qipf.calibration.fixed_sequence import fewest
from qipf.errors import QIPFInputError, QIPFWarning
from qipf.validation.scores import checked_scores

#: The threshold of a rule that accepts every finite uncertainty.
EVERYTHING = sys.float_info.max

_SHIFT = (
    "This holds for data like the held-out ones. When the data shift it is void: more abstentions "
    "are likely, but accepted predictions may be wrong more often than this says. Watch for shift, "
    "and make a new rule from data like the new ones."
)


class Tally(NamedTuple):
    """What a rule does with predictions, in numbers."""

    accepted: int
    abstained: int  # those with an unusable uncertainty among them
    unusable: int  # uncertainty NaN or infinite


@dataclass(frozen=True)
class AcceptRule:
    """Accept predictions up to a threshold of uncertainty, abstain from the others.

    Made by `qipf.accept_rule`. Called with uncertainties, it gives a boolean mask of the kind that
    came (an array, or a tensor on its device), true where the prediction is accepted. NaN and
    infinite uncertainties are never accepted: a `QIPFWarning` tells how many there were, and
    `tally` counts them.

    The guarantee holds, with `confidence`, for data like the held-out ones (independent, from the
    same population). It says nothing about shifted data: there the accepted predictions may be
    wrong more often than `risk_bound`, however few they are.
    """

    threshold: float  # accepted up to here, ties included; -inf abstains from everything
    risk_bound: float  # certified error rate among accepted predictions; 1 if none is certified
    confidence: float
    held_out: int  # predictions that the rule rests on
    accepted: int  # of these, how many it accepts
    errors: int  # and how many of those are wrong
    max_risk: float | None  # what was asked for: this,
    min_coverage: float | None  # or this
    reachable_risk: float | None = None  # if nothing was certified: the least max_risk that would

    def __post_init__(self) -> None:
        _check_rule(self)

    @property
    def certified(self) -> bool:
        """Whether the data support any bound on the error rate of what is accepted."""
        return self.risk_bound < 1

    @property
    def coverage(self) -> float:
        """Share of the held-out predictions that is accepted."""
        return self.accepted / self.held_out

    @property
    def risk(self) -> float:
        """Error rate among the accepted held-out predictions; NaN if none is accepted."""
        return self.errors / self.accepted if self.accepted else math.nan

    def __call__(self, uncertainty: Any) -> Any:  # (n,)
        """True where the prediction is accepted."""
        accept, usable = self._decided(uncertainty)
        unusable = (~usable).nonzero()
        rows = unusable.flatten() if isinstance(unusable, Tensor) else unusable[0]
        if len(rows):
            warnings.warn(
                f"{len(rows)} of {len(usable)} uncertainties are NaN or infinite (first: row "
                f"{int(rows[0])}); the rule abstains from these predictions.",
                QIPFWarning,
                stacklevel=2,
            )
        return accept

    def tally(self, uncertainty: Any) -> Tally:
        """How many predictions are accepted, abstained from, and unusable.

        >>> from qipf.calibration.accept_rule import accept_rule
        >>> rule = accept_rule(np.linspace(0, 1, 400), np.zeros(400, bool))
        >>> rule.tally([0.5, np.nan, 7.0])
        Tally(accepted=1, abstained=2, unusable=1)
        """
        accept, usable = self._decided(uncertainty)
        accepted = int(accept.sum())
        return Tally(accepted, len(accept) - accepted, len(usable) - int(usable.sum()))

    def _decided(self, uncertainty: Any) -> tuple[Any, Any]:
        """Accepted, and usable at all: two masks of the kind that came."""
        if isinstance(uncertainty, Tensor):
            if uncertainty.is_complex() or uncertainty.ndim > 1:
                checked_scores(uncertainty, "uncertainty")  # refuses it
            scores = uncertainty.detach().reshape(-1).double()  # a float32 threshold would round
            usable = torch.isfinite(scores)
            return usable & (scores <= self.threshold), usable
        values = checked_scores(uncertainty, "uncertainty")
        finite = np.isfinite(values)
        return finite & (values <= self.threshold), finite

    def __str__(self) -> str:
        return "\n".join([self._action(), *self._grounds(), *[_SHIFT][: self.accepted]])

    def _action(self) -> str:
        if self.accepted == 0:
            return "No threshold can be certified: abstain from all predictions."
        if self.threshold >= EVERYTHING:
            return "Accept every prediction."
        return f"Accept predictions with an uncertainty of at most {self.threshold:.6g}."

    def _grounds(self) -> list[str]:
        sure = f"With {_percent(self.confidence)} confidence"
        if self.max_risk is not None and not self.certified:
            return [
                f"Wanted: at most {_percent(self.max_risk)} wrong among the accepted, "
                f"with {_percent(self.confidence)} confidence.",
                self._way_out(self.max_risk),
            ]
        wrong = f"at most {_percent(self.risk_bound)} of the accepted predictions are wrong"
        if self.min_coverage is not None:
            wrong = f"at least {_percent(self.min_coverage)} are accepted, and {wrong}"
        return [
            f"{sure}, {wrong}.",
            f"It rests on {self.held_out:,} held-out predictions: {self.accepted:,} of them "
            f"({_percent(self.coverage)}) are accepted; wrong among these: {self.errors:,} "
            f"({_percent(self.risk)}).",
        ]

    def _way_out(self, max_risk: float) -> str:
        least = fewest(0, max_risk, 1 - self.confidence)
        if self.held_out < least:
            told = (
                f"There are {self.held_out:,} held-out predictions; {least:,} are needed even if "
                "none of them were wrong."
            )
        else:
            told = (
                f"Even the least uncertain of {self.held_out:,} held-out predictions are wrong too "
                "often, or are too few. Pass more of them, or allow a higher risk."
            )
        if self.reachable_risk is None:
            return told
        return f"{told} Asked for beforehand, max_risk={self.reachable_risk:g} is certified here."


def _check_rule(rule: AcceptRule) -> None:
    """A rule that contradicts itself is refused, wherever it came from."""
    for name in ("held_out", "accepted", "errors"):
        if type(getattr(rule, name)) is not int:
            _refuse(rule, name, "must be an integer")
    if not 0 <= rule.errors <= rule.accepted <= rule.held_out or rule.held_out == 0:
        _refuse(rule, "errors", "must not exceed accepted, nor that held_out")
    for name in ("max_risk", "min_coverage", "reachable_risk", "confidence", "risk_bound"):
        value = getattr(rule, name)
        if value is None and name not in ("confidence", "risk_bound"):
            continue
        if not isinstance(value, float) or not 0 < value <= 1:
            _refuse(rule, name, "must be a number above 0, up to 1")
    if (rule.max_risk is None) == (rule.min_coverage is None):
        _refuse(rule, "max_risk", "or min_coverage must be given, not both")
    if not isinstance(rule.threshold, float) or math.isnan(rule.threshold):
        _refuse(rule, "threshold", "must be a number")
    if math.isinf(rule.threshold) != (rule.accepted == 0) or rule.threshold == math.inf:
        _refuse(rule, "threshold", "must be finite, or -inf where nothing is accepted")


def _refuse(rule: AcceptRule, name: str, expected: str) -> None:
    raise QIPFInputError(f"An accept rule's {name} {expected}, got {getattr(rule, name)!r}.")


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
