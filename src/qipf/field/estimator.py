"""QIPF: the uncertainty of predictions from a kernel field over training logits."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from torch import Tensor

from qipf.calibration.outcomes import Outcomes
from qipf.calibration.training_rows import KEPT_ROWS, TrainingSample
from qipf.errors import QIPFInputError, warn
from qipf.field.bandwidth import nearness_to_error
from qipf.field.fitting import build_field
from qipf.field.outputs import FieldOutputs
from qipf.field.parameters import (
    check_parameters,
    checked_random_state,
    reduction_for,
    require_range,
)
from qipf.field.reservoir import TrainingRows
from qipf.field.state import restore_field
from qipf.io.container import Arrays
from qipf.validation.arrays import checked_rows
from qipf.validation.labels import (
    LabelValueError,
    are_probabilities,
    checked_labels,
    class_logits,
    errors_from,
)
from qipf.validation.not_fitted import QIPFNotFittedError

if TYPE_CHECKING:
    from typing_extensions import Self

#: Numbers in the training rows, at most, whose uncertainty sets the outlier limit.
MOST_NUMBERS = 2**22


class QIPF(FieldOutputs, OutlierMixin, BaseEstimator):
    r"""Uncertainty of predictions from a kernel field over the model's own training logits.

    A Gaussian kernel field over training logits, its Schrödinger potential and the potential's
    Hermite modes; the uncertainty of a prediction is the mean of the modes at its logits. It is
    also a scikit-learn outlier detector, whose `score_samples` is minus the uncertainty.

    Parameters
    ----------
    orders : Hermite orders of the modes whose mean is the uncertainty.
    bandwidth : the kernel's width. ``"cv"`` chooses a factor on Silverman's bandwidth on held-out
        rows: with labels by the detection of the model's errors, and of correct predictions near
        an error where errors are few; without labels, or with few rows, by likelihood.
        ``"silverman"`` uses Silverman's bandwidth; a positive number is the bandwidth itself.
    max_centers : largest number of centres of the field.
    reduction : how more training predictions than that are reduced. ``"coreset"`` condenses them
        into weighted centres (`qipf.field.coreset`); ``"random"`` keeps a random sample, as the
        paper does, which is faster and less exact; ``"auto"`` is ``"coreset"`` for rows of up to
        64 numbers and ``"random"`` for longer ones.
    softening : ε ≥ 0 smooths the poles of the modes; 0 gives the exact modes. Softened modes
        flatten far from all predictions, where exact modes of odd order keep growing.
    normalization : constant of the kernel, on which the modes of order 2 and higher depend.
        ``"standard"``: the standard normal density of the distance in bandwidths;
        ``"density"``: a normalised Gaussian in the units of the logits, so that the field is a
        probability density; ``"peak"``: 1 at its peak. See `qipf.field.potential`.
    fallback : whether the uncertainty is the entropy of the softmax for two classes, whose logits
        differ only by their margin, and where it detects errors far better than the field: by
        more than 0.1 of ROC-AUC on held-out rows. It needs labels. Modes and potential stay the
        field's. A warning says so.
    contamination : share of predictions that `predict` calls outliers: of the held-out ones once
        the field is calibrated, before of the training predictions.
    engine : ``"auto"``, or a name from `qipf.field.engines.ENGINES`.
    device : ``"auto"`` computes tensors on their own device and arrays on CUDA if available; or
        any torch device.
    random_state : seed of the sample or coreset and of the held-out split.
    nan_policy : ``"raise"`` for predictions with NaN or infinity, or ``"propagate"``: the others
        are scored, and these have scores and p-values of NaN, are not accepted, and are outliers.
        `fit`, `calibrate` and `qipf.report` always raise.

    Attributes
    ----------
    centers_ : (N, d) the field's centres.
    log_weights_ : (N,) log shares of the training rows that the centres stand for; None when all
        are equal.
    spread_ : standard deviation of those rows about their centres; 0 when the centres are rows.
    n_samples_seen_ : number of training rows.
    bandwidth_ : the kernel's bandwidth σ.
    bandwidth_factor_ : σ divided by Silverman's bandwidth.
    bandwidth_criterion_ : what chose it: error detection, errors and near errors, likelihood,
        silverman or given.
    energies_ : (len(orders),) ground energies of the modes, E_p.
    ground_energy_ : ground energy of the potential, E.
    score_ : what the uncertainty is: ``"modes"``, their mean, or ``"entropy"`` (see `fallback`).
    probabilities_ : whether the rows are class probabilities instead of logits.
    offset_ : quantile of `score_samples` at `contamination` among the training predictions.
    detection_ : ROC-AUC of detecting errors, beside the entropy's and the largest logit's: of
        held-out training rows, or of the calibration set after `calibrate`; None without labels.
    calibration_, rule_ : see `calibrate` and `accept_rule`; None before.

    After `partial_fit` the fitted attributes are set by the first method that needs them.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> train_logits = rng.normal(size=(500, 3))
    >>> field = QIPF().fit(train_logits)
    >>> near, far = field.uncertainty([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]])
    >>> bool(near < far)
    True
    """

    def __init__(
        self,
        orders: Sequence[int] = (1, 2, 3, 4),
        bandwidth: float | str = "cv",
        max_centers: int = 6000,
        reduction: str = "auto",
        softening: float = 0.0,
        normalization: str = "standard",
        fallback: bool = True,
        contamination: float = 0.1,
        engine: str = "auto",
        device: str | torch.device = "auto",
        random_state: Any = 0,
        nan_policy: str = "raise",
    ) -> None:
        self.orders = orders
        self.bandwidth = bandwidth
        self.max_centers = max_centers
        self.reduction = reduction
        self.softening = softening
        self.normalization = normalization
        self.fallback = fallback
        self.contamination = contamination
        self.engine = engine
        self.device = device
        self.random_state = random_state
        self.nan_policy = nan_policy

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any = None, *, wrong: Any = None) -> "Self":
        """Build the field from training logits.

        Parameters
        ----------
        X : (n, d) logits of the trained model on its training inputs, or outputs of any layer.
        y : (n,) true classes 0..d-1. The model erred where the largest logit is of another class;
            it was near an error where the largest logit leads by little.
        wrong : (n,) booleans, true where the model erred: instead of `y`, when `X` is not logits.
        """
        check_parameters(self)
        with self._changed() as field:
            field._reset()
            field._add(X, y, wrong, None, fewest=2)
            field._build()
        return self

    def partial_fit(
        self, X: Any, y: Any = None, *, wrong: Any = None, logits: Tensor | None = None
    ) -> "Self":
        """Add training logits batch by batch, in bounded memory.

        Either all batches have labels or none has. The field is built by the first method that
        needs it, so small batches cost little. It does not depend on how the rows were split into
        batches, and equals the field that `fit` builds from all of them.

        Parameters
        ----------
        X, y, wrong : as in `fit`.
        logits : (n, classes) logits of the same predictions, where `X` is a layer's output and
            errors are given by `wrong`: they show which predictions were near an error.
        """
        check_parameters(self)
        if "centers_" in self.__dict__ and "_rows" not in self.__dict__:
            raise QIPFInputError(
                "This field was loaded from a file, which does not hold the training rows. Fit a "
                "new one to add rows."
            )
        with self._changed() as field:
            field._add(X, y, wrong, logits, fewest=1)
        return self

    def build(self) -> "Self":
        """Build the field from the rows added by `partial_fit`, if it is not built yet."""
        self._require_fitted()
        return self

    def fit_rows(self, rows: TrainingRows) -> "Self":
        """Build the field from training rows that were collected elsewhere, as on a cluster."""
        check_parameters(self)
        with self._changed() as field:
            field._reset()
            field.n_features_in_ = rows.sample.shape[1]
            field._rows, field._device = rows, self._compute_device(rows.sample, None)
            field._build()
        return self

    def _add(self, X: Any, y: Any, wrong: Any, logits: Tensor | None, fewest: int) -> None:
        seen: TrainingRows | None = self.__dict__.get("_rows")
        rows = checked_rows(self, X, name="X", reset=seen is None, minimum=fewest)
        require_range(rows)
        errors = self._errors(rows, y, wrong, required=seen is not None and seen.labelled)
        if wrong is None:
            logits = rows
        nearness = None
        if errors is not None:
            nearness = nearness_to_error(errors.cpu().numpy(), logits)
        if seen is None:
            random = checked_random_state(self.random_state)
            reduction = reduction_for(self, lambda: rows.shape[1])
            seen = TrainingRows(int(self.max_centers), reduction, random)
        elif seen.labelled != (errors is not None):
            raise QIPFInputError(
                f"This batch {'lacks' if seen.labelled else 'has'} labels, unlike those before it. "
                "Label all batches or none."
            )
        self._unbuild()
        self._rows, self._device = seen, self._compute_device(rows, X)
        seen.add(rows, nearness)
        seen.are_logits &= wrong is None or (
            logits is not None and _equal(logits, class_logits(rows))
        )
        self.n_samples_seen_ = seen.count

    def _errors(self, rows: Tensor, y: Any, wrong: Any, required: bool) -> Tensor | None:
        """Errors of the model; labels that are not classes are ignored with a warning.

        They raise if batches before this one had labels.
        """
        try:
            return errors_from(rows, y, wrong)
        except LabelValueError as error:
            if required:
                raise
            warn(
                f"The model's errors are unknown, and the bandwidth is chosen by likelihood: "
                f"{error} Pass wrong= if X is not logits."
            )
            return None

    def _build(self) -> None:
        """Build the field from the rows added so far."""
        rows = self._rows
        if not rows.varied:
            raise QIPFInputError(
                f"X has fewer than two distinct rows (n_samples = {rows.count}, all equal): "
                "a field needs predictions that differ. Check that the model is trained and that "
                "X holds logits of different inputs."
            )
        self.probabilities_ = are_probabilities(rows.sample)
        engine = build_field(self, rows, self._device)
        self._engines = {self._device: (engine, torch.from_numpy(self.energies_).to(self._device))}
        self.n_samples_seen_ = rows.count
        sample = rows.sample
        self._training = TrainingSample(sample[:KEPT_ROWS].clone(), rows.count)
        sample = sample[:: -(-sample.numel() // MOST_NUMBERS)]  # a quantile needs no more
        scores = -self._uncertainty(sample.to(self._device)).cpu().numpy()
        self.offset_ = float(np.percentile(scores, 100.0 * self.contamination))

    def _reset(self) -> None:
        self._unbuild()
        self.__dict__.pop("_rows", None)

    def _unbuild(self) -> None:
        self._clear_calibration()  # its scores came from the field that is dropped
        for name in self.learned:
            self.__dict__.pop(name, None)

    def __sklearn_is_fitted__(self) -> bool:
        return "offset_" in self.__dict__ or "_rows" in self.__dict__

    def _require_fitted(self) -> None:
        if "offset_" in self.__dict__:
            return
        if "_rows" not in self.__dict__:
            raise QIPFNotFittedError(
                f"This {type(self).__name__} is not fitted yet. Call fit(train_logits) first."
            )
        with self._changed() as field:
            field._build()  # rows were added by partial_fit

    # ------------------------------------------------------------------ decisions

    def calibrate(self, X: Any, y: Any = None, *, wrong: Any = None) -> "Self":
        """Keep the scores of held-out predictions, for p-values, accept rules and monitors.

        The predictions must not be among those the field was fitted on or tuned with. Fitting
        again drops them.

        Parameters
        ----------
        X : (n, d) logits of held-out predictions; of more than 2²⁰ a random subset is kept.
        y : (n,) true classes 0..d-1, for `accept_rule` and accuracy estimates.
        wrong : (n,) booleans, true where the model erred: instead of `y`, when `X` is not logits.
        """
        self._set_calibration(self._outcomes(X, y, wrong=wrong))
        return self

    def _outcomes(self, X: Any, y: Any = None, *, wrong: Any = None) -> Outcomes:
        rows = self._checked(X)
        try:
            errors = errors_from(rows, y, wrong)
        except LabelValueError as error:
            raise QIPFInputError(f"{error} Pass wrong= if X is not logits.") from error
        labels = None if y is None else checked_labels(y, len(rows), None, "y")
        return Outcomes(rows, *self._both(rows), errors, labels, are_logits=wrong is None)

    # ------------------------------------------------------------------ copies and files

    def without_rows(self) -> "Self":
        """A copy without the training rows, which only `partial_fit` needs; small to send."""
        self._require_fitted()
        slim = copy.copy(self)
        slim.__dict__.pop("_rows", None)
        return slim

    @classmethod
    def from_state(cls, header: dict[str, Any], arrays: Arrays, path: str) -> "Self":
        """The field in a file's header and arrays, which are checked; for `qipf.load`."""
        field = cls()
        restore_field(field, header, arrays, path)
        return field

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Parameters that are not the default, calibration set, error detection and rule."""
        return ", ".join([super().__repr__(N_CHAR_MAX), *self._about()])

    def _is_built(self) -> bool:
        return "offset_" in self.__dict__

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """What a notebook shows, instead of scikit-learn's diagram of one box."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_engines", None)
        return state


def _equal(logits: Tensor, rows: Tensor) -> bool:
    """Whether the rows are the logits themselves, not the output of another layer."""
    return logits.shape == rows.shape and bool((logits.to(rows) == rows).all())
