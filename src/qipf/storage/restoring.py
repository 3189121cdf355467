"""A field or a rule from what a file says, nothing of which is believed before it is checked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from qipf.calibration.conformal import MOST_SCORES, Calibration
from qipf.calibration.rule import AcceptRule
from qipf.errors import QIPFError, QIPFFileError, QIPFInputError, QIPFWarning
from qipf.field.estimator import QIPF
from qipf.field.parameters import check_device, check_parameters
from qipf.io.container import Arrays
from qipf.io.schema import KINDS, refuse, require_keys, require_version
from qipf.network.wrapped import POOLINGS

#: What this library writes; it reads every version up to this one.
FORMAT_VERSION = 3

#: Most modes a stored field may have, and their highest order: a score costs their product.
MOST_ORDERS, HIGHEST_ORDER = 256, 1000

#: Largest spread of rows about their centres, in bandwidths: squares of it stay finite.
WIDEST = 1e100

#: Arrays that a field's file may hold.
ARRAYS = {"centers", "log_weights", "calibration", "calibration_wrong"}

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


#: Keys of the header, by the kind of what the file holds.
_FIELD_KEYS = (
    "format_version",
    "library_version",
    "kind",
    "parameters",
    "fitted",
    "features",
    "network",
    "rule",
)
HEADER_KEYS = {
    "field": _FIELD_KEYS,
    "model": _FIELD_KEYS,
    "rule": ("format_version", "library_version", "kind", "rule"),
    "layers": ("format_version", "library_version", "kind", "parameters", "layers", "network"),
}


def restored_field(header: dict[str, Any], arrays: Arrays, path: str) -> QIPF:
    """The fitted field with its calibration and rule; `path` is what errors call the file."""
    kind = checked_kind(header, path)
    if kind not in ("field", "model"):
        raise QIPFFileError(f"{path} holds {KINDS[kind]}, not a field.")
    _check_network(path, header)
    field = _unfitted(path, header["parameters"])
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
        if not _texts(features) or len(features) != dimension:
            refuse(path, f"it names {features!r:.80} as the features of {dimension} columns")
        field.feature_names_in_ = np.array(features, dtype=object)
    if "calibration" in arrays:
        field.calibration_ = _calibration(path, arrays)
    if header.get("rule") is not None:
        field.rule_ = _rule(path, header["rule"])
    field._fields, field._energies = {}, {}
    return field


def restored_rule(header: dict[str, Any], arrays: Arrays, path: str) -> AcceptRule:
    """The accept rule of a file that holds nothing else; `path` is what errors call the file."""
    if checked_kind(header, path) != "rule" or arrays:
        refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
    return _rule(path, header["rule"])


def checked_kind(header: dict[str, Any], path: str) -> str:
    """What the file holds, once its version and the keys of its header are as they should be."""
    if header.get("kind") == "monitor":
        raise QIPFFileError(
            f"{path} holds {KINDS['monitor']}, where a field is expected. Name the field that it "
            "was made with; the state is for qipf monitor --state, or ShiftMonitor.load(path, "
            "field)."
        )
    version = require_version(path, header, FORMAT_VERSION)
    kind = header.get("kind")
    known = HEADER_KEYS if version > 1 else ("field", "model")
    if not isinstance(kind, str) or kind not in known:
        refuse(path, f"its kind is {kind!r:.80}")
    # rules came with version 2
    keys = [key for key in HEADER_KEYS[kind] if version > 1 or key != "rule"]
    require_keys(path, "header", header, keys)
    if not isinstance(header["library_version"], str):
        refuse(path, f"its library_version is {header['library_version']!r:.80}")
    return kind


def _unfitted(path: str, parameters: Any) -> QIPF:
    require_keys(path, "list of parameters", parameters, QIPF().get_params())
    orders, seed = parameters["orders"], parameters["random_state"]
    if not isinstance(orders, list) or not all(type(p) is int for p in orders):
        refuse(path, f"its orders are {orders!r:.80}")
    if len(orders) > MOST_ORDERS or max(orders, default=1) > HIGHEST_ORDER:
        refuse(path, f"it has more than {MOST_ORDERS} orders, or one above {HIGHEST_ORDER}")
    for name in ("softening", "contamination"):
        if type(parameters[name]) not in (int, float):
            refuse(path, f"its {name} is {parameters[name]!r:.80}")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**32):
        refuse(path, f"its random_state is {seed!r:.80}")
    device = parameters["device"]
    field = QIPF(**{**parameters, "orders": tuple(orders), "device": "auto"})
    try:
        check_parameters(field)
    except (QIPFError, TypeError, OverflowError) as error:
        raise QIPFFileError(f"{path} cannot be used: {error}") from error
    return field.set_params(device=_usable_device(path, device))


def _usable_device(path: str, device: Any) -> str:
    """Where the field was to be computed, if that is possible here."""
    if not isinstance(device, str) or len(device) > 40:
        refuse(path, f"its device is {device!r:.80}")
    try:
        check_device(device)
    except QIPFInputError:
        warnings.warn(
            f"{path} was to be computed on {device!r}, which is not to be had here; device is set "
            "to 'auto'.",
            QIPFWarning,
            stacklevel=6,
        )
        return "auto"
    return device


def _check_arrays(path: str, arrays: Arrays) -> int:
    if not {"centers"} <= set(arrays) <= ARRAYS:
        refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
    if "calibration_wrong" in arrays and "calibration" not in arrays:
        refuse(path, "it knows errors of held-out predictions, but not their scores")
    centers, log_weights = arrays["centers"], arrays.get("log_weights")
    if centers.ndim != 2 or 0 in centers.shape:
        refuse(path, f"its centres have shape {centers.shape}")
    if not np.isfinite(centers).all():
        refuse(path, "its centres hold NaN or inf")
    if log_weights is not None:
        if log_weights.dtype != np.float64 or log_weights.shape != centers.shape[:1]:
            refuse(path, f"its weights are {log_weights.dtype} of shape {log_weights.shape}")
        if not np.isfinite(log_weights).all() or abs(np.logaddexp.reduce(log_weights)) > 1e-6:
            refuse(path, "its weights are not finite shares of one")
    return int(centers.shape[1])


def _check_fitted(path: str, fitted: Mapping[str, Any], modes: int) -> None:
    for name in ("bandwidth", "bandwidth_factor", "ground_energy", "offset", "spread"):
        if type(fitted[name]) is not float or not math.isfinite(fitted[name]):
            refuse(path, f"its {name} is {fitted[name]!r:.80}")
    for name in ("bandwidth", "bandwidth_factor"):
        if not fitted[name] > 0:
            refuse(path, f"its {name} is {fitted[name]!r}")
    if not 0 <= fitted["spread"] <= WIDEST * fitted["bandwidth"]:
        refuse(path, f"its spread is {fitted['spread']!r}")
    if (
        not isinstance(fitted["bandwidth_criterion"], str)
        or len(fitted["bandwidth_criterion"]) > 80
    ):
        refuse(path, f"its bandwidth_criterion is {fitted['bandwidth_criterion']!r:.80}")
    seen = fitted["n_samples_seen"]
    if type(seen) is not int or not 1 <= seen < 2**63:
        refuse(path, f"its n_samples_seen is {seen!r:.80}")
    energies = fitted["energies"]
    numbers = isinstance(energies, list) and all(type(e) is float for e in energies)
    if not numbers or len(energies) != modes or not all(map(math.isfinite, energies)):
        refuse(path, f"its energies are not {modes} finite numbers")


def _calibration(path: str, arrays: Arrays) -> Calibration:
    """The held-out uncertainties, which are kept sorted, and where the model erred on them."""
    scores, wrong = arrays["calibration"], arrays.get("calibration_wrong")
    if scores.dtype != np.float64 or scores.ndim != 1 or not 0 < len(scores) <= MOST_SCORES:
        refuse(path, f"its held-out scores are {scores.dtype} of shape {scores.shape}")
    if not np.isfinite(scores).all() or (np.diff(scores) < 0).any():
        refuse(path, "its held-out scores are not finite and rising")
    if wrong is not None:
        if wrong.dtype != np.float32 or wrong.shape != scores.shape:
            refuse(path, f"its held-out errors are {wrong.dtype} of shape {wrong.shape}")
        if not np.isin(wrong, (0, 1)).all():
            refuse(path, "its held-out errors are not all 0 or 1")
    return Calibration(scores, wrong)


def _rule(path: str, values: Any) -> AcceptRule:
    names = [field.name for field in fields(AcceptRule)]
    require_keys(path, "accept rule", values, names)
    try:
        return rule_of(values)
    except QIPFInputError as error:
        raise QIPFFileError(f"{path} cannot be used: {error}") from error


def rule_of(values: Mapping[str, Any]) -> AcceptRule:
    """The rule from its fields as a header has them: JSON has no infinity, and null for -inf."""
    threshold = values["threshold"]
    return AcceptRule(**{**values, "threshold": -math.inf if threshold is None else threshold})


def _check_network(path: str, header: Mapping[str, Any]) -> None:
    network = header["network"]
    if (header["kind"] == "model") != (network is not None):
        refuse(path, f"its kind is {header['kind']!r:.80}")
    if network is None:
        return
    require_keys(path, "network", network, ("layer", "pooling", "fingerprint"))
    layer = network["layer"]
    if layer is not None and not isinstance(layer, str):
        refuse(path, f"its layer is {layer!r:.80}")
    if network["pooling"] not in POOLINGS or not isinstance(network["fingerprint"], str):
        refuse(path, f"its pooling is {network['pooling']!r:.80}, or it has no fingerprint")


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
