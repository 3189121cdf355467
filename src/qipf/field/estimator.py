"""QIPF: a field over a model's own predictions, and the uncertainty it gives to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from torch import Tensor

from qipf.calibration.mixin import Deciding
from qipf.errors import QIPFInputError
from qipf.field.bandwidth import choose_factor, nearness_to_error, silverman
from qipf.field.engines import Engine, Moments
from qipf.field.engines.base import blocks
from qipf.field.kernel import Coreset, field_of
from qipf.field.parameters import check_parameters, checked_random_state, errors_of, reduction_for
from qipf.field.potential import bare_modes, curvature, ground_energies
from qipf.field.reservoir import TrainingRows
from qipf.validation.arrays import checked_rows, given_back
from qipf.validation.not_fitted import QIPFNotFittedError

#: Predictions whose modes are held at a time, by kind of device.
ROWS_PER_BLOCK = {"cpu": 2**16, "cuda": 2**20}

#: So many predictions or fewer cost more in calls than in arithmetic.
FEW_ROWS = 64

#: Fewer rows than this are not split: Silverman's width is taken as it is.
FEWEST_TO_SPLIT = 10

#: What a field learns from its training rows, once all of them are known.
LEARNED = (
    "centers_",
    "log_weights_",
    "spread_",
    "bandwidth_",
    "bandwidth_factor_",
    "bandwidth_criterion_",
    "energies_",
    "ground_energy_",
    "offset_",
)


class QIPF(Deciding, OutlierMixin, BaseEstimator):
    r"""How unusual a prediction is among those the model makes on its own training data.

    A Gaussian kernel field over training logits, its Schrödinger potential and the potential's
    Hermite modes; the uncertainty of a prediction is the mean of the modes at its logits. It is
    also a scikit-learn outlier detector, whose `score_samples` is minus the uncertainty.

    Parameters
    ----------
    orders : Hermite orders of the modes whose mean is the uncertainty.
    bandwidth : ``"cv"`` chooses a factor on Silverman's width by held-out data (by the detection
        of the model's errors where labels tell them, and of correct predictions near an error
        where errors are few; else, or where rows are few, by likelihood), ``"silverman"`` takes
        the width itself, a positive number is the width.
    max_centers : at most so many centres form the field.
    reduction : what is done with more training predictions than that. ``"coreset"`` gathers them
        into weighted centres that stand for all of them (`qipf.field.coreset`); ``"random"`` keeps a
        random part, as the paper does, which is faster and less exact; ``"auto"`` does the first
        for rows of up to 16 numbers, the second for longer ones.
    softening : ε ≥ 0 rounds off the modes' poles; 0 gives the exact modes. Softened modes flatten
        far from all predictions, where exact ones of odd order grow without end.
    contamination : share of training predictions that `predict` calls outliers.
    engine : ``"auto"``, or a name from `qipf.field.engines.ENGINES`.
    device : ``"auto"`` computes a tensor where it is and arrays on CUDA if there is one; or any
        torch device.
    random_state : seed of the subsample or coreset and of the split.

    Attributes
    ----------
    centers_ : (N, d) the field's centres.
    log_weights_ : (N,) logarithms of the shares of the training rows that they stand for; None
        when all are equal.
    spread_ : how far those rows lie from their centres, per dimension; 0 when the centres are rows.
    n_samples_seen_ : training rows so far.
    bandwidth_ : the kernel's width σ.
    bandwidth_factor_ : σ over Silverman's width.
    bandwidth_criterion_ : what chose it: error detection, errors and near errors, likelihood,
        silverman or given.
    energies_ : (len(orders),) ground energies of the modes, E_p.
    ground_energy_ : ground energy of the potential, E.
    offset_ : `decision_function` is `score_samples` minus this.
    calibration_ : held-out predictions that `calibrate` was given; None before.
    rule_ : the last rule that `accept_rule` made of them; None before.

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
        contamination: float = 0.1,
        engine: str = "auto",
        device: str | torch.device = "auto",
        random_state: Any = 0,
    ) -> None:
        self.orders = orders
        self.bandwidth = bandwidth
        self.max_centers = max_centers
        self.reduction = reduction
        self.softening = softening
        self.contamination = contamination
        self.engine = engine
        self.device = device
        self.random_state = random_state

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any = None, *, wrong: Any = None) -> QIPF:
        """Build the field from training logits.

        Parameters
        ----------
        X : (n, d) logits the trained model gives its training inputs (or any layer's output).
        y : (n,) true classes 0..d-1; where the largest logit disagrees, the model erred, and
            where it leads by little, the model was near an error.
        wrong : (n,) booleans, where the model erred: instead of `y`, when `X` is not logits.
        """
        check_parameters(self)
        with self._untouched_on_failure():
            self._forget()
            self._add(X, y, wrong, fewest=2)
            self._settle()
        return self

    def partial_fit(self, X: Any, y: Any = None, *, wrong: Any = None) -> QIPF:
        """Go on building the field with more training logits, in bounded memory.

        Parameters as in `fit`; all batches have labels, or none has. The field is built when it
        is next used, so small batches cost little; it is the same however the rows were cut into
        batches, and the one `fit` builds from all of them.
        """
        check_parameters(self)
        if "_seen" not in self.__dict__ and "centers_" in self.__dict__:
            raise QIPFInputError(
                "This field was loaded from a file, which does not keep the training rows. Fit a "
                "new one to go on training."
            )
        with self._untouched_on_failure():
            self._add(X, y, wrong, fewest=1)
        return self

    def _add(self, X: Any, y: Any, wrong: Any, fewest: int, logits: Tensor | None = None) -> None:
        """Let the next rows pass; `logits` tell what was near an error where `X` does not."""
        seen: TrainingRows | None = self.__dict__.get("_seen")
        rows = checked_rows(self, X, name="X", reset=seen is None, minimum=fewest)
        errors = errors_of(rows, y, wrong)
        if wrong is None:
            logits = rows
        nearness = None if errors is None else nearness_to_error(errors, logits)
        if seen is None:
            random = checked_random_state(self.random_state)
            reduction = reduction_for(self, lambda: rows.shape[1])
            seen = TrainingRows(int(self.max_centers), reduction, random)
        elif seen.labelled != (errors is not None):
            raise QIPFInputError(
                f"This batch {'lacks' if seen.labelled else 'has'} labels, unlike those before it. "
                "Label all batches or none."
            )
        self._unsettle()
        self._seen, self._device = seen, self._compute_device(rows, X)
        seen.add(rows, nearness)
        self.n_samples_seen_ = seen.count

    def _settle(self) -> None:
        """Build the field from the rows seen so far."""
        seen = self._seen
        if not seen.varied:
            raise QIPFInputError(
                f"X has fewer than two distinct rows (n_samples = {seen.count}, all equal): "
                "a field needs predictions that differ. Check that the model is trained and that "
                "X holds logits of different inputs."
            )
        whole, sigma, factor, criterion = self._choose_field(seen)
        equal = bool((whole.weights == whole.weights[0]).all())
        log_weights = None if equal else whole.log_weights
        field = field_of(self.engine, whole.centers, sigma, log_weights, whole.spread)
        inside = field(whole.centers)
        self.centers_ = whole.centers.cpu().numpy()
        self.log_weights_ = None if log_weights is None else log_weights.cpu().numpy()
        self.spread_ = whole.spread
        self.bandwidth_ = sigma
        self.bandwidth_factor_ = factor
        self.bandwidth_criterion_ = criterion
        self.energies_ = (
            ground_energies(bare_modes(inside, sigma, self.orders, self.softening)).cpu().numpy()
        )
        self.ground_energy_ = -float(curvature(inside, sigma).min())
        self._fields: dict[torch.device, Engine] = {whole.centers.device: field}
        self._energies: dict[torch.device, Tensor] = {}
        scores = -self._uncertainty(seen.sample.to(self._device)).cpu().numpy()
        self.offset_ = float(np.percentile(scores, 100.0 * self.contamination))

    def _choose_field(self, seen: TrainingRows) -> tuple[Coreset, float, float, str]:
        """Centres, width, factor on Silverman's width, and what chose it."""
        width = _width(seen.gathered(0, self._device))
        factor, criterion = 1.0, "silverman"
        if not isinstance(self.bandwidth, str):
            factor, criterion = float(self.bandwidth) / width, "given"
        elif self.bandwidth == "cv" and seen.count >= FEWEST_TO_SPLIT:
            factor, criterion = self._choose_factor(seen)
        sigma = float(self.bandwidth) if criterion == "given" else factor * width
        # the held-out rows join the field once the factor is known, if there is room for them
        return seen.condensed(0, self._device, sigma), sigma, factor, criterion

    def _choose_factor(self, seen: TrainingRows) -> tuple[float, str]:
        """By the rows a coreset is made of: it serves the one width it is fitted to."""
        held = seen.held_out()
        sample, nearness = seen.sample, seen.sample_nearness()
        part = seen.gathered(held, self._device)
        choice = choose_factor(
            part.centers,
            sample[sample.shape[0] - held :].to(self._device),
            None if nearness is None else nearness[sample.shape[0] - held :],
            width=_width(part),
            orders=self.orders,
            softening=self.softening,
            engine=self.engine,
            log_weights=part.log_weights,
            spread=part.spread,
        )
        return choice.factor, choice.criterion

    def _forget(self) -> None:
        self._unsettle()
        self.__dict__.pop("_seen", None)

    def _unsettle(self) -> None:
        # held-out predictions were judged by the field that is no more
        for name in (*LEARNED, "calibration_", "rule_"):
            self.__dict__.pop(name, None)

    @contextmanager
    def _untouched_on_failure(self) -> Iterator[None]:
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before  # nothing half-fitted is left behind
            raise

    def __getattr__(self, name: str) -> Any:
        # only reached for what is not there: after partial_fit, the field is built on demand
        if name in LEARNED and "_seen" in self.__dict__:
            with self._untouched_on_failure():
                self._settle()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ------------------------------------------------------------------ scoring

    def uncertainty(self, X: Any) -> Any:  # (n,)
        """How little each prediction is to be trusted: the mean of its modes. Higher = less."""
        return given_back(self._uncertainty(self._checked(X)), X)

    def modes(self, X: Any) -> Any:  # (n, len(orders))
        """The potential's Hermite modes at each prediction, zero at their calmest known place."""
        return given_back(self._modes(self._checked(X)), X)

    def potential(self, X: Any) -> Any:  # (n,)
        """The Schrödinger potential of the field, V_s: the QIPF itself."""
        rows = self._checked(X)
        return given_back(curvature(self._moments(rows), self.bandwidth_) + self.ground_energy_, X)

    def log_density(self, X: Any) -> Any:  # (n,)
        """The logarithm of the field, log ρ ≤ 0: the IPF."""
        return given_back(self._moments(self._checked(X)).log_density, X)

    def score_samples(self, X: Any) -> Any:  # (n,)
        """Minus the uncertainty: higher = more usual, as scikit-learn has it."""
        return -self.uncertainty(X)

    def decision_function(self, X: Any) -> Any:  # (n,)
        """`score_samples` less its `contamination` quantile in training; negative = outlier."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Any:  # (n,)
        """1 for predictions like those of the training data, -1 for outliers."""
        usual = self.decision_function(X) >= 0
        if isinstance(usual, Tensor):
            return torch.where(usual, 1, -1)
        return np.where(usual, 1, -1)

    def _checked(self, X: Any) -> Tensor:
        if not hasattr(self, "offset_"):
            raise QIPFNotFittedError(
                f"This {type(self).__name__} is not fitted yet. Call fit(train_logits) first."
            )
        rows = checked_rows(self, X, name="X", reset=False)
        return rows.to(self._compute_device(rows, X))

    def _uncertainty(self, rows: Tensor) -> Tensor:
        size = ROWS_PER_BLOCK.get(rows.device.type, ROWS_PER_BLOCK["cpu"])
        if rows.shape[0] <= size:
            return self._modes(rows).mean(1)
        # block by block, so that a million rows take no more memory than their answer
        parts = blocks(rows.shape[0], size)
        return torch.cat([self._modes(rows[part]).mean(1) for part in parts])

    def _modes(self, rows: Tensor) -> Tensor:
        moments = self._moments(rows)
        few = rows.shape[0] <= FEW_ROWS and rows.device.type == "cpu" and not rows.requires_grad
        bare = bare_modes(moments, self.bandwidth_, self.orders, self.softening, in_numpy=few)
        energies = self._energies.get(rows.device)
        if energies is None:
            energies = torch.from_numpy(self.energies_).to(rows.device)
            self._energies[rows.device] = energies
        return bare + energies

    def _moments(self, rows: Tensor) -> Moments:
        return self._field(rows.device)(rows)

    def _field(self, device: torch.device) -> Engine:
        field = self._fields.get(device)
        if field is None:
            centers = torch.from_numpy(self.centers_).to(device)
            log_weights = None
            if self.log_weights_ is not None:
                log_weights = torch.from_numpy(self.log_weights_).to(device)
            field = field_of(self.engine, centers, self.bandwidth_, log_weights, self.spread_)
            self._fields[device] = field
        return field

    # ------------------------------------------------------------------ devices and state

    def _compute_device(self, rows: Tensor, X: Any) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        if not isinstance(X, Tensor) and torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return rows.device

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        for cache in ("_fields", "_energies"):
            if cache in state:
                state[cache] = {}
        return state


def _width(whole: Coreset) -> float:
    """Silverman's width for the rows that a coreset stands for."""
    return silverman(whole.centers, whole.log_weights, whole.count, whole.spread)
