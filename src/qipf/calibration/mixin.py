"""The verbs that every model shares once it is fitted: calibrate, decide, describe, save."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qipf.calibration.accept_rule import accept_rule
from qipf.calibration.conformal import Calibration, calibration_of
from qipf.calibration.detection import (
    ErrorDetection,
    error_detection,
    warn_if_worse,
    warn_of_labels,
)
from qipf.calibration.outcomes import Outcomes
from qipf.calibration.plotting import PlotMixin
from qipf.calibration.prediction import Prediction
from qipf.calibration.rule import AcceptRule
from qipf.calibration.snapshots import Snapshots
from qipf.calibration.training_rows import (
    TrainingSample,
    refuse_training_rows,
    warn_of_repeated_rows,
)
from qipf.display import Shown, aligned, counted
from qipf.errors import QIPFInputError
from qipf.io.atomic import atomic_write, checked_output
from qipf.io.container import Arrays, content_digest, decode, encode
from qipf.io.schema import DECISIONS, written_by
from qipf.validation.arrays import blank
from qipf.validation.not_fitted import QIPFNotFittedError

#: Parameters of a fitted model that no score depends on.
NOT_SCORES = ("device", "contamination", "fallback", "nan_policy")


class CalibrationMixin(PlotMixin, Snapshots):
    """Decisions of a fitted model, from the scores of a calibration set.

    A model defines `uncertainty`, `novelty`, `both_scores`, `_require_fitted`, `facts` (lines of
    the summary), `state` (header and arrays of its file) and `from_state`, and calls
    `_set_calibration` with the outcomes of held-out predictions.

    Attributes
    ----------
    calibration_ : scores of the calibration set; None before `calibrate`.
    detection_ : how well the errors of the calibration set are detected; None without errors.
    rule_ : the last rule that `accept_rule` made; None before.
    nan_policy : what to do with predictions that have NaN or infinity: ``"raise"``, or
        ``"propagate"``: the others are scored, these get NaN and are not accepted.
    """

    calibration_: Calibration | None = None
    detection_: ErrorDetection | None = None
    rule_: AcceptRule | None = None
    nan_policy: str = "raise"
    _training: TrainingSample | None = None

    if TYPE_CHECKING:

        def facts(self) -> dict[str, str]: ...  # noqa: D102
        def state(self) -> tuple[dict[str, Any], Arrays]: ...  # noqa: D102
        @classmethod
        def from_state(cls, header: dict[str, Any], arrays: Arrays, path: str) -> object: ...  # noqa: D102

    def accept_rule(
        self,
        max_risk: float | None = None,
        confidence: float = 0.95,
        *,
        min_coverage: float | None = None,
        min_novelty_p: float | None = None,
    ) -> AcceptRule:
        """Make a threshold with a guarantee from the calibration set; see `qipf.accept_rule`.

        The model keeps the rule as `rule_`, also in a file; `accepts` applies it.
        """
        self._require_fitted()
        held_out = calibration_of(self)
        if held_out.wrong is None:
            raise QIPFInputError(
                f"This {type(self).__name__} was calibrated without labels, so no errors are "
                "known. Call calibrate() with labels."
            )
        novelty = None
        if min_novelty_p is not None:
            held_out.ranked_by("novelty")  # raises without novelties
            novelty = held_out.novelty
        self.rule_ = accept_rule(
            held_out.scores,
            held_out.wrong,
            max_risk,
            confidence,
            min_coverage=min_coverage,
            novelty=novelty,
            min_novelty_p=min_novelty_p,
            origin=held_out.origin,
        )
        return self.rule_

    def _set_calibration(self, found: Outcomes) -> None:
        training = self.training_sample()
        if training is not None:
            refuse_training_rows(found.rows, training)
        uncertainty, wrong = found.uncertainty, found.wrong
        logits = found.rows if found.are_logits else None
        counts = None if logits is None else logits.argmax(1).bincount(minlength=logits.shape[1])
        calibration = Calibration(
            uncertainty, wrong, self.score_origin(), found.novelty, class_counts=counts
        )
        detection = None if wrong is None else error_detection(uncertainty, wrong, logits)
        with self._decisions()._changed() as model:
            model.calibration_, model.detection_ = calibration, detection
            model.rule_ = None  # it was made from another calibration set
        if training is not None:
            warn_of_repeated_rows(found.rows, training)
        if wrong is not None and logits is not None:
            warn_of_labels(wrong, logits)
            warn_if_worse(detection)

    def _decisions(self) -> "CalibrationMixin":
        """The model that holds the calibration set and the rule."""
        return self

    def training_sample(self) -> TrainingSample | None:
        """A sample of the training rows or logits; None if no rows were held out."""
        return self._training

    def score_origin(self) -> float:
        """Constant in the uncertainty, such as energies; see `qipf.calibration.quantization`."""
        return 0.0

    def _clear_calibration(self) -> None:
        self.calibration_ = self.detection_ = self.rule_ = None

    @property
    def _ranks_novelty(self) -> bool:
        """Whether the calibration set has novelties."""
        return self.calibration_ is not None and self.calibration_.novelty is not None

    def _p_values(self, values: Any, score: str = "uncertainty") -> Any:  # (n,)
        return calibration_of(self).ranked_by(score).p_values(values)

    def _accepted(self, uncertainty: Any, novelty: Any) -> Any:  # (n,)
        if self.rule_ is None:
            raise QIPFNotFittedError(
                f"This {type(self).__name__} has no accept rule. Call accept_rule() first."
            )
        return self.rule_(uncertainty, novelty)

    def _prediction(
        self,
        logits: Tensor,
        uncertainty: Tensor,
        novelty: Tensor,
        probabilities: Tensor | None = None,
        predicted: Tensor | None = None,
        p_error: Tensor | None = None,
        missing: Tensor | None = None,
    ) -> Prediction:
        held_out = self.calibration_
        found = Prediction(
            logits=logits,
            predicted=logits.argmax(1) if predicted is None else predicted,
            uncertainty=uncertainty,
            p_value=None if held_out is None else self._p_values(uncertainty),
            accepted=None if self.rule_ is None else self._accepted(uncertainty, novelty),
            probabilities=probabilities,
            p_error=p_error,
            novelty=novelty,
            novelty_p_value=self._p_values(novelty, "novelty") if self._ranks_novelty else None,
            mixture_class=None if probabilities is None else probabilities.argmax(1),
        )
        if missing is None:
            return found
        values = {name: value for name, value in vars(found).items() if value is not None}
        del values["logits"]
        return replace(found, **{name: blank(value, missing) for name, value in values.items()})

    def _limits(self, rule: object) -> dict[str, float]:
        """Limits of the scores for an exported file: of the given rule, or of the model's own."""
        rule = self.rule_ if rule is None else rule
        if rule is None:
            return {}
        if not isinstance(rule, AcceptRule):
            raise QIPFInputError(
                f"rule must be an AcceptRule, as accept_rule() makes, got {type(rule).__name__}."
            )
        limits = {"threshold": rule.threshold}
        return limits if rule.max_novelty is None else {**limits, "max_novelty": rule.max_novelty}

    def _about(self) -> list[str]:
        """What `repr` tells about the calibration set, error detection and the rule."""
        about = []
        if self.calibration_ is not None:
            about.append(f"calibrated on {counted(len(self.calibration_), 'prediction')}")
        if self.detection_ is not None:
            about.append(f"error detection: {self.detection_}")
        if self.rule_ is not None:
            about.append(f"accepts {self.rule_.coverage:.1%}")
        return about

    def summary(self) -> str:
        """What the model was fitted on, how well it detects errors, and its accept rule."""
        self._require_fitted()
        return aligned(self._all_facts())

    def _all_facts(self) -> dict[str, str]:
        facts = self.facts()
        held_out, detection = self.calibration_, self.detection_
        if held_out is not None:
            errors = "" if held_out.wrong is None else f", {int(held_out.wrong.sum()):,} wrong"
            facts["calibration"] = f"{counted(len(held_out), 'held-out prediction')}{errors}"
        if detection is not None:
            facts["detection"] = str(detection)
        if self.rule_ is not None:
            facts["rule"] = str(self.rule_)
        return facts

    def _is_built(self) -> bool:
        """Whether `facts` is available without building a field."""
        try:
            self._require_fitted()
        except QIPFNotFittedError:
            return False
        return True

    def _repr_html_(self) -> str:
        return Shown(repr(self), self._all_facts() if self._is_built() else {}).html()

    def save(self, path: Path | str) -> None:
        """Write the fitted model, without its network, to one file; see `qipf.save`."""
        self._require_fitted()
        self._require_saveable()
        path = checked_output(path)
        header, arrays = self.state()
        data = encode({**written_by(), **header}, arrays)
        self.from_state(*decode(data, str(path)), str(path))  # only loadable files are written
        with atomic_write(path) as file:
            file.write(data)

    def _require_saveable(self) -> None:
        """Raise `QIPFInputError` if the model has a parameter that a file cannot hold."""

    def digest(self) -> str:
        """Digest of everything that scores and p-values depend on; the accept rule is left out."""
        self._require_fitted()
        header, arrays = self.state()
        kept = {key: value for key, value in header.items() if key not in DECISIONS}
        parameters = kept["parameters"].items()
        kept["parameters"] = {key: value for key, value in parameters if key not in NOT_SCORES}
        arrays.pop("training", None)
        return str(content_digest(kept, arrays))
