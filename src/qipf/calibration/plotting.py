"""Plots of a fitted model: axes in, axes out, as scikit-learn's displays."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qipf.calibration.conformal import Calibration, calibration_of
from qipf.calibration.detection import entropy_of
from qipf.calibration.outcomes import Outcomes
from qipf.calibration.risk_coverage import risk_coverage
from qipf.calibration.rule import AcceptRule
from qipf.errors import QIPFInputError, unknown_name
from qipf.metrics.error_detection import HIGHER_IS_BETTER, evaluate
from qipf.plots.risk_coverage import draw_risk_coverage
from qipf.plots.severity import draw_severity


class PlotMixin:
    """Plots of how well a model finds errors; they need matplotlib.

    Labelled data is what `calibrate` takes: a loader for models with a network, else a tuple of
    arrays, such as ``(logits, labels)``.
    """

    calibration_: Calibration | None
    rule_: AcceptRule | None

    #: The method of the benchmark in whose style the model is drawn.
    drawn_as = "qipf"

    #: The arrays that `calibrate` takes; labels, the last, may be missing.
    takes: tuple[str, ...] = ("logits", "labels")

    if TYPE_CHECKING:

        def _outcomes(self, *data: Any, **options: Any) -> Outcomes: ...

    def _outcomes_of(self, data: Any) -> Outcomes:
        """Outcomes of labelled data, given as one argument."""
        got = type(data).__name__
        if isinstance(data, (tuple, list)):
            if len(data) in (len(self.takes) - 1, len(self.takes)) and not _is_batch(data[0]):
                return self._outcomes(*data)
            batches = len(data) > 0 and _is_batch(data[0])
            got = f"a {got} of {'batches' if batches else f'length {len(data)}'}"
        raise QIPFInputError(
            "The data must be a tuple of the arrays that calibrate() takes: for "
            f"{type(self).__name__} pass ({', '.join(self.takes)}), got {got}."
        )

    def plot_risk_coverage(
        self,
        data: Any = None,
        *,
        ax: Any = None,
        name: str | None = None,
        confidence: float = 0.95,
        **style: Any,
    ) -> Any:
        """Draw the error rate among accepted predictions against the share accepted.

        Parameters
        ----------
        data : labelled data; by default the calibration set, on which the accept rule is drawn too.
        ax : matplotlib axes to draw on; by default those of a new figure.
        name : name of the curve; by default that of the class.
        confidence : of the band, which holds at a threshold chosen beforehand.
        style : further arguments of matplotlib's `plot` for the curve.

        Returns the axes.
        """
        found: Any
        if data is None:
            found, rule = calibration_of(self), self.rule_
            scores = found.scores
        else:
            found, rule = self._outcomes_of(data), None
            scores = found.uncertainty
        if found.wrong is None:
            raise QIPFInputError(
                "The errors of these predictions are unknown. Pass labels, or call calibrate() "
                "with labels."
            )
        curve = risk_coverage(scores, found.wrong, confidence)
        shown = rule if rule is not None and rule.accepted else None
        label = type(self).__name__ if name is None else name
        return draw_risk_coverage(curve, ax, label, self.drawn_as, shown, **style)

    def plot_severity(
        self,
        levels: Mapping[float, Any],
        metric: str = "roc_auc",
        *,
        ax: Any = None,
        name: str | None = None,
        **style: Any,
    ) -> Any:
        """Draw error detection against the severity of a corruption, beside the softmax entropy.

        Parameters
        ----------
        levels : labelled data at each level, such as ``{0: loader, 15: loader_of_rotated_inputs}``.
        metric : one of `qipf.metrics.error_detection.HIGHER_IS_BETTER`.
        ax : matplotlib axes to draw on; by default those of a new figure.
        name : name of the curve; by default that of the class.
        style : further arguments of matplotlib's `plot` for the curve.

        A level without errors, or with errors only, leaves a gap. Returns the axes.
        """
        if metric not in HIGHER_IS_BETTER:
            raise unknown_name("metric", metric, HIGHER_IS_BETTER)
        if not isinstance(levels, Mapping) or not levels:
            raise QIPFInputError(
                "levels must be a dict of labelled data by level, such as {0: loader, 15: "
                f"loader_of_rotated_inputs}}, got {type(levels).__name__}."
            )
        own, entropy, rates = [], [], []
        for level in sorted(levels):
            found = self._outcomes_of(levels[level])
            if found.wrong is None:
                raise QIPFInputError(f"The data of level {level:g} has no labels. Pass labels.")
            own.append(evaluate(found.uncertainty, found.wrong)[metric])
            entropy.append(evaluate(entropy_of(found.rows), found.wrong)[metric])
            rates.append(float(found.wrong.double().mean()))
        label = type(self).__name__ if name is None else name
        curves = {label: (self.drawn_as, own), "softmax entropy": ("entropy", entropy)}
        return draw_severity(sorted(levels), rates, curves, metric, ax, **style)


def _is_batch(part: Any) -> bool:
    """Whether a part of the data is itself a tuple of arrays, as a loader yields them."""
    if not isinstance(part, (tuple, list)):
        return False
    while isinstance(part, (tuple, list)) and part:
        part = part[0]
    return isinstance(part, Mapping) or getattr(part, "ndim", 0) > 1
