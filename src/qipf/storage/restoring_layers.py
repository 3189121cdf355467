"""The fields of a network's layers to and from what a file holds, which is checked first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qipf.io.container import Arrays
from qipf.io.schema import refuse, require_keys
from qipf.layered.class_field import LARGEST_TABLE, ClassField
from qipf.layered.metric import Metric
from qipf.layered.model import LARGEST_SEED, REDUCTIONS, LayeredQIPF
from qipf.network.features import Tap
from qipf.network.forward import named_layer
from qipf.storage.restoring import checked_kind
from qipf.validation.not_fitted import QIPFNotFittedError

#: Narrowest and widest kernel on the unit sphere: inverse squares stay in range.
NARROWEST, WIDEST = 1e-8, 1e3

#: Whole numbers below this are exact in float64.
EXACT = 2**53

#: What a model was made with, and the arrays of each layer.
PARAMETERS = ("layers", "reduction", "max_centers", "max_dimension", "max_tuning", "random_state")
OF_LAYER: dict[str, type] = {
    "mean": np.float32,
    "directions": np.float32,
    "units": np.float32,
    "masses": np.float32,
    "labels": np.float64,
    "examples": np.float64,
}


@dataclass(frozen=True)
class StoredLayers:
    """All of a `LayeredQIPF` but its network."""

    parameters: dict[str, Any]
    fields: dict[Tap, ClassField]
    weights: Tensor

    def around(self, net: nn.Module) -> LayeredQIPF:
        """The model, once the network has the layers."""
        model = LayeredQIPF(net, **self.parameters)
        for tap in self.fields:
            named_layer(net, tap.layer)
        model.layers_, model.fields_ = tuple(self.fields), tuple(self.fields.values())
        model.weights_ = self.weights
        return model


def stored_layers(model: LayeredQIPF) -> tuple[dict[str, Any], Arrays]:
    """Header, less its origin and the network's fingerprint, and arrays of a fitted model."""
    if model.weights_ is None:
        raise QIPFNotFittedError("There is nothing to save yet: fit the model first.")
    parameters = {name: getattr(model, name) for name in PARAMETERS}
    if not isinstance(model.layers, str):
        parameters["layers"] = list(model.layers)
    arrays: Arrays = {"weights": model.weights_.numpy()}
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
        metric = field.metric
        parts = (metric.mean, metric.directions, field.units, field.masses, field.labels)
        for (name, kind), part in zip(OF_LAYER.items(), (*parts, field.examples), strict=True):
            arrays[f"{name} {number}"] = part.cpu().numpy().astype(kind)
    return {"parameters": parameters, "layers": layers}, arrays


def restored_layers(header: dict[str, Any], arrays: Arrays, path: str) -> StoredLayers:
    """The fields, weights and parameters; `path` is what errors call the file."""
    if checked_kind(header, path) != "layers":
        refuse(path, f"its kind is {header['kind']!r:.80}")
    network = header["network"]
    require_keys(path, "network", network, ("fingerprint",))
    if not isinstance(network["fingerprint"], str):
        refuse(path, f"its fingerprint is {network['fingerprint']!r:.80}")
    taps = _taps(path, header["layers"])
    parameters = header["parameters"]
    if header["format_version"] == 2:
        parameters, arrays = _from_version_2(path, parameters, arrays, len(taps))
    _check_parameters(path, parameters)
    _check_arrays(path, arrays, len(taps))
    weights = arrays["weights"]
    if len(weights) != 1 + len(taps) or not (weights >= 0).all() or abs(weights.sum() - 1) > 1e-6:
        refuse(path, f"its weights are not {1 + len(taps)} shares of one")
    fields = {
        tap: _field(path, header["layers"][number], number, arrays)
        for number, tap in enumerate(taps)
    }
    return StoredLayers(parameters, fields, _tensor(weights))


