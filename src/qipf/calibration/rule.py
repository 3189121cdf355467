"""An accept rule: a threshold on the uncertainty, what it guarantees, and its decisions."""

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from qipf.calibration.fixed_sequence import fewest
from qipf.display import Shown, counted, percent
from qipf.errors import QIPFInputError, warn
from qipf.validation.scores import checked_scores

#: The threshold of a rule that accepts every finite uncertainty.
EVERYTHING = sys.float_info.max

_SHIFT = (
    "The guarantee holds for data like the held-out data. It does not hold for shifted data: "
    "accepted predictions may then be wrong more often. Monitor for shift, and make a new rule "
    "from data like the new data."
)


class Tally(NamedTuple):
    """Counts of predictions by what a rule does with them."""

    accepted: int
    abstained: int  # including unusable ones
    unusable: int  # uncertainty NaN or infinite


@dataclass(frozen=True, repr=False)
class AcceptRule:
    """Accept predictions up to a threshold of uncertainty, abstain from the others.

    Made by `qipf.accept_rule`. Called with uncertainties, it returns a boolean mask of the same
    kind (an array, or a tensor on its device), true where the prediction is accepted. A rule with
    `max_novelty` is called with novelties too, ``rule(*model.both_scores(inputs))``, and abstains
    from higher ones. NaN and infinite scores are never accepted: a `QIPFWarning` gives their
    number, and `tally` counts them.

    The guarantee holds, with `confidence`, for data like the held-out data (independent, from the
    same population). It says nothing about shifted data, where accepted predictions may be wrong
    more often than `risk_bound`.
    """

    threshold: float  # accept up to here, ties included; -inf abstains from all predictions
    risk_bound: float  # certified error rate among accepted predictions; 1 if none is certified
    confidence: float
    held_out: int  # predictions that the rule was made from
    accepted: int  # accepted ones among them
    errors: int  # wrong ones among the accepted
    max_risk: float | None  # the requested error rate, or
    min_coverage: float | None  # the requested coverage
    reachable_risk: float | None = None  # if nothing is certified: smallest max_risk that would be
    max_novelty: float | None = None  # accept up to here; None: whatever the novelty

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

    @overload
    def __call__(self, uncertainty: Tensor, novelty: Any = None) -> Tensor: ...
    @overload
    def __call__(self, uncertainty: ArrayLike, novelty: Any = None) -> NDArray[np.bool_]: ...
    def __call__(self, uncertainty: Any, novelty: Any = None) -> Any:  # (n,)
        """True where the prediction is accepted."""
        accept, usable = self._decided(uncertainty, novelty)
        unusable = (~usable).nonzero()
        rows = unusable.flatten() if isinstance(unusable, Tensor) else unusable[0]
        if len(rows):
            warn(
                f"{len(rows)} of {len(usable)} {self._scores} are NaN or infinite (first: row "
                f"{int(rows[0])}); the rule abstains from these predictions."
            )
        return accept

    def tally(self, uncertainty: Any, novelty: Any = None) -> Tally:
        """Count the predictions that are accepted, abstained from, and unusable.

        >>> from qipf import accept_rule
        >>> rule = accept_rule(np.linspace(0, 1, 400), np.zeros(400, bool))
        >>> rule.tally([0.5, np.nan, 7.0])
        Tally(accepted=1, abstained=2, unusable=1)
        """
        accept, usable = self._decided(uncertainty, novelty)
        accepted = int(accept.sum())
        return Tally(accepted, len(accept) - accepted, len(usable) - int(usable.sum()))

    @property
    def _scores(self) -> str:
        return "uncertainties" if self.max_novelty is None else "scores"

    def _decided(self, uncertainty: Any, novelty: Any) -> tuple[Any, Any]:
        """Two masks of the same kind as the uncertainty: accepted, and finite."""
        accept, usable = self._up_to(self.threshold, uncertainty, "uncertainty")
        if self.max_novelty is None:
            return accept, usable
        if novelty is None:
            raise QIPFInputError(
                "This rule looks at the novelty too: call it with rule(*model.both_scores(inputs))."
            )
        usual, finite = self._up_to(self.max_novelty, novelty, "novelty")
        if usual.shape != accept.shape:
            raise QIPFInputError(
                f"novelty must have the shape of uncertainty, {tuple(accept.shape)}; got "
                f"{tuple(usual.shape)}."
            )
        if isinstance(accept, Tensor):
            usual, finite = (torch.as_tensor(m, device=accept.device) for m in (usual, finite))
        elif isinstance(usual, Tensor):
            usual, finite = usual.cpu().numpy(), finite.cpu().numpy()
        return accept & usual, usable & finite

    @staticmethod
    def _up_to(limit: float, uncertainty: Any, name: str) -> tuple[Any, Any]:
        """Masks of scores up to a limit, and of finite ones, of the same kind as the scores."""
        if isinstance(uncertainty, Tensor):
            if uncertainty.is_complex() or uncertainty.ndim > 1:
                checked_scores(uncertainty, name)  # raises
            scores = uncertainty.detach().reshape(-1).double()  # a float32 threshold would round
            usable = torch.isfinite(scores)
            return usable & (scores <= limit), usable
        values = checked_scores(uncertainty, name)
        finite = np.isfinite(values)
        return finite & (values <= limit), finite

    def __str__(self) -> str:
        return "\n".join([self._action(), *self._grounds(), *[_SHIFT][: self.accepted]])

    def __repr__(self) -> str:
        limit = "" if self.max_novelty is None else f", max_novelty={self.max_novelty:.6g}"
        bound = "nothing certified"
        if self.certified:
            sure = f"with {percent(self.confidence)} confidence"
            bound = f"at most {percent(self.risk_bound)} wrong {sure}"
        accepted = f"{percent(self.coverage)} of {self.held_out:,} accepted"
        return f"AcceptRule(threshold={self.threshold:.6g}{limit}: {accepted}, {bound})"

    def _repr_html_(self) -> str:
        return Shown("AcceptRule", {"rule": str(self)}).html()

    def _action(self) -> str:
        if self.accepted == 0:
            return "No threshold can be certified: abstain from all predictions."
        if self.threshold >= EVERYTHING:
            return "Accept every prediction."
        limit = f"an uncertainty of at most {self.threshold:.6g}"
        if self.max_novelty is not None:
            limit += f" and a novelty of at most {self.max_novelty:.6g}"
        return f"Accept predictions with {limit}."

    def _grounds(self) -> list[str]:
        sure = f"With {percent(self.confidence)} confidence"
        if self.max_risk is not None and not self.certified:
            return [
                f"Requested: at most {percent(self.max_risk)} wrong among the accepted, "
                f"with {percent(self.confidence)} confidence.",
                self._remedy(self.max_risk),
            ]
        wrong = f"at most {percent(self.risk_bound)} of the accepted predictions are wrong"
        if self.min_coverage is not None:
            wrong = f"at least {percent(self.min_coverage)} are accepted, and {wrong}"
        return [
            f"{sure}, {wrong}.",
            f"Made from {counted(self.held_out, 'held-out prediction')}: {self.accepted:,} of them "
            f"({percent(self.coverage)}) are accepted; wrong among these: {self.errors:,} "
            f"({percent(self.risk)}).",
        ]

    def _remedy(self, max_risk: float) -> str:
        least = fewest(0, max_risk, 1 - self.confidence)
        if self.held_out < least:
            reason = (
                f"Given: {counted(self.held_out, 'held-out prediction')}; {least:,} are needed "
                "even if none of them is wrong."
            )
        else:
            usual = "" if self.max_novelty is None else " that are not too novel"
            reason = (
                f"Even the least uncertain of {self.held_out:,} held-out predictions{usual} are "
                "wrong too often, or are too few. Pass more of them, or allow a higher risk."
            )
        if self.reachable_risk is None:
            return reason
        return (
            f"{reason} max_risk={self.reachable_risk:g} would have been certified, if it had been "
            "requested first."
        )


