"""Scores of a fitted field: everything that follows from its learned attributes."""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qipf.calibration.detection import entropy_of
from qipf.calibration.mixin import CalibrationMixin
from qipf.calibration.prediction import Prediction, prediction_as
from qipf.calibration.snapshots import on_snapshot
from qipf.errors import QIPFInputError, QIPFScoreWarning, warn
from qipf.field.engines import Engine, Moments
from qipf.field.engines.base import blocks, by_device
from qipf.field.kernel import field_of
from qipf.field.potential import bare_modes, curvature
from qipf.validation.arrays import array_method, as_given, blank, checked_rows, usable_rows
from qipf.validation.labels import are_probabilities, class_logits
from qipf.validation.parameters import propagates

#: Predictions whose modes are computed at a time, by type of device.
ROWS_PER_BLOCK = {"cpu": 2**16, "cuda": 2**20}

#: Fewer rows may look like probabilities by chance.
FEWEST_TO_KNOW = 10

#: For so few predictions NumPy is faster than torch: calls cost more than arithmetic.
FEW_ROWS = 64


class FittedField(CalibrationMixin):
    """What a fitted `QIPF` computes.

    Plots and files are in `qipf.field.outputs`, parameters and fitting in `qipf.field.estimator`.
    """

    centers_: np.ndarray
    log_weights_: np.ndarray | None
    spread_: float
    bandwidth_: float
    bandwidth_factor_: float
    bandwidth_criterion_: str
    energies_: np.ndarray
    ground_energy_: float
    score_: str
    probabilities_: bool
    offset_: float

    #: Names of the attributes that `fit` learns from the training rows.
    learned = tuple(__annotations__)

    # parameters and counts that the scores depend on
    orders: Any
    softening: float
    normalization: str
    contamination: float
    engine: str
    device: Any
    n_features_in_: int
    n_samples_seen_: int

    @array_method
    def uncertainty(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Uncertainty of each prediction; higher is less trustworthy.

        It is the mean of the modes, or the entropy where `score_` says so.
        """
        return self._uncertainty(X)

    @array_method
    def modes(self, X: Tensor) -> Tensor:  # (n, d) -> (n, len(orders))
        """Hermite modes of the potential at each prediction; each is zero at its minimum."""
        return self._modes(X)

    @array_method
    def potential(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Schrödinger potential of the field at each prediction, V_s: the QIPF itself."""
        return curvature(self._moments(X), self.bandwidth_) + self.ground_energy_

    @array_method
    def log_density(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Logarithm of the field at each prediction, log ρ ≤ 0: the IPF."""
        return self._moments(X).log_density

    @array_method
    def novelty(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Minus the logarithm of the field, -log ρ ≥ 0; higher is less like the training data.

        It rises with the distance from the training rows. The uncertainty does not: it is high
        between classes, and far out the even modes vanish.
        """
        return -self._moments(X).log_density

    @on_snapshot
    def both_scores(self, X: Any) -> tuple[Any, Any]:  # (n, d) -> (n,), (n,)
        """Uncertainty and novelty of each prediction, from one evaluation of the field."""
        rows, missing = self._usable(X)
        uncertainty, novelty = (blank(score, missing) for score in self._both(rows))
        return as_given(uncertainty, X), as_given(novelty, X)

    @array_method
    def score_samples(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Minus the uncertainty: higher is more usual, as in scikit-learn."""
        return -self._uncertainty(X)

    @array_method
    def decision_function(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """`outlier_limit_` minus the uncertainty; outliers are below 0."""
        return min(self.outlier_limit_, sys.float_info.max) - self._uncertainty(X)

    @array_method
    def predict(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """1 for usual predictions, -1 for outliers, which are above `outlier_limit_`."""
        return torch.where(self._uncertainty(X) <= self.outlier_limit_, 1, -1)

    @property
    def outlier_limit_(self) -> float:
        """Uncertainty above which a prediction is an outlier; `contamination` is their share.

        After `calibrate` it is that of a p-value of `contamination` (`Calibration.outlier_limit`),
        which holds for new predictions like the held-out ones; infinite if these are too few.
        Before, it is minus `offset_`: a quantile of the training predictions, which score low
        because the field was fitted on them, so that a larger share of new ones lies above it.
        """
        if self.calibration_ is None:
            return -self.offset_
        return self.calibration_.outlier_limit(float(self.contamination))

    @on_snapshot
    def __call__(self, X: Any) -> Prediction:
        """Predicted class, uncertainty, novelty and decisions for logits; see `Prediction`."""
        rows, missing = self._usable(X)
        uncertainty, novelty = self._both(rows)
        logits = class_logits(blank(rows, missing))
        found = self._prediction(logits, uncertainty, novelty, missing=missing)
        return prediction_as(found, X)

    @array_method
    def p_values(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Conformal p-value of each prediction; small is unusual.

        For a prediction like the held-out ones, P(p ≤ t) ≤ t for every t; see `qipf.Calibration`.
        """
        p_values: Tensor = self._p_values(self._uncertainty(X))
        return p_values

    @array_method
    def novelty_p_values(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """Conformal p-value of each prediction's novelty; small is unlike the held-out data."""
        p_values: Tensor = self._p_values(self._both(X)[1], "novelty")
        return p_values

    @array_method
    def accepts(self, X: Tensor) -> Tensor:  # (n, d) -> (n,)
        """True where the accept rule accepts the prediction, false where it abstains."""
        accepted: Tensor = self._accepted(*self._both(X))
        return accepted

    def _checked(self, X: Any) -> Tensor:
        """Rows that are all finite."""
        self._require_fitted()
        rows = checked_rows(self, X, name="X", reset=False)
        self._check_kind(rows)
        return rows.to(self._compute_device(rows, X))

    def _usable(self, X: Any) -> tuple[Tensor, Tensor | None]:
        """Rows, and the mask of those that `nan_policy` leaves out; see `usable_rows`."""
        if not propagates(self.nan_policy):
            return self._checked(X), None
        given = checked_rows(self, X, name="X", reset=False, finite=False)
        (rows,), missing = usable_rows([given])
        if missing is None or not bool(missing.all()):
            self._check_kind(rows)
        return rows.to(self._compute_device(rows, X)), missing

    def _check_kind(self, rows: Tensor) -> None:
        """Raise if a field of probabilities gets other rows; warn of the reverse."""
        if self.probabilities_ and len(rows) and not are_probabilities(rows):
            raise QIPFInputError(
                "This field was fitted on class probabilities, and these rows are not: they must "
                "be from 0 to 1 and sum to 1. Pass what the field was fitted on."
            )
        if not self.probabilities_ and len(rows) >= FEWEST_TO_KNOW and are_probabilities(rows):
            warn(
                "These rows are class probabilities, and the field was fitted on other numbers. "
                "Pass what it was fitted on.",
                QIPFScoreWarning,
            )

    def _uncertainty(self, rows: Tensor) -> Tensor:
        if self.score_ == "entropy":
            return entropy_of(rows, self.probabilities_)
        return self._both(rows)[0]

    def _both(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Uncertainty and novelty (n,) from one evaluation of the field."""
        size = by_device(ROWS_PER_BLOCK, rows)
        if rows.shape[0] <= size:
            return self._both_of_block(rows)
        # block by block, so that a million rows take no more memory than their scores
        parts = [self._both_of_block(rows[part]) for part in blocks(rows.shape[0], size)]
        uncertainty, novelty = (torch.cat(values) for values in zip(*parts, strict=True))
        return uncertainty, novelty

    def _both_of_block(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        moments = self._moments(rows)
        if self.score_ == "entropy":
            uncertainty = entropy_of(rows, self.probabilities_)
        else:
            uncertainty = self._modes_at(moments, rows).mean(1)
        return uncertainty, -moments.log_density

    def _modes(self, rows: Tensor) -> Tensor:
        return self._modes_at(self._moments(rows), rows)

    def _modes_at(self, moments: Moments, rows: Tensor) -> Tensor:
        few = rows.shape[0] <= FEW_ROWS and rows.device.type == "cpu" and not rows.requires_grad
        bare = bare_modes(
            moments, self.bandwidth_, self.orders, self.softening, self.normalization, in_numpy=few
        )
        return bare + self._on(rows.device)[1]

    def _moments(self, rows: Tensor) -> Moments:
        return self._on(rows.device)[0](rows)

    def _on(self, device: torch.device) -> tuple[Engine, Tensor]:
        """Engine and energies on a device, kept for the next call."""
        cache: dict[torch.device, tuple[Engine, Tensor]] = self.__dict__.setdefault("_engines", {})
        if device not in cache:
            log_weights = None
            if self.log_weights_ is not None:
                log_weights = torch.from_numpy(self.log_weights_).to(device)
            centers, energies = (
                torch.from_numpy(values).to(device) for values in (self.centers_, self.energies_)
            )
            engine = field_of(self.engine, centers, self.bandwidth_, log_weights, self.spread_)
            cache[device] = engine, energies
        return cache[device]

    def score_origin(self) -> float:
        """Mean of the energies if it is that of a pole: the potential's own is at most d/4."""
        energy = float(self.energies_.mean()) if self.score_ == "modes" else 0.0
        return energy if energy > self.n_features_in_ / 4 else 0.0

    def _compute_device(self, rows: Tensor, X: Any) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        if not isinstance(X, Tensor) and torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return rows.device
