"""A field from what a file says, nothing of which is believed before it is checked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, QIPFWarning
from qipf.estimator import QIPF
from qipf.model import POOLINGS
from qipf.tensor_file import Arrays

#: What this library writes; it reads every version up to this one.
FORMAT_VERSION = 1

#: Most modes a stored field may have, and their highest order: a score costs their product.
MOST_ORDERS, HIGHEST_ORDER = 256, 1000

#: Largest spread of rows about their centres, in bandwidths: squares of it stay finite.
WIDEST = 1e100

#: What a field learned, by its name in the header, less the trailing underscore.
FITTED = (
    "bandwidth",
    "bandwidth_factor",
    "bandwidth_criterion",
    "energies",
    "ground_energy",
    "offset",
    "spread",
    "n_samples_seen",
)


def restored_field(header: dict[str, Any], arrays: Arrays, path: str) -> QIPF:
    """The fitted field; `path` is what errors call the file."""
    version = header.get("format_version")
    if type(version) is not int or version < 1:
        _refuse(path, f"its format version is {version!r}")
    if version > FORMAT_VERSION:
        _refuse(
            path, f"a newer qipf wrote it (format {version}, here {FORMAT_VERSION}): update qipf"
        )
    keys = (
        "format_version",
        "library_version",
        "kind",
        "parameters",
        "fitted",
        "features",
        "network",
    )
    _require_keys(path, "header", header, keys)
    _check_network(path, header)
    field = _unfitted(path, header["parameters"])
    dimension = _check_arrays(path, arrays)
    fitted = header["fitted"]
    _require_keys(path, "list of fitted values", fitted, FITTED)
    _check_fitted(path, fitted, len(tuple(field.orders)))
    for name in FITTED:
        setattr(field, f"{name}_", fitted[name])
    field.energies_ = np.array(fitted["energies"], np.float64)
    field.centers_, field.log_weights_ = arrays["centers"], arrays.get("log_weights")
    field.n_features_in_ = dimension
    features = header["features"]
    if features is not None:
        if not _texts(features) or len(features) != dimension:
            _refuse(path, f"it names {features!r:.80} as the features of {dimension} columns")
        field.feature_names_in_ = np.array(features, dtype=object)
    field._fields, field._energies = {}, {}
    return field


def _unfitted(path: str, parameters: Any) -> QIPF:
    _require_keys(path, "list of parameters", parameters, QIPF().get_params())
    orders, seed = parameters["orders"], parameters["random_state"]
    if not isinstance(orders, list) or not all(type(p) is int for p in orders):
        _refuse(path, f"its orders are {orders!r:.80}")
    if len(orders) > MOST_ORDERS or max(orders, default=1) > HIGHEST_ORDER:
        _refuse(path, f"it has more than {MOST_ORDERS} orders, or one above {HIGHEST_ORDER}")
    for name in ("softening", "contamination"):
        if type(parameters[name]) not in (int, float):
            _refuse(path, f"its {name} is {parameters[name]!r:.80}")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**32):
        _refuse(path, f"its random_state is {seed!r:.80}")
    device = parameters["device"]
    field = QIPF(**{**parameters, "orders": tuple(orders), "device": "auto"})
    try:
        field._check_parameters()
    except (QIPFError, TypeError, OverflowError) as error:
        raise QIPFFileError(f"{path} cannot be used: {error}") from error
    return field.set_params(device=_usable_device(path, device))


def _usable_device(path: str, device: Any) -> str:
    """Where the field was to be computed, if that is possible here."""
    if not isinstance(device, str) or len(device) > 40:
        _refuse(path, f"its device is {device!r:.80}")
    try:
        QIPF(device=device)._named_device()
    except QIPFInputError:
        warnings.warn(
            f"{path} was to be computed on {device!r}, which is not to be had here; device is set "
            "to 'auto'.",
            QIPFWarning,
            stacklevel=5,
        )
        return "auto"
    return device


def _check_arrays(path: str, arrays: Arrays) -> int:
    if not {"centers"} <= set(arrays) <= {"centers", "log_weights"}:
        _refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
    centers, log_weights = arrays["centers"], arrays.get("log_weights")
    if centers.ndim != 2 or 0 in centers.shape:
        _refuse(path, f"its centres have shape {centers.shape}")
    if not np.isfinite(centers).all():
        _refuse(path, "its centres hold NaN or inf")
    if log_weights is not None:
        if log_weights.dtype != np.float64 or log_weights.shape != centers.shape[:1]:
            _refuse(path, f"its weights are {log_weights.dtype} of shape {log_weights.shape}")
        if not np.isfinite(log_weights).all() or abs(np.logaddexp.reduce(log_weights)) > 1e-6:
            _refuse(path, "its weights are not finite shares of one")
    return int(centers.shape[1])


def _check_fitted(path: str, fitted: Mapping[str, Any], modes: int) -> None:
    for name in ("bandwidth", "bandwidth_factor", "ground_energy", "offset", "spread"):
        if type(fitted[name]) is not float or not math.isfinite(fitted[name]):
            _refuse(path, f"its {name} is {fitted[name]!r:.80}")
    for name in ("bandwidth", "bandwidth_factor"):
        if not fitted[name] > 0:
            _refuse(path, f"its {name} is {fitted[name]!r}")
    if not 0 <= fitted["spread"] <= WIDEST * fitted["bandwidth"]:
        _refuse(path, f"its spread is {fitted['spread']!r}")
    if (
        not isinstance(fitted["bandwidth_criterion"], str)
        or len(fitted["bandwidth_criterion"]) > 80
    ):
        _refuse(path, f"its bandwidth_criterion is {fitted['bandwidth_criterion']!r:.80}")
    seen = fitted["n_samples_seen"]
    if type(seen) is not int or not 1 <= seen < 2**63:
        _refuse(path, f"its n_samples_seen is {seen!r:.80}")
    energies = fitted["energies"]
    numbers = isinstance(energies, list) and all(type(e) is float for e in energies)
    if not numbers or len(energies) != modes or not all(map(math.isfinite, energies)):
        _refuse(path, f"its energies are not {modes} finite numbers")


def _check_network(path: str, header: Mapping[str, Any]) -> None:
    network = header["network"]
    if header["kind"] not in ("field", "model") or (header["kind"] == "model") != (
        network is not None
    ):
        _refuse(path, f"its kind is {header['kind']!r:.80}")
    if not isinstance(header["library_version"], str):
        _refuse(path, f"its library_version is {header['library_version']!r:.80}")
    if network is None:
        return
    _require_keys(path, "network", network, ("layer", "pooling", "fingerprint"))
    layer = network["layer"]
    if layer is not None and not isinstance(layer, str):
        _refuse(path, f"its layer is {layer!r:.80}")
    if network["pooling"] not in POOLINGS or not isinstance(network["fingerprint"], str):
        _refuse(path, f"its pooling is {network['pooling']!r:.80}, or it has no fingerprint")


def _require_keys(path: str, what: str, found: Any, expected: Any) -> None:
    if not isinstance(found, dict) or set(found) != set(expected):
        names = sorted(found) if isinstance(found, dict) else found
        _refuse(path, f"its {what} is {names!r:.200}, not {sorted(expected)}")


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _refuse(path: str, reason: str) -> NoReturn:
    raise QIPFFileError(f"{path} cannot be used: {reason}.")
