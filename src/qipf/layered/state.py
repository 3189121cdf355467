"""A fitted LayeredQIPF to and from the header and arrays of a file; what is read is checked."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qipf.calibration import state as calibration
from qipf.io.container import Arrays
from qipf.io.schema import refuse, require, require_keys
from qipf.layered.class_field import ClassField
from qipf.layered.distilled_centers import FEWEST
from qipf.layered.effort import EFFORTS
from qipf.layered.error_model import ErrorModel
from qipf.layered.metric import Metric
from qipf.layered.novelty import NoveltyModel, PrincipalSubspace, RowLengths
from qipf.network.features import LayerSite
from qipf.validation.parameters import LARGEST_SEED, NAN_POLICIES

if TYPE_CHECKING:
    from qipf.layered.base import LayeredModel

#: How training examples become centres.
REDUCTIONS = ("auto", "distilled", "random", "coreset")

#: What rows of a layer can be, by the kind of a file.
SIDES = {"layers": ("input", "output", "inputs", "outputs"), "features": ("features",)}

#: Narrowest and widest kernel on the unit sphere: inverse squares stay in range.
NARROWEST, WIDEST = 1e-8, 1e3

#: Most classes of all layers together: each layer has a list of them.
MOST_CLASSES = 2**20

#: Limit of `max_centers`, `max_dimension` and `max_tuning`.
LARGEST_SIZE = 2**63

#: Integers below this are exact in float64.
EXACT = 2**53

#: Parameters of a model, and the arrays of each layer: name in the file, type, number of axes.
NUMBERS = ("max_centers", "max_dimension", "max_tuning", "random_state")
PARAMETERS = ("layers", "reduction", "effort", "nan_policy", *NUMBERS)
LAYER_KEYS = ("layer", "side", "gain_free", "bandwidth", "classes")
LAYER_ARRAYS: dict[str, tuple[type, int]] = {
    "mean": (np.float32, 1),
    "directions": (np.float32, 2),
    "units": (np.float32, 2),  # embeddings of the centres
    "masses": (np.float32, 1),  # counts: how many examples a centre stands for
    "labels": (np.float64, 1),
    "examples": (np.float64, 1),
}


#: Largest mean of a layer's outputs: differences from it must not overflow.
LARGEST = 1e30

#: Arrays of the uncertainty and the novelty.
SCORES = ("error_model", "novelty_model")

#: Arrays of each layer whose lengths are measured.
LENGTHS: dict[str, tuple[type, int]] = {
    "subspace mean": (np.float32, 1),
    "subspace directions": (np.float32, 2),
}


def layered_state(model: "LayeredModel") -> tuple[dict[str, Any], Arrays]:
    """Header, without what only its kind has, and arrays of a fitted model."""
    parameters = {name: getattr(model, name) for name in PARAMETERS}
    parameters |= {name: int(parameters[name]) for name in NUMBERS}  # no NumPy integers
    if not isinstance(model.layers, str):
        parameters["layers"] = list(model.layers)
    decisions, arrays = calibration.calibration_state(model)
    arrays["weights"] = model.weights_.numpy()
    arrays |= {name: np.array(getattr(model, f"{name}_").parameters()) for name in SCORES}
    lengths = model.lengths_
    if lengths.sites:
        arrays["shortest"] = lengths.shortest.cpu().numpy()
        for number, subspace in enumerate(lengths.subspaces):
            for name, part in zip(LENGTHS, subspace, strict=True):
                arrays[f"{name} {number}"] = part.cpu().numpy()
    measured = [{"layer": site.layer, "side": site.side} for site in lengths.sites]
    layers = []
    for number, (site, field) in enumerate(zip(model.layers_, model.fields_, strict=True)):
        metric = field.metric
        described = (site.layer, site.side, metric.gain_free, float(field.bandwidth), field.classes)
        layers.append(dict(zip(LAYER_KEYS, described, strict=True)))
        own = (metric.mean, metric.directions, field.embeddings, field.counts, field.labels)
        for name, part in zip(LAYER_ARRAYS, (*own, field.examples), strict=True):
            arrays[f"{name} {number}"] = part.cpu().numpy().astype(LAYER_ARRAYS[name][0])
    header = {"parameters": parameters, "layers": layers, "lengths": measured}
    return header | decisions, arrays


def restore_layers(
    model: "LayeredModel", header: dict[str, Any], arrays: Arrays, path: str
) -> None:
    """Set fields, weights, parameters and calibration from a file's content, which is checked."""
    sides = SIDES[header["kind"]]
    sites = _checked_layers(path, header["layers"], sides)
    measured = _checked_sites(path, header["lengths"], sides, ("layer", "side"))
    parameters = header["parameters"]
    _check_parameters(path, parameters)
    _check_arrays(path, arrays, len(sites), len(measured))
    weights = arrays["weights"]
    if len(weights) != 1 + len(sites) or not (weights >= 0).all() or abs(weights.sum() - 1) > 1e-6:
        refuse(path, f"its weights are not {1 + len(sites)} shares of one")
    for name, value in parameters.items():
        setattr(model, name, value)
    model.layers_, model.weights_ = sites, _tensor(weights)
    model.fields_ = tuple(
        _field(path, layer, number, arrays) for number, layer in enumerate(header["layers"])
    )
    metrics = {s: f.metric for s, f in zip(sites, model.fields_, strict=True)}
    model.lengths_ = _lengths(path, measured, metrics, arrays)
    counts = len(sites), model.lengths_.count
    model.error_model_, model.novelty_model_ = _checked_scores(path, arrays, *counts)
    calibration.restore_calibration(model, header, arrays, path)


