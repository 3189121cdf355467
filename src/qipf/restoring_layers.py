"""The fields of a network's layers to and from what a file holds, which is checked first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qipf.errors import QIPFNotFittedError
from qipf.forward import named_layer
from qipf.layered.class_field import ClassField
from qipf.layered.metric import Metric
from qipf.layered.model import LARGEST_SEED, LayeredQIPF
from qipf.layered.taps import Tap
from qipf.restoring import checked_kind, refuse, require_keys
from qipf.tensor_file import Arrays

#: Narrowest and widest kernel on the unit sphere: inverse squares stay in range.
NARROWEST, WIDEST = 1e-8, 1e3

#: Centres times classes, at most: a field holds a table of both.
LARGEST_TABLE = 2**24

#: Whole numbers below this are exact in float64.
EXACT = 2**53

#: What a model was made with, and its arrays: for the whole model, and for each layer.
PARAMETERS = ("layers", "max_centers", "max_dimension", "max_tuning", "random_state")
COMMON: dict[str, type] = {
    "weights": np.float64,
    "center_indices": np.float64,
    "labels": np.float64,
}
OF_LAYER: dict[str, type] = {"mean": np.float32, "directions": np.float32, "units": np.float32}


@dataclass(frozen=True)
class StoredLayers:
    """All of a `LayeredQIPF` but its network."""

    parameters: dict[str, Any]
    fields: dict[Tap, ClassField]
    weights: Tensor
    center_indices: np.ndarray

    def around(self, net: nn.Module) -> LayeredQIPF:
        """The model, once the network has the layers."""
        model = LayeredQIPF(net, **self.parameters)
        for tap in self.fields:
            named_layer(net, tap.layer)
        model.layers_, model.fields_ = tuple(self.fields), tuple(self.fields.values())
        model.weights_, model.center_indices_ = self.weights, self.center_indices
        return model


def stored_layers(model: LayeredQIPF) -> tuple[dict[str, Any], Arrays]:
    """Header, less its origin and the network's fingerprint, and arrays of a fitted model."""
    if model.weights_ is None or model.center_indices_ is None:
        raise QIPFNotFittedError("There is nothing to save yet: fit the model first.")
    parameters = {name: getattr(model, name) for name in PARAMETERS}
    if not isinstance(model.layers, str):
        parameters["layers"] = list(model.layers)
    arrays: Arrays = {
        "weights": model.weights_.numpy(),
        "center_indices": model.center_indices_.astype(np.float64),
    }
    layers = []
    for number, (tap, field) in enumerate(zip(model.layers_, model.fields_, strict=True)):
        layers.append(
            {
                "layer": tap.layer,
                "side": tap.side,
                "gain_free": field.metric.gain_free,
                "bandwidth": float(field.bandwidth),
                "classes": field.classes,
            }
        )
        parts = (field.metric.mean, field.metric.directions, field.units)
        for name, part in zip(OF_LAYER, parts, strict=True):
            arrays[f"{name} {number}"] = part.cpu().numpy()
        arrays["labels"] = field.labels.cpu().numpy().astype(np.float64)
    return {"parameters": parameters, "layers": layers}, arrays


def restored_layers(header: dict[str, Any], arrays: Arrays, path: str) -> StoredLayers:
    """The fields, weights and parameters; `path` is what errors call the file."""
    if checked_kind(header, path) != "layers":
        refuse(path, f"its kind is {header['kind']!r:.80}")
    network = header["network"]
    require_keys(path, "network", network, ("fingerprint",))
    if not isinstance(network["fingerprint"], str):
        refuse(path, f"its fingerprint is {network['fingerprint']!r:.80}")
    _check_parameters(path, header["parameters"])
    taps = _taps(path, header["layers"])
    _check_arrays(path, arrays, len(taps))
    weights, places = arrays["weights"], arrays["center_indices"]
    if len(weights) != 1 + len(taps) or not (weights >= 0).all() or abs(weights.sum() - 1) > 1e-6:
        refuse(path, f"its weights are not {1 + len(taps)} shares of one")
    if not _counts(places, EXACT) or len(np.unique(places)) != len(places):
        refuse(path, "its center_indices are not places in a loader")
    fields = {
        tap: _field(path, header["layers"][number], number, arrays)
        for number, tap in enumerate(taps)
    }
    return StoredLayers(header["parameters"], fields, _tensor(weights), places.astype(np.int64))


