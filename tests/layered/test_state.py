"""Files of layered models: exact round trips, and the rejection of invalid headers and arrays."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import qipf
from qipf import LayeredQIPF, QIPFFileError, QIPFInputError, QIPFWarning
from qipf.io.container import decode, encode
from qipf.layered.error_model import ErrorModel
from qipf.layered.mixture import log_odds_of_error
from qipf.layered.novelty import NoveltyModel, PrincipalSubspace
from qipf.layered.state import SCORES
from qipf.network.features import LayerSite
from tests.storage.forged_files import Forge, changed, saved
from tests.stored.write_files import calibrated_layers, layered_data, layered_network

INPUTS = torch.randn(30, 4, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def model():
    return calibrated_layers()


@pytest.fixture(scope="module")
def valid(model, tmp_path_factory):
    return saved(model, tmp_path_factory)


def assert_same(loaded, model):
    for name in ("uncertainty", "novelty", "log_density", "posteriors"):
        assert torch.equal(getattr(loaded, name)(INPUTS), getattr(model, name)(INPUTS))
    assert loaded.explain(INPUTS) == model.explain(INPUTS)
    assert loaded.layers_ == model.layers_
    assert torch.equal(loaded.weights_, model.weights_)
    for one, two in zip(loaded.fields_, model.fields_, strict=True):
        for name in ("embeddings", "labels", "counts", "examples"):
            assert torch.equal(getattr(one, name), getattr(two, name))
        assert one.bandwidth == two.bandwidth


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["random", "coreset", "distilled"])
@pytest.mark.parametrize("layers", ["auto", ["1", "3"]])
def test_a_model_comes_back_to_the_last_bit(tmp_path, layers, reduction):
    net, data = layered_network(), layered_data()
    options = {"max_centers": 35, "max_dimension": 2, "max_tuning": 45, "random_state": 7}
    options |= {"reduction": reduction, "effort": "fast"}
    model = LayeredQIPF(net, layers, **options).fit([data])
    qipf.save(model, tmp_path / "layers.qipf")
    loaded = qipf.load(tmp_path / "layers.qipf", net)
    assert_same(loaded, model)
    assert loaded.net is net
    assert loaded.layers == layers
    assert {name: getattr(loaded, name) for name in options} == options


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_of_networks_in_half_precision(tmp_path, dtype):
    net, (inputs, labels) = layered_network().to(dtype), layered_data()
    model = LayeredQIPF(net, max_tuning=50, effort="fast").fit([(inputs.to(dtype), labels)])
    qipf.save(model, tmp_path / "half.qipf")
    loaded = qipf.load(tmp_path / "half.qipf", net)
    given = INPUTS.to(dtype)
    assert torch.equal(loaded.uncertainty(given), model.uncertainty(given))
    kept, known = loaded.training_sample(), model.training_sample()
    assert torch.equal(kept.rows, known.rows.float())


def test_the_same_model_gives_the_same_bytes(tmp_path, model, valid):
    (tmp_path / "a").write_bytes(valid)
    qipf.save(qipf.load(tmp_path / "a", model.net), tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == valid


@pytest.mark.slow
def test_weighted_centres_make_a_smaller_file(tmp_path):
    sizes = []
    for options in ({}, {"max_centers": 40, "reduction": "coreset"}):
        model = LayeredQIPF(layered_network(), max_tuning=50, **options).fit([layered_data()])
        qipf.save(model, tmp_path / "layers.qipf")
        sizes.append((tmp_path / "layers.qipf").stat().st_size)
    assert sizes[1] < sizes[0] / 3


def test_a_model_without_layers_of_use(tmp_path):
    net, (inputs, labels) = layered_network(), layered_data()
    with torch.no_grad():
        net[0].weight.zero_()
    with pytest.warns(QIPFWarning):
        model = LayeredQIPF(net).fit([(inputs, labels)])
    assert model.layers_ == ()
    qipf.save(model, tmp_path / "layers.qipf")
    assert_same(qipf.load(tmp_path / "layers.qipf", net), model)


def test_a_loaded_model_can_be_fitted_again(model, valid, tmp_path):
    (tmp_path / "a").write_bytes(valid)
    loaded = qipf.load(tmp_path / "a", layered_network())
    with pytest.raises(QIPFInputError, match="Pass example="):
        loaded.export()
    loaded.fit([layered_data()])
    loaded.calibration_ = model.calibration_  # fit removed it, and explanations show p-values
    assert_same(loaded, model)


# ---------------------------------------------------------------------- invalid files


def assert_rejected(path, data, reason):
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
        (("parameters", "effort"), "most", "its effort is 'most'"),
        (("parameters", "effort"), [], "its effort is []"),
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
        (("rule",), [], "its accept rule is []"),
        (("rule", "errors"), -1, "errors must not exceed accepted"),
        (("detection", "errors"), 400, "its detection counts 400 errors of 400"),
        (("network",), None, "its network is None"),
        (("network", "fingerprint"), 3, "its fingerprint is 3"),
    ],
)
def test_invalid_headers_are_rejected(tmp_path, valid, keys, value, reason):
    assert_rejected(tmp_path / "forged.qipf", changed(valid, *keys, value=value), reason)


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        (2**40, "it has 1099511627776 classes in 2 layers, too many"),
        (2**19 + 1, "it has 524289 classes in 2 layers, too many"),
    ],
)
def test_classes_beyond_memory_are_rejected(tmp_path, valid, classes, reason):
    forge = Forge(valid)
    for layer in forge.header["layers"]:
        layer["classes"] = classes
    assert_rejected(tmp_path / "forged.qipf", forge.data(), reason)


def value_at(name, value, place=0):
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
        (value_at("weights", -0.5), "its weights are not 3 shares of one"),
        (value_at("weights", 2.0), "its weights are not 3 shares of one"),
        (value_at("weights", np.nan), "its weights hold NaN or inf"),
        (value_at("examples 0", 0.5), "its examples of layer 0 are not places in a loader"),
        (value_at("examples 1", -1), "its examples of layer 1 are not places in a loader"),
        (value_at("examples 0", 2.0**60), "its examples of layer 0 are not places in a loader"),
        (value_at("examples 0", np.nan), "its examples 0 hold NaN or inf"),
        (value_at("labels 0", 3), "its labels of layer 0 are not classes 0..2"),
        (value_at("labels 1", 0.5), "its labels of layer 1 are not classes 0..2"),
        (value_at("masses 0", 0), "its masses of layer 0 are not numbers of examples"),
        (value_at("masses 1", -1), "its masses of layer 1 are not numbers of examples"),
        (value_at("masses 0", 1e-45), "its masses of layer 0 are not numbers of examples"),
        (value_at("masses 0", 3e38), "its masses of layer 0 are not numbers of examples"),
        (value_at("masses 0", np.inf), "its masses 0 hold NaN or inf"),
        (value_at("mean 0", np.inf), "its mean 0 hold NaN or inf"),
        (value_at("mean 1", 3e38), "the means of its layer 1 are beyond 1e+30"),
        (value_at("directions 1", 3e38), "its directions or units of layer 1 are longer than one"),
        (value_at("units 0", 2.0), "its directions or units of layer 0 are longer than one"),
        (other_shape("units 0", [20, 12]), "its arrays of layer 0 do not fit each other"),
        (other_shape("mean 0", [1, 6]), "its mean 0 are float32 of shape (1, 6)"),
        (other_shape("labels 0", [20, 2]), "its labels 0 are float64 of shape (20, 2)"),
        (other_shape("masses 1", [40, 1]), "its masses 1 are float32 of shape (40, 1)"),
        (other_shape("examples 0", [1, 40]), "its examples 0 are float64 of shape (1, 40)"),
        (other_shape("directions 0", [4, 9]), "its arrays of layer 0 do not fit each other"),
    ],
)
def test_invalid_arrays_are_rejected(tmp_path, valid, change, reason):
    forge = Forge(valid)
    change(forge)
    assert_rejected(tmp_path / "forged.qipf", forge.data(), reason)


@pytest.mark.parametrize("name", ["mean 0", "masses 1", "labels 0", "examples 1", "weights"])
def test_one_array_too_many_or_too_few(tmp_path, valid, name):
    forge = Forge(valid)
    forge.entries["more"] = forge.entries.pop(name)
    assert_rejected(tmp_path / "forged.qipf", forge.data(), "its arrays are ['calibration',")


@pytest.mark.parametrize("name", ["units 0", "masses 0", "labels 0", "examples 0"])
def test_arrays_of_one_layer_have_one_length(tmp_path, valid, name):
    header, arrays = decode(valid, "valid")
    arrays[name] = arrays[name][:-1]
    assert_rejected(
        tmp_path / "x", encode(header, arrays), "its arrays of layer 0 do not fit each other"
    )


def test_scores_that_are_not_fitted(tmp_path, model):
    """The mixture's log-odds, and minus the last layer's log density."""
    other, layers = copy.copy(model), len(model.layers_)
    other.error_model_ = ErrorModel.unfitted(layers)
    other.novelty_model_ = NoveltyModel.unfitted(layers, model.lengths_.count)
    qipf.save(other, tmp_path / "layers.qipf")
    loaded = qipf.load(tmp_path / "layers.qipf", model.net)
    mixture = torch.einsum("nlc,l->nc", loaded.posteriors(INPUTS), loaded.weights_)
    predicted = loaded(INPUTS).predicted
    torch.testing.assert_close(loaded.uncertainty(INPUTS), log_odds_of_error(mixture, predicted))
    torch.testing.assert_close(loaded.novelty(INPUTS), -loaded.log_density(INPUTS)[:, -1])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("subspace mean 0", lambda a: a + np.float32(3e38), "arrays of lengths are out of range"),
        ("subspace directions 0", lambda a: 2 + a, "arrays of lengths are out of range"),
        ("subspace directions 0", lambda a: a[:-1], "arrays of lengths do not fit each other"),
        ("shortest", lambda a: 0 * a, "arrays of lengths are out of range"),
        ("shortest", lambda a: a[:-1], "arrays of lengths do not fit each other"),
    ],
)
def test_lengths_that_cannot_be(tmp_path, model, valid, name, change, message):
    header, arrays = decode(valid, "")
    (tmp_path / "bad").write_bytes(encode(header, {**arrays, name: change(arrays[name])}))
    with pytest.raises(QIPFFileError, match=message):
        qipf.load(tmp_path / "bad", model.net)


@pytest.mark.parametrize("count", [0, 1])
def test_lengths_that_leave_out_a_layer_with_a_field(tmp_path, model, valid, count):
    header, arrays = decode(valid, "")
    header = {**header, "lengths": header["lengths"][:count]}
    for name in list(arrays):
        if name.startswith("subspace") and int(name[-1]) >= count:
            del arrays[name]
    if not count:
        del arrays["shortest"]
    (tmp_path / "bad").write_bytes(encode(header, arrays))
    with pytest.raises(QIPFFileError, match="lengths leave out layers that have fields"):
        qipf.load(tmp_path / "bad", model.net)


def test_lengths_of_rows_of_another_width_are_refused(tmp_path, model, valid):
    header, arrays = decode(valid, "")
    wide = np.ones(9, np.float32), np.zeros((9, 2), np.float32)
    changed = dict(zip(("subspace mean 0", "subspace directions 0"), wide, strict=True))
    (tmp_path / "bad").write_bytes(encode(header, {**arrays, **changed}))
    with pytest.raises(QIPFFileError, match="its arrays of lengths do not fit its layers"):
        qipf.load(tmp_path / "bad", model.net)


def test_a_layer_without_a_field_shows_its_width_when_it_is_read(model):
    other, lengths = copy.copy(model), model.lengths_
    more = PrincipalSubspace(torch.ones(9), torch.zeros(9, 2))
    plain, others = lengths.shortest[:1], lengths.shortest
    other.lengths_ = replace(
        lengths,
        sites=(*lengths.sites, LayerSite("0")),
        subspaces=(*lengths.subspaces, more),
        shortest=torch.cat([plain, others, plain]),
    )
    with pytest.raises(QIPFInputError, match=r"the model was fitted with 9\. Pass inputs"):
        other(INPUTS)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("change", [lambda a: a[:-1], lambda a: a - 1e9, lambda a: a[None]])
def test_scores_that_cannot_be(tmp_path, model, valid, name, change):
    header, arrays = decode(valid, "")
    (tmp_path / "bad").write_bytes(encode(header, {**arrays, name: change(arrays[name])}))
    with pytest.raises(QIPFFileError, match=f"{name}|slope below 0"):
        qipf.load(tmp_path / "bad", model.net)


def test_one_score_without_the_other(tmp_path, model, valid):
    header, arrays = decode(valid, "")
    del arrays[SCORES[1]]
    (tmp_path / "bad").write_bytes(encode(header, arrays))
    with pytest.raises(QIPFFileError, match="its arrays are"):
        qipf.load(tmp_path / "bad", model.net)