def checked_fingerprint(header: dict[str, Any], path: str) -> str:
    """Fingerprint of the network in the header of a file."""
    network = header["network"]
    require_keys(path, "network", network, ("fingerprint",))
    fingerprint = network["fingerprint"]
    require(isinstance(fingerprint, str), path, "fingerprint", fingerprint)
    return str(fingerprint)


def copy_names(header: dict[str, Any], path: str) -> tuple[str, ...]:
    """Names of the perturbed copies in the header of a file of features."""
    names = header["perturbed"]
    named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    require(named, path, "list of perturbed copies", names)
    return tuple(names)


def _check_parameters(path: str, parameters: Any) -> None:
    require_keys(path, "list of parameters", parameters, PARAMETERS)
    layers, reduction = parameters["layers"], parameters["reduction"]
    named = isinstance(layers, list) and layers and all(isinstance(name, str) for name in layers)
    if layers != "auto" and not named:
        refuse(path, f"its layers are {layers!r:.80}")
    require(reduction in REDUCTIONS, path, "reduction", reduction)
    require(parameters["effort"] in tuple(EFFORTS), path, "effort", parameters["effort"])
    nan_policy = parameters["nan_policy"]
    require(nan_policy in NAN_POLICIES, path, "nan_policy", nan_policy)
    for name in NUMBERS:
        value, least = parameters[name], 0 if name == "random_state" else 1
        most = LARGEST_SEED if name == "random_state" else LARGEST_SIZE
        require(type(value) is int and least <= value < most, path, name, value)


