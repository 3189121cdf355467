"""save and load: fields, wrapped and layered models, accept rules in one file, without pickle.

Format version 3 is a safetensors file (see `qipf.io.container`). The JSON header holds
``format_version``, ``library_version`` and ``kind``: field, model, layers or rule.

A field has the arrays ``centers`` (N, d) and, for unequal weights, ``log_weights`` (N,); if it was
calibrated, ``calibration`` (n,), the sorted uncertainties of held-out predictions, and, where their
errors are known, ``calibration_wrong`` (n,), 0 or 1. Its header adds the ``parameters``, what else
it ``fitted``, the names of its ``features`` if it was fitted with names, its accept ``rule`` or
null, and, for a wrapped model, the ``network``: the layer, the pooling and a fingerprint of the
weights, not the network itself. A rule alone has no arrays, and only ``rule`` in its header.

A `LayeredQIPF` has the array ``weights`` (1 + layers,) and for its layer number i ``mean i`` (D,),
``directions i`` (D, d), ``units i`` (N, d), and ``masses i``, ``labels i`` and ``examples i`` (N,).
Its header adds the ``parameters``, the ``layers`` (name, side, gain_free, bandwidth, classes of
each) and the ``network``: a fingerprint of the weights.

Version 1 had neither calibrations nor rules; in version 2 all layers of a `LayeredQIPF` had the
same examples as centres, ``center_indices`` and ``labels`` (N,). Their files are read as before.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from qipf.calibration.rule import AcceptRule
from qipf.errors import QIPFFileError, QIPFInputError
from qipf.field.estimator import QIPF
from qipf.io.atomic import atomic_write, checked_output
from qipf.io.container import Arrays, decode, encode, read_file
from qipf.layered import LayeredQIPF
from qipf.layered.state import LayeredState, restored_state, state_of
from qipf.network.forward import fingerprint, unchanged
from qipf.network.wrapped import WrappedModel, wrap
from qipf.storage.restoring import (
    FITTED,
    FORMAT_VERSION,
    checked_kind,
    restored_field,
    restored_rule,
)
from qipf.validation.not_fitted import QIPFNotFittedError


def save(saved: QIPF | WrappedModel | LayeredQIPF | AcceptRule, path: Path | str) -> None:
    """Write a fitted field, a model without its network, or an accept rule to one file.

    A field's calibration and accept rule go with it. The file appears whole or not at all; one
    that was there before stays until then.

    >>> import tempfile
    >>> field = QIPF().fit(np.random.default_rng(0).normal(size=(100, 3)))
    >>> path = Path(tempfile.mkdtemp(), "field.qipf")
    >>> save(field, path)
    >>> bool((load(path).uncertainty(field.centers_) == field.uncertainty(field.centers_)).all())
    True
    """
    path = checked_output(Path(path))
    data = _encoded(saved)
    _loaded(*decode(data, str(path)), str(path))  # what could not be loaded is not written
    with atomic_write(path) as file:
        file.write(data)


def load(path: Path | str, net: nn.Module | None = None, check: bool = True) -> Any:
    """The field, the accept rule, or with its network the model, that `save` wrote.

    Parameters
    ----------
    path : the file.
    net : for a wrapped model or a `LayeredQIPF`, the network it was fitted with.
    check : refuse a network whose weights are not those the field was fitted with.
    """
    header, arrays = read_file(path)
    found = _loaded(header, arrays, str(path))
    network = header.get("network")
    if network is None or isinstance(found, AcceptRule):
        if net is not None:
            raise QIPFInputError(
                f"{path} holds a {header['kind']} alone, without a network's fingerprint. Load it "
                "without net; a field is put around a network with qipf.wrap(net, field=field)."
            )
        return found
    if net is None:
        layered = isinstance(found, LayeredState)
        held = "fields of a LayeredQIPF" if layered else "field of a wrapped model"
        raise QIPFInputError(f"{path} holds the {held}. Pass its network: qipf.load(path, net).")
    model: WrappedModel | LayeredQIPF
    if isinstance(found, LayeredState):
        model = found.with_network(net)
    else:
        model = wrap(net, network["layer"], field=found, pooling=network["pooling"])
    if check and fingerprint(net) != network["fingerprint"]:
        raise QIPFFileError(
            f"{path} belongs to another network: fitted with weights {network['fingerprint']}, "
            f"this network has {fingerprint(net)}. Load the weights it was fitted with, or pass "
            "check=False."
        )
    model._fitted_with = network["fingerprint"] if check else None
    return model


def load_field(path: Path | str) -> QIPF:
    """The field in a file, whether it was saved alone or with a wrapped model."""
    return restored_field(*read_file(path), str(path))


def describe(path: Path | str) -> dict[str, Any]:
    """What is in a file, as plain values; the file is checked as in `load`."""
    header, arrays = read_file(path)
    found = _loaded(header, arrays, str(path))
    size = Path(path).stat().st_size
    if isinstance(found, AcceptRule):
        return {**header, "bytes": size}
    if isinstance(found, LayeredState):
        return {**found.describe(header), "bytes": size}
    centers, held_out = arrays["centers"], found.calibration_
    calibration = None
    if held_out is not None:
        calibration = {
            "count": len(held_out),
            "errors": None if held_out.wrong is None else int(held_out.wrong.sum()),
            "median": float(np.median(held_out.scores)),
            "max": float(held_out.scores[-1]),
        }
    return {
        **header,
        "rule": header.get("rule"),
        "calibration": calibration,
        "centers": {"count": centers.shape[0], "dimension": centers.shape[1]},
        "dtype": str(centers.dtype),
        "weighted": "log_weights" in arrays,
        "bytes": size,
    }


def _loaded(header: dict[str, Any], arrays: Arrays, path: str) -> QIPF | AcceptRule | LayeredState:
    kind = checked_kind(header, path)
    if kind == "rule":
        return restored_rule(header, arrays, path)
    if kind == "layers":
        return restored_state(header, arrays, path)
    return restored_field(header, arrays, path)


# ---------------------------------------------------------------------- writing


def _encoded(saved: Any) -> bytes:
    if isinstance(saved, AcceptRule):
        return encode({**_origin("rule"), "rule": _rule(saved)}, {})
    if isinstance(saved, LayeredQIPF):
        header, arrays = state_of(saved)
        network = {"fingerprint": unchanged(saved.net, saved._fitted_with)}
        return encode({**_origin("layers"), **header, "network": network}, arrays)
    return _encoded_field(saved)


def _encoded_field(saved: Any) -> bytes:
    model = saved if isinstance(saved, WrappedModel) else None
    field = saved if model is None else model.field
    if not isinstance(field, QIPF):
        raise QIPFInputError(
            "Only a QIPF field, a wrapped model or an accept rule can be saved, got "
            f"{type(field).__name__}."
        )
    if not hasattr(field, "offset_"):
        raise QIPFNotFittedError("There is nothing to save yet: fit the field first.")
    names = getattr(field, "feature_names_in_", None)
    header = {
        **_origin("field" if model is None else "model"),
        "parameters": _parameters(field),
        "fitted": {name: _plain(getattr(field, f"{name}_")) for name in FITTED},
        "features": None if names is None else [str(name) for name in names],
        "network": None if model is None else _network(model),
        "rule": None if field.rule_ is None else _rule(field.rule_),
    }
    return encode(header, _arrays(field))


def _origin(kind: str) -> dict[str, Any]:
    from qipf._version import __version__

    return {"format_version": FORMAT_VERSION, "library_version": __version__, "kind": kind}


def _arrays(field: QIPF) -> Arrays:
    arrays: Arrays = {"centers": field.centers_}
    if field.log_weights_ is not None:
        arrays["log_weights"] = field.log_weights_
    held_out = field.calibration_
    if held_out is not None:
        arrays["calibration"] = held_out.scores
        if held_out.wrong is not None:
            arrays["calibration_wrong"] = held_out.wrong.astype(np.float32)
    return arrays


def _rule(rule: AcceptRule) -> dict[str, Any]:
    values = asdict(rule)
    # JSON has no infinity: the threshold of a rule that abstains from everything is null
    return values | ({"threshold": None} if math.isinf(rule.threshold) else {})


def _parameters(field: QIPF) -> dict[str, Any]:
    seed = field.random_state
    if seed is not None and (not isinstance(seed, Integral) or isinstance(seed, bool)):
        raise QIPFInputError(
            f"random_state is a {type(seed).__name__}, which a file cannot hold. Set a number or "
            "None first, which changes no score: field.set_params(random_state=0)."
        )
    return {name: _plain(value) for name, value in field.get_params().items()}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, (tuple, list, range)) else value


def _network(model: WrappedModel) -> dict[str, Any]:
    if not isinstance(model.pooling, str):
        raise QIPFInputError(
            "pooling is a function, which a file cannot hold. Save model.field, and after loading "
            "it: qipf.wrap(net, layer, field=field, pooling=function)."
        )
    weights = unchanged(model.net, model._fitted_with)
    return {"layer": model.layer, "pooling": model.pooling, "fingerprint": weights}
