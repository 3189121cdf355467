"""What a field can do once it knows held-out predictions: p-values, and a rule to accept by."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qipf.calibration.accept_rule import accept_rule
from qipf.calibration.conformal import Calibration
from qipf.calibration.quantization import highest
from qipf.calibration.rule import EVERYTHING, AcceptRule
from qipf.errors import QIPFInputError
from qipf.field.parameters import errors_of
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from typing_extensions import Self

#: By so much of its terms an uncertainty may differ from that of the same logits in another batch
#: (`qipf.calibration.quantization`); measured, by less than half of this.
ROUNDING = 1e-5


class Deciding:
    """The part of `QIPF` that turns uncertainties into answers."""

    calibration_: Calibration | None = None
    rule_: AcceptRule | None = None

    if TYPE_CHECKING:
        energies_: Any

        def uncertainty(self, X: Any) -> Any: ...  # noqa: D102
        def _checked(self, X: Any) -> Tensor: ...
        def _uncertainty(self, rows: Tensor) -> Tensor: ...

    def calibrate(self, X: Any, y: Any = None, *, wrong: Any = None) -> Self:
        """Keep the uncertainties of held-out predictions, to judge others by them.

        They must not be in the field, nor have chosen anything about it: then `p_values` and
        `accept_rule` hold for data like them. Fitting the field again forgets them.

        Parameters
        ----------
        X : (n, d) logits of held-out predictions; at most 2²⁰ of them, drawn at random, are kept.
        y : (n,) true classes 0..d-1, for `accept_rule`.
        wrong : (n,) booleans, where the model erred: instead of `y`, when `X` is not logits.
        """
        rows = self._checked(X)
        errors = errors_of(rows, y, wrong, required=True)
        self._keep_held_out(self._uncertainty(rows), errors)
        return self

    def _keep_held_out(self, scores: Tensor, wrong: Any) -> None:  # (n,), (n,)
        self.calibration_ = Calibration(scores, wrong)
        self.rule_ = None  # it rests on others

    def p_values(self, X: Any) -> Any:  # (n,)
        """How unusual each prediction is: the share of held-out ones at least as uncertain.

        Conformal p-values: for a prediction like the held-out ones, P(p ≤ t) ≤ t for every t,
        ties or not; what differs by no more than rounding counts as tied. See
        `qipf.calibration.conformal.Calibration`.
        """
        uncertainty = self.uncertainty(X)
        held_out = self._known_calibration()
        return held_out.p_values(
            uncertainty - ROUNDING * (abs(uncertainty) + float(abs(self.energies_).max()))
        )

    def accept_rule(
        self,
        max_risk: float | None = None,
        confidence: float = 0.95,
        *,
        min_coverage: float | None = None,
    ) -> AcceptRule:
        """A threshold with a guarantee, from the held-out predictions; see `qipf.accept_rule`.

        It stays with the field, as `rule_`, also in a file; `accepts` applies it. Uncertainties
        count as `qipf.calibration.quantization` leaves them, here and by where the threshold lies: equal
        predictions are accepted or rejected together, whatever batch they come in.
        """
        held_out = self._known_calibration()
        if held_out.wrong is None:
            raise QIPFInputError(
                "The field was calibrated without labels, so no errors are known. Call "
                "calibrate(held_out_logits, labels), or pass wrong=."
            )
        rule = accept_rule(
            held_out.rounded_scores, held_out.wrong, max_risk, confidence, min_coverage=min_coverage
        )
        if -math.inf < rule.threshold < EVERYTHING:
            rule = replace(rule, threshold=highest(rule.threshold))
        self.rule_ = rule
        return rule

    def accepts(self, X: Any) -> Any:  # (n,)
        """True where the rule accepts the prediction; false where it abstains."""
        uncertainty = self.uncertainty(X)
        if self.rule_ is None:
            raise QIPFNotFittedError("This field has no accept rule yet. Call accept_rule() first.")
        return self.rule_(uncertainty)

    def _known_calibration(self) -> Calibration:
        if self.calibration_ is None:
            raise QIPFNotFittedError(
                "This field knows no held-out predictions yet. Call calibrate(held_out_logits) "
                "first."
            )
        return self.calibration_
