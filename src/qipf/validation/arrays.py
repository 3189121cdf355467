"""Arrays of predictions: checked before use; results are returned as the kind that was passed."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from qipf.errors import QIPFError, QIPFInputError, QIPFTypeError

#: Types converted to float32; other types that are not float32 are converted to float64.
_HALF = (torch.float16, torch.bfloat16)


class ArrayFunction(Protocol):
    """A function of predictions: a tensor gives a tensor, anything else a NumPy array."""

    @overload
    def __call__(self, X: Tensor) -> Tensor: ...
    @overload
    def __call__(self, X: ArrayLike) -> NDArray[Any]: ...


class ArrayMethod(Protocol):
    """A method that is an `ArrayFunction` once bound."""

    @overload
    def __get__(self, instance: None, owner: Any) -> "ArrayMethod": ...
    @overload
    def __get__(self, instance: object, owner: Any) -> ArrayFunction: ...


def array_method(method: Callable[[Any, Tensor], Tensor]) -> ArrayMethod:
    """Make a method that computes on checked rows accept and return arrays or tensors.

    The class checks rows with ``_checked(X)``, which returns a tensor where it is to be computed,
    and both run on its ``_snapshot()``.
    """

    @wraps(method)
    def call(self: Any, X: Any) -> Any:
        now = self._snapshot()
        return as_given(method(now, now._checked(X)), X)

    return call  # type: ignore[return-value]


def checked_rows(
    estimator: Any, X: Any, *, name: str, reset: bool, minimum: int = 0
) -> Tensor:  # (n, d)
    """Rows of finite float32 or float64 numbers, as a tensor; a tensor stays on its device.

    `reset` records the number (and names) of features on the estimator, as fitting does;
    otherwise they must agree with what was recorded.
    """
    if isinstance(X, Tensor):
        rows = _checked_tensor(estimator, X, name, reset)
    else:
        rows = _checked_array(estimator, X, name, reset)
    require_finite(rows, name)
    if rows.shape[0] < minimum:
        raise QIPFInputError(
            f"{name} has n_samples = {rows.shape[0]} rows, but at least {minimum} are needed."
        )
    return rows


def _checked_tensor(estimator: Any, X: Tensor, name: str, reset: bool) -> Tensor:
    if X.ndim != 2:
        raise QIPFInputError(
            f"{name} must have two dimensions, (predictions, logits), got shape "
            f"{tuple(X.shape)}. Reshape a single prediction with x[None, :]."
        )
    if X.is_complex() or X.dtype == torch.bool:
        raise QIPFInputError(f"{name} must hold real numbers, got {X.dtype}.")
    require_data(X, name)
    if reset:
        estimator.n_features_in_ = X.shape[1]
        estimator.__dict__.pop("feature_names_in_", None)  # of an earlier table
    elif X.shape[1] != estimator.n_features_in_:
        raise QIPFInputError(
            f"{name} has {X.shape[1]} features, but {type(estimator).__name__} was fitted with "
            f"{estimator.n_features_in_}."
        )
    if X.dtype in _HALF:
        return X.float()
    return X if X.is_floating_point() else X.double()


def require_data(tensor: Tensor, name: str) -> None:
    """Raise `QIPFInputError` for sparse tensors and for those on the device ``meta``."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise QIPFInputError(
            f"{name} must be a dense tensor with data, got layout {tensor.layout} on "
            f"{tensor.device}."
        )


def _checked_array(estimator: Any, X: Any, name: str, reset: bool) -> Tensor:
    if not reset and type(X) is np.ndarray and X.dtype in (np.float32, np.float64):
        # the fast path of scoring in a loop: scikit-learn's checks take longer than the scores
        named = hasattr(estimator, "feature_names_in_")
        if not named and X.ndim == 2 and X.shape[1] == estimator.n_features_in_:
            return as_tensor(X)
    try:
        array = validate_data(
            estimator,
            X,
            reset=reset,
            dtype=[np.float64, np.float32, np.float16],
            ensure_all_finite=False,
            ensure_min_samples=1 if reset else 0,
        )
    except QIPFError:
        raise
    except TypeError as error:
        raise QIPFTypeError(f"{name}: {error}") from error
    except ValueError as error:
        raise QIPFInputError(f"{name}: {_in_one_line(str(error), X)}") from error
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    return as_tensor(array)


def as_tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor, copied if torch cannot use its memory (byte order, read-only)."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


class NonFiniteRowsError(QIPFInputError):
    """Rows with NaN or infinity: their indices, and the number of all rows."""

    def __init__(self, message: str, rows: list[int], count: int) -> None:
        super().__init__(message)
        self.rows, self.count = rows, count


def require_finite(rows: Tensor, name: str) -> None:
    """Raise `NonFiniteRowsError` for NaN and infinity, naming the rows."""
    # one pass over the numbers; the rows are looked up only if the sum is not finite
    if rows.numel() == 0 or math.isfinite(float(rows.detach().sum())):
        return
    bad = torch.nonzero(~torch.isfinite(rows).all(dim=1)).flatten()
    if bad.numel() == 0:
        return
    shown = ", ".join(str(int(row)) for row in bad[:5])
    more = ", …" if bad.numel() > 5 else ""
    count = f"{bad.numel()} row{'s' if bad.numel() > 1 else ''}"
    raise NonFiniteRowsError(
        f"{name} has {count} with NaN or inf (rows {shown}{more}). Drop or repair them first.",
        bad.tolist(),
        len(rows),
    )


def as_given(values: Tensor, like: Any) -> Any:
    """`values` as a tensor on the device of `like` if that is a tensor, else as a NumPy array."""
    if isinstance(like, Tensor):
        return values.to(like.device)
    return values.detach().cpu().numpy()


def _in_one_line(said: str, X: Any) -> str:
    """scikit-learn's message about an array, in one line and without the array itself."""
    said = said.replace(f":\narray={X!r}.\n", ". ").replace(f":\narray={X}.\n", ". ")
    return " ".join(said.replace(repr(X), "").replace(str(X), "").split())