def _from_version_2(
    path: str, parameters: Any, arrays: Arrays, layers: int
) -> tuple[dict[str, Any], Arrays]:
    """Then all layers had the same centres, each of them an example."""
    then = [name for name in PARAMETERS if name != "reduction"]
    require_keys(path, "list of parameters", parameters, then)
    own = ("mean", "directions", "units")
    names = {"weights", "center_indices", *(f"{name} {i}" for name in own for i in range(layers))}
    names |= {"labels"} if layers else set()
    if set(arrays) != names:
        refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
    found = {
        name: array for name, array in arrays.items() if name not in ("center_indices", "labels")
    }
    if layers:
        labels, examples = arrays["labels"], arrays["center_indices"]
        counts = {arrays[f"units {i}"].shape[:1] for i in range(layers)}
        if counts | {labels.shape, examples.shape} != {labels.shape}:
            refuse(path, "its arrays do not fit each other")
        masses = np.ones(labels.shape, np.float32)
        for i in range(layers):
            found[f"labels {i}"], found[f"examples {i}"] = labels, examples
            found[f"masses {i}"] = masses
    return {**parameters, "reduction": "random"}, found


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
            "centers": len(field.units),
            "weighted": bool((field.masses != 1).any()),
        }
        for layer, field, weight in of_layers
    ]
    return {
        **header,
        "layers": layers,
        "softmax_weight": float(found.weights[0]),
        "centers": {"count": max((len(f.units) for f in found.fields.values()), default=0)},
    }


# ---------------------------------------------------------------------- checks


def _check_parameters(path: str, parameters: Any) -> None:
    require_keys(path, "list of parameters", parameters, PARAMETERS)
    layers = parameters["layers"]
    named = isinstance(layers, list) and layers and all(isinstance(name, str) for name in layers)
    if layers != "auto" and not named:
        refuse(path, f"its layers are {layers!r:.80}")
    if parameters["reduction"] not in REDUCTIONS:
        refuse(path, f"its reduction is {parameters['reduction']!r:.80}")
    for name in PARAMETERS[2:]:
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
    if sum(layer["classes"] for layer in layers) > LARGEST_TABLE:  # each layer has a list of them
        refuse(path, f"it has {layers[0]['classes']} classes in {len(layers)} layers, too many")
    return taps


def _check_arrays(path: str, arrays: Arrays, layers: int) -> None:
    kinds = {f"{name} {i}": kind for i in range(layers) for name, kind in OF_LAYER.items()}
    kinds["weights"] = np.float64
    if set(arrays) != set(kinds):
        refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
    for name, kind in kinds.items():
        array, axes = arrays[name], 2 if name.startswith(("directions", "units")) else 1
        if array.dtype != kind or array.ndim != axes or 0 in array.shape:
            refuse(path, f"its {name} are {array.dtype} of shape {array.shape}")
        if not np.isfinite(array).all():
            refuse(path, f"its {name} hold NaN or inf")


def _field(path: str, layer: dict[str, Any], number: int, arrays: Arrays) -> ClassField:
    found = [arrays[f"{name} {number}"] for name in OF_LAYER]
    mean, directions, units, masses, labels, examples = found
    count, classes = len(units), layer["classes"]
    lengths = (directions.shape, units.shape[1], len(masses), len(labels), len(examples))
    if lengths != ((len(mean), units.shape[1]), directions.shape[1], count, count, count):
        refuse(path, f"its arrays of layer {number} do not fit each other")
    if np.abs(directions).max() > 1.001 or np.square(units, dtype=np.float64).sum(1).max() > 1.001:
        refuse(path, f"its directions or units of layer {number} are longer than one")
    if not ((masses >= 1) & (masses < EXACT)).all():
        refuse(path, f"its masses of layer {number} are not numbers of examples")
    if not _counts(labels, classes):
        refuse(path, f"its labels of layer {number} are not classes 0..{classes - 1}")
    if not _counts(examples, EXACT):
        refuse(path, f"its examples of layer {number} are not places in a loader")
    if count * classes > LARGEST_TABLE:
        refuse(path, f"it has {count} centres of {classes} classes, more than can be held")
    return ClassField(
        Metric(_tensor(mean), _tensor(directions), layer["gain_free"]),
        _tensor(units),
        _tensor(labels).long(),
        classes,
        layer["bandwidth"],
        _tensor(examples).long(),
        _tensor(masses),
    )


def _tensor(array: np.ndarray) -> Tensor:
    """In torch's own memory: in numpy's, which may lie otherwise, products round otherwise."""
    return torch.from_numpy(array).clone()


def _counts(values: np.ndarray, limit: int) -> bool:
    """Whether they are whole numbers from 0, below the limit."""
    return bool(((values >= 0) & (values < limit) & (values % 1 == 0)).all())
