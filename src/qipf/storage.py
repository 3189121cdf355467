"""save and load: fitted fields and wrapped models in one file, without pickle.

Format version 1 is a safetensors file (see `qipf.tensor_file`). Arrays: ``centers`` (N, d) and, for
unequal weights, ``log_weights`` (N,). The JSON header holds ``format_version``,
``library_version``, ``kind`` (field or model), the field's ``parameters``, what else it ``fitted``,
the names of its ``features`` if it was fitted with names, and, for a wrapped model, the
``network``: the layer, the pooling and a fingerprint of the weights, not the network itself.
"""

from __future__ import annotations

import hashlib
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from qipf.durable import checked_output, replaced
from qipf.errors import QIPFFileError, QIPFInputError, QIPFNotFittedError
from qipf.estimator import QIPF
from qipf.model import WrappedModel, wrap
from qipf.restoring import FITTED, FORMAT_VERSION, restored_field
from qipf.tensor_file import Arrays, decoded, encoded, read_file


def save(field_or_model: QIPF | WrappedModel, path: Path | str) -> None:
    """Write a fitted field, or a wrapped model without its network, to one file.

    The file appears whole or not at all; one that was there before stays until then.

    >>> import tempfile
    >>> field = QIPF().fit(np.random.default_rng(0).normal(size=(100, 3)))
    >>> path = Path(tempfile.mkdtemp(), "field.qipf")
    >>> save(field, path)
    >>> bool((load(path).uncertainty(field.centers_) == field.uncertainty(field.centers_)).all())
    True
    """
    path = checked_output(Path(path))
    model = field_or_model if isinstance(field_or_model, WrappedModel) else None
    field = field_or_model.field if isinstance(field_or_model, WrappedModel) else field_or_model
    if not isinstance(field, QIPF):
        raise QIPFInputError(
            f"Only a QIPF field or a wrapped model can be saved, got {type(field).__name__}."
        )
    if not hasattr(field, "offset_"):
        raise QIPFNotFittedError("There is nothing to save yet: fit the field first.")
    header = _header(field, None if model is None else _network(model))
    arrays: Arrays = {"centers": field.centers_}
    if field.log_weights_ is not None:
        arrays["log_weights"] = field.log_weights_
    data = encoded(header, arrays)
    restored_field(*decoded(data, str(path)), str(path))  # what could not be loaded is not written
    with replaced(path) as file:
        file.write(data)


def load(path: Path | str, net: nn.Module | None = None, check: bool = True) -> Any:
    """The field, or with its network the wrapped model, that `save` wrote.

    Parameters
    ----------
    path : the file.
    net : for a wrapped model, the network it was fitted with.
    check : refuse a network whose weights are not those the field was fitted with.
    """
    header, arrays = read_file(path)
    field = restored_field(header, arrays, str(path))
    network = header["network"]
    if network is None:
        if net is not None:
            raise QIPFInputError(
                f"{path} holds a field alone, without a network's fingerprint. Load it without "
                "net, and put it around a network with qipf.wrap(net, field=field)."
            )
        return field
    if net is None:
        raise QIPFInputError(
            f"{path} holds the field of a wrapped model. Pass its network: qipf.load(path, net)."
        )
    model = wrap(net, network["layer"], field=field, pooling=network["pooling"])
    if check and fingerprint(net) != network["fingerprint"]:
        raise QIPFFileError(
            f"{path} belongs to another network: fitted with weights {network['fingerprint']}, "
            f"this network has {fingerprint(net)}. Load the weights it was fitted with, or pass "
            "check=False."
        )
    return model


def load_field(path: Path | str) -> QIPF:
    """The field in a file, whether it was saved alone or with a wrapped model."""
    return restored_field(*read_file(path), str(path))


def describe(path: Path | str) -> dict[str, Any]:
    """What is in a file, as plain values; the file is checked as in `load`."""
    header, arrays = read_file(path)
    restored_field(header, arrays, str(path))
    centers = arrays["centers"]
    return {
        **header,
        "centers": {"count": centers.shape[0], "dimension": centers.shape[1]},
        "dtype": str(centers.dtype),
        "weighted": "log_weights" in arrays,
        "bytes": Path(path).stat().st_size,
    }


def fingerprint(net: nn.Module) -> str:
    """A short name for the exact weights and buffers of a network, whatever its layers are called.

    >>> fingerprint(nn.Linear(2, 2)) == fingerprint(nn.Linear(2, 2))
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for value in net.state_dict().values():
        if not isinstance(value, torch.Tensor):  # what a module keeps beside its weights
            continue
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------- writing


def _header(field: QIPF, network: dict[str, Any] | None) -> dict[str, Any]:
    from qipf import __version__  # qipf itself imports this module

    names = getattr(field, "feature_names_in_", None)
    return {
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "kind": "field" if network is None else "model",
        "parameters": _parameters(field),
        "fitted": {name: _plain(getattr(field, f"{name}_")) for name in FITTED},
        "features": None if names is None else [str(name) for name in names],
        "network": network,
    }


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
    return {"layer": model.layer, "pooling": model.pooling, "fingerprint": fingerprint(model.net)}