def described_layers(header: dict[str, Any], found: StoredLayers) -> dict[str, Any]:
    """What is in the file, as plain values."""
    of_layers = zip(
        header["layers"], found.fields.values(), found.weights.tolist()[1:], strict=True
    )
    layers = [
        {
            **layer,
            "weight": weight,
            "width": len(field.metric.mean),
            "dimension": field.units.shape[1],
        }
        for layer, field, weight in of_layers
    ]
    return {
        **header,
        "layers": layers,
        "softmax_weight": float(found.weights[0]),
        "centers": {"count": len(found.center_indices)},
    }


# ---------------------------------------------------------------------- checks


def _check_parameters(path: str, parameters: Any) -> None:
    require_keys(path, "list of parameters", parameters, PARAMETERS)
    layers = parameters["layers"]
    named = isinstance(layers, list) and layers and all(isinstance(name, str) for name in layers)
    if layers != "auto" and not named:
        refuse(path, f"its layers are {layers!r:.80}")
    for name in PARAMETERS[1:]:
        value, least = parameters[name], 0 if name == "random_state" else 1
        most = LARGEST_SEED if name == "random_state" else 2**63
        if type(value) is not int or not least <= value < most:
            refuse(path, f"its {name} is {value!r:.80}")


def _taps(path: str, layers: Any) -> list[Tap]:
    if not isinstance(layers, list):
        refuse(path, f"its layers are {layers!r:.80}")
    taps = []
    for layer in layers:
        require_keys(path, "layer", layer, ("layer", "side", "gain_free", "bandwidth", "classes"))
        if not isinstance(layer["layer"], str) or layer["side"] not in ("input", "output"):
            refuse(path, f"its layer is {layer['layer']!r:.80} ({layer['side']!r:.80})")
        if type(layer["gain_free"]) is not bool:
            refuse(path, f"its gain_free is {layer['gain_free']!r:.80}")
        width = layer["bandwidth"]
        if type(width) is not float or not NARROWEST <= width <= WIDEST:
            refuse(path, f"its bandwidth is {width!r:.80}")
        if type(layer["classes"]) is not int or layer["classes"] < 2:
            refuse(path, f"its number of classes is {layer['classes']!r:.80}")
        taps.append(Tap(layer["layer"], layer["side"]))
    if len(set(taps)) != len(taps) or len({layer["classes"] for layer in layers}) > 1:
        refuse(path, "its layers are not different ones of one network")
    return taps


def _check_arrays(path: str, arrays: Arrays, layers: int) -> None:
    kinds = {f"{name} {i}": kind for i in range(layers) for name, kind in OF_LAYER.items()}
    kinds |= {name: kind for name, kind in COMMON.items() if layers or name != "labels"}
    if set(arrays) != set(kinds):
        refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
    for name, kind in kinds.items():
        array, axes = arrays[name], 2 if name.startswith(("directions", "units")) else 1
        if array.dtype != kind or array.ndim != axes or 0 in array.shape:
            refuse(path, f"its {name} are {array.dtype} of shape {array.shape}")
        if not np.isfinite(array).all():
            refuse(path, f"its {name} hold NaN or inf")


def _field(path: str, layer: dict[str, Any], number: int, arrays: Arrays) -> ClassField:
    mean, directions, units = (arrays[f"{name} {number}"] for name in OF_LAYER)
    labels, classes = arrays["labels"], layer["classes"]
    count = len(arrays["center_indices"])
    shapes = (directions.shape[0], units.shape, len(labels))
    if shapes != (len(mean), (count, directions.shape[1]), count):
        refuse(path, f"its arrays of layer {number} do not fit each other")
    if np.abs(directions).max() > 1.001 or np.square(units, dtype=np.float64).sum(1).max() > 1.001:
        refuse(path, f"its directions or units of layer {number} are longer than one")
    if not _counts(labels, classes):
        refuse(path, f"its labels are not classes 0..{classes - 1}")
    if count * classes > LARGEST_TABLE:
        refuse(path, f"it has {count} centres of {classes} classes, more than can be held")
    metric = Metric(_tensor(mean), _tensor(directions), layer["gain_free"])
    return ClassField(metric, _tensor(units), _tensor(labels).long(), classes, layer["bandwidth"])


def _tensor(array: np.ndarray) -> Tensor:
    """In torch's own memory: in numpy's, which may lie otherwise, products round otherwise."""
    return torch.from_numpy(array).clone()


def _counts(values: np.ndarray, limit: int) -> bool:
    """Whether they are whole numbers from 0, below the limit."""
    return bool(((values >= 0) & (values < limit) & (values % 1 == 0)).all())