def _checked_sites(
    path: str, layers: Any, sides: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[LayerSite, ...]:
    """Different layers; each is described by these keys."""
    if not isinstance(layers, list):
        refuse(path, f"its layers are {layers!r:.80}")
    for layer in layers:
        require_keys(path, "layer", layer, keys)
        name, side = layer["layer"], layer["side"]
        if not isinstance(name, str) or side not in sides:
            refuse(path, f"its layer is {name!r:.80} ({side!r:.80})")
    sites = tuple(LayerSite(layer["layer"], layer["side"]) for layer in layers)
    if len(set(sites)) != len(sites):
        refuse(path, "its layers are not different ones of one network")
    return sites


def _checked_layers(path: str, layers: Any, sides: tuple[str, ...]) -> tuple[LayerSite, ...]:
    """The layers that have fields, after a check of the description of each field."""
    sites = _checked_sites(path, layers, sides, LAYER_KEYS)
    for layer in layers:
        gain_free, width, classes = (layer[key] for key in LAYER_KEYS[2:])
        require(type(gain_free) is bool, path, "gain_free", gain_free)
        usable = type(width) is float and NARROWEST <= width <= WIDEST
        require(usable, path, "bandwidth", width)
        require(type(classes) is int and classes >= 2, path, "number of classes", classes)
    if len({layer["classes"] for layer in layers}) > 1:
        refuse(path, "its layers are not different ones of one network")
    if sum(layer["classes"] for layer in layers) > MOST_CLASSES:
        refuse(path, f"it has {layers[0]['classes']} classes in {len(layers)} layers, too many")
    return sites


def _lengths(
    path: str, sites: tuple[LayerSite, ...], metrics: dict[LayerSite, Metric], arrays: Arrays
) -> RowLengths:
    if any(site.side == "features" and site not in metrics for site in sites):
        refuse(path, "it reads lengths of features that have no field")
    if not set(metrics) <= set(sites):
        refuse(path, "its lengths leave out layers that have fields")
    if not sites:
        return RowLengths.of({}, (), {})
    shortest, subspaces = arrays["shortest"], []
    for number in range(len(sites)):
        mean, directions = (arrays[f"{name} {number}"] for name in LENGTHS)
        if len(directions) != len(mean) or directions.shape[1] > len(mean):
            refuse(path, "its arrays of lengths do not fit each other")
        field = metrics.get(sites[number])
        if field is not None and len(field.mean) != len(mean):
            refuse(path, "its arrays of lengths do not fit its layers")
        if np.abs(mean).max() > LARGEST or np.abs(directions).max() > 1.001:
            refuse(path, "its arrays of lengths are out of range")
        subspaces.append(PrincipalSubspace(_tensor(mean), _tensor(directions)))
    if len(shortest) != 2 * len(sites) + len(metrics):
        refuse(path, "its arrays of lengths do not fit each other")
    if not (shortest > 0).all():
        refuse(path, "its arrays of lengths are out of range")
    return RowLengths(sites, metrics, tuple(subspaces), _tensor(shortest))


def _checked_scores(
    path: str, arrays: Arrays, layers: int, measured: int
) -> tuple[ErrorModel, NoveltyModel]:
    error, novelty = ErrorModel.unfitted(layers), NoveltyModel.unfitted(layers, measured)
    parameters = [_tensor(arrays[name]) for name in SCORES]
    sizes = len(error.parameters()), len(novelty.parameters())
    for name, found, size in zip(SCORES, parameters, sizes, strict=True):
        if len(found) != size:
            refuse(path, f"its {name} has {len(found)} numbers, not {size}")
    error, novelty = ErrorModel.of(parameters[0]), NoveltyModel.of(parameters[1], layers, measured)
    for part in (error.gate, error.far, error.near, novelty.log_odds):
        if not bool((part.slopes >= 0).all()):
            refuse(path, "it has a slope below 0")
    return error, novelty


def _check_arrays(path: str, arrays: Arrays, layers: int, measured: int) -> None:
    kinds = {f"{name} {i}": kind for i in range(layers) for name, kind in LAYER_ARRAYS.items()}
    kinds |= {f"{name} {i}": kind for i in range(measured) for name, kind in LENGTHS.items()}
    others = ["weights", *SCORES, *(["shortest"] if measured else [])]
    kinds |= dict.fromkeys(others, (np.float64, 1))
    if set(arrays) - calibration.ARRAYS != set(kinds):
        refuse(path, f"its arrays are {sorted(arrays)!r:.80}")
    for name, (kind, axes) in kinds.items():
        array = arrays[name]
        if array.dtype != kind or array.ndim != axes or 0 in array.shape:
            refuse(path, f"its {name} are {array.dtype} of shape {array.shape}")
        if not np.isfinite(array).all():
            refuse(path, f"its {name} hold NaN or inf")


def _field(path: str, layer: dict[str, Any], number: int, arrays: Arrays) -> ClassField:
    found = [arrays[f"{name} {number}"] for name in LAYER_ARRAYS]
    mean, directions, embeddings, counts, labels, examples = found
    (size, dimension), classes = embeddings.shape, layer["classes"]
    if np.abs(mean).max() > LARGEST:
        refuse(path, f"the means of its layer {number} are beyond {LARGEST:g}")
    if directions.shape != (len(mean), dimension) or {*map(len, found[3:])} != {size}:
        refuse(path, f"its arrays of layer {number} do not fit each other")
    longest = np.square(embeddings, dtype=np.float64).sum(1).max()
    if np.abs(directions).max() > 1.001 or longest > 1.001:
        refuse(path, f"its directions or units of layer {number} are longer than one")
    if not ((counts >= FEWEST) & (counts < EXACT)).all():
        refuse(path, f"its masses of layer {number} are not numbers of examples")
    if not _whole_below(labels, classes):
        refuse(path, f"its labels of layer {number} are not classes 0..{classes - 1}")
    if not _whole_below(examples, EXACT):
        refuse(path, f"its examples of layer {number} are not places in a loader")
    return ClassField(
        Metric(_tensor(mean), _tensor(directions), layer["gain_free"]),
        _tensor(embeddings),
        _tensor(labels).long(),
        classes,
        layer["bandwidth"],
        _tensor(examples).long(),
        _tensor(counts),
    )


def _tensor(array: np.ndarray) -> Tensor:
    # cloned into memory that torch allocates: with another alignment products round differently
    return torch.from_numpy(array).clone()


def _whole_below(values: np.ndarray, limit: int) -> bool:
    """Whether all values are integers from 0 to below the limit."""
    return bool(((values >= 0) & (values < limit) & (values % 1 == 0)).all())
