"""Arrays of predictions: checked before use; results are returned as the kind that was passed."""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data
from torch import Tensor
from torch.utils.data import DataLoader

from qipf.errors import QIPFError, QIPFInputError, QIPFTypeError, first_line

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

    The class checks rows with ``_usable(X)``, which returns a tensor where it is to be computed
    and the mask of rows that are not usable, and both run on its ``_snapshot()``.
    """

    @wraps(method)
    def call(self: Any, X: Any) -> Any:
        now = self._snapshot()
        rows, missing = now._usable(X)
        return as_given(blank(method(now, rows), missing), X)

    return call  # type: ignore[return-value]


def checked_rows(
    estimator: Any, X: Any, *, name: str, reset: bool, minimum: int = 0, finite: bool = True
) -> Tensor:  # (n, d)
    """Rows of float32 or float64 numbers, as a tensor; a tensor stays on its device.

    Rows with NaN or infinity raise, unless `finite` is False.
    `reset` records the number (and names) of features on the estimator, as fitting does;
    otherwise they must agree with what was recorded.
    """
    if isinstance(X, Tensor):
        rows = _checked_tensor(estimator, X, name, reset)
    else:
        rows = _checked_array(estimator, X, name, reset)
    if finite:
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
    if isinstance(X, DataLoader):
        raise QIPFTypeError(
            f"{name} must be an array of logits, got {type(X).__name__}. "
            f"{type(estimator).__name__} takes logits; for a network use LayeredQIPF(net)."
        )
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


def number_tensor(values: Any, name: str) -> Tensor:
    """Numbers of any kind as a tensor; raises for what has none, or is a sparse matrix of SciPy.

    >>> number_tensor(["cat", "dog"], "y")
    Traceback (most recent call last):
    ...
    qipf.errors.QIPFInputError: y must hold numbers, got dtype <U3.
    """
    if isinstance(values, Tensor):
        return values
    if issparse(values):
        raise QIPFInputError(f"{name} must be dense, got a sparse matrix. Pass its toarray().")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise QIPFInputError(f"{name} must hold numbers ({first_line(error)}).") from error
    try:
        return as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:  # whose message lists torch's types
        got = "None" if values is None else f"dtype {array.dtype}"
        raise QIPFInputError(f"{name} must hold numbers, got {got}.") from error


class NonFiniteRowsError(QIPFInputError):
    """Rows with NaN or infinity: their indices, and the number of all rows."""

    def __init__(self, message: str, rows: list[int], count: int) -> None:
        super().__init__(message)
        self.rows, self.count = rows, count


def require_finite(rows: Tensor, name: str) -> None:
    """Raise `NonFiniteRowsError` for NaN and infinity, naming the rows."""
    refuse_missing(missing_rows(rows), name)


def missing_rows(rows: Tensor) -> Tensor | None:  # (n, d) -> (n,)
    """True for rows with NaN or infinity; None if there are none."""
    # one pass over the numbers; the rows are looked up only if the sum is not finite
    if rows.numel() == 0 or math.isfinite(float(rows.detach().sum())):
        return None
    missing = ~torch.isfinite(rows).all(dim=1)
    return missing if bool(missing.any()) else None


def refuse_missing(missing: Tensor | None, name: str) -> None:
    """Raise `NonFiniteRowsError` if any rows of `name` are missing."""
    if missing is None:
        return
    bad = torch.nonzero(missing.flatten()).flatten()
    shown = ", ".join(str(int(row)) for row in bad[:5])
    more = ", …" if bad.numel() > 5 else ""
    row = "row" if bad.numel() == 1 else "rows"
    raise NonFiniteRowsError(
        f"{name} has {bad.numel()} {row} with NaN or inf ({row} {shown}{more}). Drop or repair "
        "them first. (A model made with nan_policy='propagate' gives NaN for such predictions; "
        "fit, calibrate, explain and report always raise.)",
        bad.tolist(),
        missing.numel(),
    )


def usable_rows(parts: Sequence[Tensor]) -> tuple[list[Tensor], Tensor | None]:
    """Parts (n, d) of the same predictions, and the mask (n,) of those with NaN or infinity.

    Their rows are replaced by those of the first usable prediction, or by zeros, so that the
    others are computed as they would be without them. None instead of a mask if there are none.

    >>> (rows,), missing = usable_rows([torch.tensor([[math.nan], [2.0]])])
    >>> rows.tolist(), missing.tolist()
    ([[2.0], [2.0]], [True, False])
    """
    found = [mask for mask in map(missing_rows, parts) if mask is not None]
    if not found:
        return list(parts), None
    missing = torch.stack([mask.to(found[0].device) for mask in found]).any(0)
    usable = torch.nonzero(~missing).flatten()[:1]
    filled = []
    for part in parts:
        filler = part[usable.to(part.device)] if len(usable) else torch.zeros_like(part[:1])
        filled.append(torch.where(missing.to(part.device)[:, None], filler, part))
    return filled, missing


def blank(values: Tensor, missing: Tensor | None) -> Tensor:
    """Values with NaN, False or -1, by their type, for missing predictions.

    >>> blank(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
    tensor([nan, 2.])
    """
    if missing is None:
        return values
    fill = math.nan if values.is_floating_point() else -1
    mask = missing.reshape(*missing.shape, *[1] * (values.ndim - missing.ndim)).to(values.device)
    return values.masked_fill(mask, False if values.dtype == torch.bool else fill)


def as_given(values: Tensor, like: Any) -> Any:
    """`values` as a tensor on the device of `like` if that is a tensor, else as a NumPy array."""
    if isinstance(like, Tensor):
        return values.to(like.device)
    return values.detach().cpu().numpy()


def _in_one_line(said: str, X: Any) -> str:
    """scikit-learn's message about an array, in one line and without the array itself."""
    said = said.replace(f":\narray={X!r}.\n", ". ").replace(f":\narray={X}.\n", ". ")
    return " ".join(said.replace(repr(X), "").replace(str(X), "").split())
