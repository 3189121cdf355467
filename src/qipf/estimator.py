"""QIPF: a field over a model's own predictions, and the uncertainty it gives to others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from torch import Tensor

from qipf import engines
from qipf.arrays import checked_rows, given_back
from qipf.bandwidth import choose_factor, silverman
from qipf.engines import Engine, Moments
from qipf.errors import QIPFInputError, QIPFNotFittedError, QIPFWarning, unknown_name
from qipf.potential import (
    bare_modes,
    checked_orders,
    checked_softening,
    curvature,
    ground_energies,
)

#: Rows kept out of the field, at most, to choose the bandwidth on.
HELD_OUT = 10_000

#: Fewer rows than this are not split: Silverman's width is taken as it is.
FEWEST_TO_SPLIT = 10


class QIPF(OutlierMixin, BaseEstimator):
    r"""How unusual a prediction is among those the model makes on its own training data.

    A Gaussian kernel field over training logits, its Schrödinger potential and the potential's
    Hermite modes; the uncertainty of a prediction is the mean of the modes at its logits. It is
    also a scikit-learn outlier detector, whose `score_samples` is minus the uncertainty.

    Parameters
    ----------
    orders : Hermite orders of the modes whose mean is the uncertainty.
    bandwidth : ``"cv"`` chooses a factor on Silverman's width by held-out data (by the detection
        of the model's errors where labels tell them, else by likelihood), ``"silverman"`` takes
        the width itself, a positive number is the width.
    max_centers : at most so many training predictions form the field.
    reduction : how they are chosen: ``"random"``.
    softening : ε ≥ 0 rounds off the modes' poles; 0 gives the exact modes.
    contamination : share of training predictions that `predict` calls outliers.
    engine : ``"auto"``, or a name from `qipf.engines.ENGINES`.
    device : ``"auto"`` computes a tensor where it is and arrays on CUDA if there is one; or any
        torch device.
    random_state : seed of the subsample and of the split.

    Attributes
    ----------
    centers_ : (N, d) the field's centres.
    bandwidth_ : the kernel's width σ.
    bandwidth_factor_ : σ over Silverman's width.
    bandwidth_criterion_ : what chose it: error detection, likelihood, silverman or given.
    energies_ : (len(orders),) ground energies of the modes, E_p.
    ground_energy_ : ground energy of the potential, E.
    offset_ : `decision_function` is `score_samples` minus this.

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
        reduction: str = "random",
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
        y : (n,) true classes 0..d-1; where the largest logit disagrees, the model erred.
        wrong : (n,) booleans, where the model erred: instead of `y`, when `X` is not logits.
        """
        before = dict(self.__dict__)
        try:
            return self._fit(X, y, wrong)
        except BaseException:
            self.__dict__ = before  # nothing half-fitted is left behind
            raise

    def _fit(self, X: Any, y: Any, wrong: Any) -> QIPF:
        self._check_parameters()
        rows = checked_rows(self, X, name="X", reset=True, minimum=2)
        rows = rows.detach().to(self._compute_device(rows, X))
        errors = _errors(rows, y, wrong)
        if not bool((rows != rows[0]).any()):
            raise QIPFInputError(
                f"X has fewer than two distinct rows (n_samples = {rows.shape[0]}, all equal): "
                "a field needs predictions that differ. Check that the model is trained and that "
                "X holds logits of different inputs."
            )
        order = check_random_state(self.random_state).permutation(rows.shape[0])
        centers, sigma, factor, criterion = self._choose_field(rows, errors, order)
        field = engines.create(self.engine, centers, sigma)
        inside = field(centers)
        bare = bare_modes(inside, sigma, self.orders, self.softening)
        self.centers_ = centers.cpu().numpy()
        self.bandwidth_ = sigma
        self.bandwidth_factor_ = factor
        self.bandwidth_criterion_ = criterion
        self.energies_ = ground_energies(bare).cpu().numpy()
        self.ground_energy_ = -float(curvature(inside, sigma).min())
        self._fields: dict[torch.device, Engine] = {centers.device: field}
        self._wide_energies: dict[torch.device, Tensor] = {}
        scores = -self._modes(rows).mean(1).cpu().numpy()
        self.offset_ = float(np.percentile(scores, 100.0 * self.contamination))
        return self

    def _choose_field(
        self, rows: Tensor, errors: np.ndarray | None, order: np.ndarray
    ) -> tuple[Tensor, float, float, str]:
        """Centres, width, factor on Silverman's width, and what chose it."""
        count = rows.shape[0]
        centers = rows[torch.from_numpy(order[: self.max_centers]).to(rows.device)]
        if not isinstance(self.bandwidth, str):
            sigma = float(self.bandwidth)
            return centers, sigma, sigma / silverman(rows), "given"
        if self.bandwidth == "silverman" or count < FEWEST_TO_SPLIT:
            return centers, silverman(centers), 1.0, "silverman"
        held = min(HELD_OUT, max(count - self.max_centers, math.ceil(count / 5)))
        held_out = torch.from_numpy(order[count - held :]).to(rows.device)
        inside = order[: min(self.max_centers, count - held)]
        candidates = rows[torch.from_numpy(inside).to(rows.device)]
        choice = choose_factor(
            candidates,
            rows[held_out],
            None if errors is None else errors[order[count - held :]],
            width=silverman(candidates),
            orders=self.orders,
            softening=self.softening,
            engine=self.engine,
        )
        # a small sample goes back into the field whole once the factor is known
        return centers, choice.factor * silverman(centers), choice.factor, choice.criterion

    def _check_parameters(self) -> None:
        checked_orders(self.orders)
        checked_softening(self.softening)
        if isinstance(self.bandwidth, str):
            if self.bandwidth not in ("cv", "silverman"):
                raise unknown_name("bandwidth", self.bandwidth, ["cv", "silverman"])
        elif not isinstance(self.bandwidth, Real) or not 0 < float(self.bandwidth) < math.inf:
            raise QIPFInputError(
                f"bandwidth must be 'cv', 'silverman' or a positive number, got {self.bandwidth!r}."
            )
        whole = isinstance(self.max_centers, Integral) and not isinstance(self.max_centers, bool)
        if not whole or self.max_centers < 1:
            raise QIPFInputError(
                f"max_centers must be an integer of at least 1, got {self.max_centers!r}."
            )
        if self.reduction != "random":
            raise unknown_name("reduction", self.reduction, ["random"])
        if not isinstance(self.contamination, Real) or not 0 < self.contamination <= 0.5:
            raise QIPFInputError(f"contamination must lie in (0, 0.5], got {self.contamination!r}.")
        if self.engine != "auto" and self.engine not in engines.ENGINES:
            raise unknown_name("engine", self.engine, [*engines.ENGINES, "auto"])
        self._named_device()

    # ------------------------------------------------------------------ scoring

    def uncertainty(self, X: Any) -> Any:  # (n,)
        """How little each prediction is to be trusted: the mean of its modes. Higher = less."""
        return given_back(self._modes(self._checked(X)).mean(1), X)

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

    def _modes(self, rows: Tensor) -> Tensor:
        bare = bare_modes(self._moments(rows), self.bandwidth_, self.orders, self.softening)
        energies = self._wide_energies.get(rows.device)
        if energies is None:
            energies = torch.from_numpy(self.energies_).to(rows.device)
            self._wide_energies[rows.device] = energies
        return bare + energies

    def _moments(self, rows: Tensor) -> Moments:
        return self._field(rows.device)(rows)

    def _field(self, device: torch.device) -> Engine:
        field = self._fields.get(device)
        if field is None:
            centers = torch.from_numpy(self.centers_).to(device)
            field = engines.create(self.engine, centers, self.bandwidth_)
            self._fields[device] = field
        return field

    # ------------------------------------------------------------------ devices and state

    def _named_device(self) -> torch.device | None:
        """The device that was asked for; None when the data decides."""
        if self.device == "auto":
            return None
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            raise QIPFInputError(
                f"device {self.device!r} cannot be used here ({str(error).splitlines()[0]}). "
                "Pass 'auto', 'cpu', or 'cuda' where torch sees one."
            ) from error
        return device

    def _compute_device(self, rows: Tensor, X: Any) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        if not isinstance(X, Tensor) and torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return rows.device

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        for cache in ("_fields", "_wide_energies"):
            if cache in state:
                state[cache] = {}
        return state


