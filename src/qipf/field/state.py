"""A fitted field in a file: its header and arrays, and the checks when they are read."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from qipf.calibration import state as calibration_state
from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, warn
from qipf.field.parameters import check_device, check_parameters
from qipf.field.potential import HIGHEST_ORDER
from qipf.io.container import Arrays
from qipf.io.schema import refuse, require, require_keys
from qipf.validation.parameters import is_integer

#: Largest spread of rows about their centres, in bandwidths: its square stays finite.
WIDEST = 1e100

#: Fitted values in the header, by name without the trailing underscore.
FITTED = (
    "bandwidth",
    "bandwidth_factor",
    "bandwidth_criterion",
    "energies",
    "ground_energy",
    "offset",
    "score",
    "probabilities",
    "spread",
    "n_samples_seen",
)


def field_state(field: Any) -> tuple[dict[str, Any], Arrays]:
    """Header, without its origin, and arrays of a fitted `QIPF`."""
    names = getattr(field, "feature_names_in_", None)
    decisions, arrays = calibration_state.calibration_state(field)
    header = {
        "kind": "field",
        "parameters": _parameters(field),
        "fitted": {name: _plain(getattr(field, f"{name}_")) for name in FITTED},
        "features": None if names is None else [str(name) for name in names],
        "network": None,
        **decisions,
    }
    arrays["centers"] = field.centers_
    if field.log_weights_ is not None:
        arrays["log_weights"] = field.log_weights_
    return header, arrays


def restore_field(field: Any, header: Mapping[str, Any], arrays: Arrays, path: str) -> None:
    """Set parameters, fitted values and decisions of a `QIPF` from a file's content."""
    _set_parameters(field, path, header["parameters"])
    dimension = _check_arrays(path, arrays)
    fitted = header["fitted"]
    require_keys(path, "list of fitted values", fitted, FITTED)
    _check_fitted(path, fitted, len(tuple(field.orders)))
    for name in FITTED:
        setattr(field, f"{name}_", fitted[name])
    field.energies_ = np.array(fitted["energies"], np.float64)
    field.centers_, field.log_weights_ = arrays["centers"], arrays.get("log_weights")
    field.n_features_in_ = dimension
    features = header["features"]
    if features is not None:
        texts = isinstance(features, list) and all(isinstance(name, str) for name in features)
        if not texts or len(features) != dimension:
            refuse(path, f"it names {features!r:.80} as the features of {dimension} columns")
        field.feature_names_in_ = np.array(features, dtype=object)
    calibration_state.restore_calibration(field, header, arrays, path)


def require_plain_seed(seed: object) -> None:
    """Raise `QIPFInputError` for a `random_state` that a file cannot hold."""
    if seed is not None and not is_integer(seed):
        raise QIPFInputError(
            f"random_state is a {type(seed).__name__}, which a file cannot hold. Set a number or "
            "None first, which changes no score: field.set_params(random_state=0)."
        )


def _parameters(field: Any) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in field.get_params().items()}
    seed = field.random_state
    return values if seed is None or is_integer(seed) else {**values, "random_state": None}


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Fraction):
        return float(value)
    return [_plain(v) for v in value] if isinstance(value, (tuple, list, range)) else value


def _set_parameters(field: Any, path: str, parameters: Any) -> None:
    require_keys(path, "list of parameters", parameters, field.get_params())
    orders, seed = parameters["orders"], parameters["random_state"]
    if not isinstance(orders, list) or not all(type(p) is int for p in orders):
        refuse(path, f"its orders are {orders!r:.80}")
    if len(orders) > HIGHEST_ORDER or max(orders, default=1) > HIGHEST_ORDER:
        refuse(path, f"it has more than {HIGHEST_ORDER} orders, or one above {HIGHEST_ORDER}")
    for name in ("softening", "contamination"):
        value = parameters[name]
        # integers may be beyond the range of floats
        require(type(value) in (int, float) and abs(value) < 1e300, path, name, value)
    usable = seed is None or (type(seed) is int and 0 <= seed < 2**32)
    require(usable, path, "random_state", seed)
    field.set_params(**{**parameters, "orders": tuple(orders), "device": "auto"})
    try:
        check_parameters(field)
    except (QIPFError, TypeError, OverflowError) as error:
        raise QIPFFileError(f"{path} cannot be used: {error}") from error
    field.device = _usable_device(path, parameters["device"])


def _usable_device(path: str, device: Any) -> str:
    """The device in the file if it is available here, else "auto" with a warning."""
    require(isinstance(device, str) and len(device) <= 40, path, "device", device)
    try:
        check_device(device)
    except QIPFInputError:
        warn(
            f"{path} was saved with device {device!r}, which is not available here; device is set "
            "to 'auto'."
        )
        return "auto"
    return device


def _check_arrays(path: str, arrays: Arrays) -> int:
    allowed = {"centers", "log_weights", *calibration_state.ARRAYS}
    if not {"centers"} <= set(arrays) <= allowed:
        refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
    centers, log_weights = arrays["centers"], arrays.get("log_weights")
    if centers.ndim != 2 or 0 in centers.shape:
        refuse(path, f"its centres have shape {centers.shape}")
    if not np.isfinite(centers).all():
        refuse(path, "its centres hold NaN or inf")
    if log_weights is not None:
        if log_weights.dtype != np.float64 or log_weights.shape != centers.shape[:1]:
            refuse(path, f"its weights are {log_weights.dtype} of shape {log_weights.shape}")
        if not np.isfinite(log_weights).all() or abs(np.logaddexp.reduce(log_weights)) > 1e-6:
            refuse(path, "its weights are not finite shares that sum to one")
    return int(centers.shape[1])


def _check_fitted(path: str, fitted: Mapping[str, Any], modes: int) -> None:
    for name in ("bandwidth", "bandwidth_factor", "ground_energy", "offset", "spread"):
        value = fitted[name]
        finite = type(value) is float and math.isfinite(value)
        require(finite and (value > 0 or "bandwidth" not in name), path, name, value)
    spread, criterion = fitted["spread"], fitted["bandwidth_criterion"]
    require(0 <= spread <= WIDEST * fitted["bandwidth"], path, "spread", spread)
    short = isinstance(criterion, str) and len(criterion) <= 80
    require(short, path, "bandwidth_criterion", criterion)
    require(fitted["score"] in ("modes", "entropy"), path, "score", fitted["score"])
    require(type(fitted["probabilities"]) is bool, path, "probabilities", fitted["probabilities"])
    seen = fitted["n_samples_seen"]
    require(type(seen) is int and 1 <= seen < 2**63, path, "n_samples_seen", seen)
    energies = fitted["energies"]
    numbers = isinstance(energies, list) and all(type(e) is float for e in energies)
    if not numbers or len(energies) != modes or not all(map(math.isfinite, energies)):
        refuse(path, f"its energies are not {modes} finite numbers")
