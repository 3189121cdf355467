"""Files of layered models that lie: each is refused, none believed."""

import re
from pathlib import Path

import numpy as np
import pytest

import qipf
from qipf import QIPFFileError
from qipf.io.container import decode, encode
from tests.storage.forged_files import Forge, changed, saved
from tests.stored.write_files import layered, layered_network

STORED = Path(__file__).parents[1] / "stored"


@pytest.fixture(scope="module")
def model():
    return layered()


@pytest.fixture(scope="module")
def valid(model, tmp_path_factory):
    return saved(model, tmp_path_factory)


def refused(path, data, reason):
    path.write_bytes(data)
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: ")) as error:
        qipf.load(path, layered_network())
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("kind",), "layer", "its kind is 'layer'"),
        (("kind",), "field", "its header is ["),
        (("parameters",), {}, "its list of parameters is []"),
        (("parameters", "layers"), "all", "its layers are 'all'"),
        (("parameters", "layers"), [], "its layers are []"),
        (("parameters", "layers"), [3], "its layers are [3]"),
        (("parameters", "reduction"), "kmeans", "its reduction is 'kmeans'"),
        (("parameters", "reduction"), ["random"], "its reduction is ['random']"),
        (("parameters", "reduction"), None, "its reduction is None"),
        (("parameters", "max_centers"), 0, "its max_centers is 0"),
        (("parameters", "max_tuning"), 2.0, "its max_tuning is 2.0"),
        (("parameters", "random_state"), -1, "its random_state is -1"),
        (("parameters", "random_state"), 2**32, "its random_state is 4294967296"),
        (("layers",), {}, "its layers are {}"),
        (("layers",), [], "its arrays are ["),
        (("layers", 0), {"layer": "2"}, "its layer is ['layer']"),
        (("layers", 0, "layer"), 2, "its layer is 2 ('input')"),
        (("layers", 0, "layer"), "4", "its layers are not different ones of one network"),
        (("layers", 0, "side"), "inside", "its layer is '2' ('inside')"),
        (("layers", 0, "gain_free"), 1, "its gain_free is 1"),
        (("layers", 0, "bandwidth"), 0.0, "its bandwidth is 0.0"),
        (("layers", 0, "bandwidth"), 1e-200, "its bandwidth is 1e-200"),
        (("layers", 0, "bandwidth"), 1, "its bandwidth is 1"),
        (("layers", 0, "classes"), 1, "its number of classes is 1"),
        (("layers", 0, "classes"), 5, "its layers are not different ones of one network"),
        (("format_version",), 1, "its kind is 'layers'"),
        (("format_version",), 4, "a newer qipf wrote it (format 4, here 3): update qipf"),
        (("format_version",), 3.0, "its format version is 3.0"),
        (("network",), None, "its network is None"),
        (("network", "fingerprint"), 3, "its fingerprint is 3"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, valid, keys, value, reason):
    refused(tmp_path / "forged.qipf", changed(valid, *keys, value=value), reason)


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        (2**40, "it has 1099511627776 classes in 2 layers, too many"),
        (2**23 + 1, "it has 8388609 classes in 2 layers, too many"),
        (2**23, "it has 40 centres of 8388608 classes, more than can be held"),
        (419_431, "it has 40 centres of 419431 classes, more than can be held"),
    ],
)
def test_classes_beyond_memory_are_refused(tmp_path, valid, classes, reason):
    forge = Forge(valid)
    for layer in forge.header["layers"]:
        layer["classes"] = classes
    refused(tmp_path / "forged.qipf", forge.data(), reason)


def lie(name, value, place=0):
    def change(forge):
        forge.array(name)[place] = value

    return change


def other_shape(name, shape):
    def change(forge):
        forge.entries[name]["shape"] = shape

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lie("weights", -0.5), "its weights are not 3 shares of one"),
        (lie("weights", 2.0), "its weights are not 3 shares of one"),
        (lie("weights", np.nan), "its weights hold NaN or inf"),
        (lie("examples 0", 0.5), "its examples of layer 0 are not places in a loader"),
        (lie("examples 1", -1), "its examples of layer 1 are not places in a loader"),
        (lie("examples 0", 2.0**60), "its examples of layer 0 are not places in a loader"),
        (lie("examples 0", np.nan), "its examples 0 hold NaN or inf"),
        (lie("labels 0", 3), "its labels of layer 0 are not classes 0..2"),
        (lie("labels 1", 0.5), "its labels of layer 1 are not classes 0..2"),
        (lie("masses 0", 0), "its masses of layer 0 are not numbers of examples"),
        (lie("masses 1", -1), "its masses of layer 1 are not numbers of examples"),
        (lie("masses 0", 1e-45), "its masses of layer 0 are not numbers of examples"),
        (lie("masses 0", 3e38), "its masses of layer 0 are not numbers of examples"),
        (lie("masses 0", np.inf), "its masses 0 hold NaN or inf"),
        (lie("mean 0", np.inf), "its mean 0 hold NaN or inf"),
        (lie("directions 1", 3e38), "its directions or units of layer 1 are longer than one"),
        (lie("units 0", 2.0), "its directions or units of layer 0 are longer than one"),
        (other_shape("units 0", [20, 12]), "its arrays of layer 0 do not fit each other"),
        (other_shape("mean 0", [1, 6]), "its mean 0 are float32 of shape (1, 6)"),
        (other_shape("labels 0", [20, 2]), "its labels 0 are float64 of shape (20, 2)"),
        (other_shape("masses 1", [40, 1]), "its masses 1 are float32 of shape (40, 1)"),
        (other_shape("examples 0", [1, 40]), "its examples 0 are float64 of shape (1, 40)"),
        (other_shape("directions 0", [4, 9]), "its arrays of layer 0 do not fit each other"),
    ],
)
def test_arrays_that_lie_are_refused(tmp_path, valid, change, reason):
    forge = Forge(valid)
    change(forge)
    refused(tmp_path / "forged.qipf", forge.data(), reason)


@pytest.mark.parametrize("name", ["mean 0", "masses 1", "labels 0", "examples 1", "weights"])
def test_one_array_too_many_or_too_few(tmp_path, valid, name):
    forge = Forge(valid)
    forge.entries["more"] = forge.entries.pop(name)
    refused(tmp_path / "forged.qipf", forge.data(), "its arrays are ['directions 0',")


@pytest.mark.parametrize("name", ["units 0", "masses 0", "labels 0", "examples 0"])
def test_arrays_of_one_layer_have_one_length(tmp_path, valid, name):
    header, arrays = decode(valid, "valid")
    arrays[name] = arrays[name][:-1]
    refused(tmp_path / "x", encode(header, arrays), "its arrays of layer 0 do not fit each other")