def _errors(rows: Tensor, y: Any, wrong: Any) -> np.ndarray | None:
    """Where the model erred, if that can be known."""
    if y is not None and wrong is not None:
        raise QIPFInputError("Pass y (true classes) or wrong (where the model erred), not both.")
    if wrong is not None:
        flags = _column(wrong, rows.shape[0], "wrong")
        if not np.isin(flags, (0, 1)).all():
            raise QIPFInputError("wrong must hold booleans: True where the model erred.")
        return flags.astype(bool)
    if y is None:
        return None
    labels = _column(y, rows.shape[0], "y")
    numeric = np.issubdtype(labels.dtype, np.number) or labels.dtype == bool
    classes = rows.shape[1]
    if not numeric or not np.isin(labels, np.arange(classes)).all():
        warnings.warn(
            f"y does not hold classes 0..{classes - 1}, so the model's errors cannot be told; the "
            "bandwidth is chosen by likelihood. Pass wrong= if X is not logits.",
            QIPFWarning,
            stacklevel=5,
        )
        return None
    return rows.argmax(1).cpu().numpy() != labels


def _column(values: Any, length: int, name: str) -> np.ndarray:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (length,):
        raise QIPFInputError(
            f"{name} must have shape ({length},), one entry per row of X, got {array.shape}."
        )
    return array