def within(
    uncertainty: Tensor, novelty: Tensor, threshold: float, max_novelty: float | None = None
) -> Tensor:  # (n,)
    """The decision of a rule in an exported graph."""
    accepted = uncertainty <= threshold
    return accepted if max_novelty is None else accepted & (novelty <= max_novelty)


def _check_rule(rule: AcceptRule) -> None:
    """Raise `QIPFInputError` if the values of a rule contradict each other."""
    for name in ("held_out", "accepted", "errors"):
        if type(getattr(rule, name)) is not int:
            _reject(rule, name, "must be an integer")
    if not 0 <= rule.errors <= rule.accepted <= rule.held_out or rule.held_out == 0:
        _reject(rule, "errors", "must not exceed accepted, nor that held_out")
    for name in ("max_risk", "min_coverage", "reachable_risk", "confidence", "risk_bound"):
        value = getattr(rule, name)
        if value is None and name not in ("confidence", "risk_bound"):
            continue
        if not isinstance(value, float) or not 0 < value <= 1:
            _reject(rule, name, "must be a number above 0, up to 1")
    if (rule.max_risk is None) == (rule.min_coverage is None):
        _reject(rule, "max_risk", "or min_coverage must be given, not both")
    if not isinstance(rule.threshold, float) or math.isnan(rule.threshold):
        _reject(rule, "threshold", "must be a number")
    limit = rule.max_novelty
    if limit is not None and not (isinstance(limit, float) and math.isfinite(limit)):
        _reject(rule, "max_novelty", "must be a finite number or None")
    if math.isinf(rule.threshold) != (rule.accepted == 0) or rule.threshold == math.inf:
        _reject(rule, "threshold", "must be finite, or -inf where nothing is accepted")


def _reject(rule: AcceptRule, name: str, expected: str) -> None:
    raise QIPFInputError(f"An accept rule's {name} {expected}, got {getattr(rule, name)!r}.")
