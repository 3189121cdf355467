"""FeatureQIPF: the score of LayeredQIPF from arrays, with every verb of the contract."""

import re

import numpy as np
import pytest
import torch

import qipf
from qipf import FeatureQIPF, QIPFFileError, QIPFInputError, ShiftMonitor
from tests.layered.feature_examples import FEW, FRESH, HELD_OUT, TRAIN
from tests.storage.forged_files import changed


@pytest.fixture(scope="module")
def model():
    fitted = FeatureQIPF(**FEW).fit(*TRAIN)
    fitted.calibrate(*HELD_OUT)
    fitted.accept_rule(max_risk=0.02)
    return fitted


def test_the_scores_are_sums_of_log_odds_and_log_densities(model):
    features, logits, _ = FRESH
    posteriors = model.posteriors(features, logits)
    assert posteriors.shape == (30, 1 + len(model.layers_), 4)
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(posteriors[:, 0], softmax, rtol=1e-6)
    for number, field in enumerate(model.fields_, start=1):
        layer = features[model.layers_[number - 1].layer]
        rows = field.metric(torch.from_numpy(layer)).double()
        kernel = torch.exp((rows @ field.embeddings.double().T - 1) / field.bandwidth**2)
        classes = torch.zeros(30, 4, dtype=torch.float64).index_add_(1, field.labels, kernel)
        expected = classes / classes.sum(1, keepdim=True)
        np.testing.assert_allclose(posteriors[:, number], expected, rtol=1e-3, atol=1e-12)
    mixture = np.einsum("nlc,l->nc", posteriors, model.weights_.numpy())
    own = mixture[np.arange(30), logits.argmax(1)]
    others = mixture.sum(1) - own
    energy = -np.log(np.exp(logits.astype(float)).sum(1))
    each = posteriors[np.arange(30), :, logits.argmax(1)]
    odds = np.column_stack([np.log(others / own), np.log((posteriors.sum(2) - each) / each)])
    error = model.error_model_
    far = 1 / (1 + np.exp(-(error.gate.constant + float(error.gate.slopes) * energy)))
    near_odds = error.near.constant + odds @ error.near.slopes.numpy()
    far_odds = error.far.constant + odds[:, 0] * float(error.far.slopes)
    uncertainty = (1 - far) * near_odds + far * far_odds
    prediction = model(features, logits)
    np.testing.assert_allclose(model.uncertainty(features, logits), uncertainty, rtol=1e-5)
    np.testing.assert_allclose(prediction.p_error, 1 / (1 + np.exp(-uncertainty)), rtol=1e-4)
    own = model.lengths_
    lengths = [np.linalg.norm(features[site.layer], axis=1) for site in own.sites]
    for site, metric in own.metrics.items():
        lengths.append(metric.whitened(torch.from_numpy(features[site.layer])).norm(dim=1).numpy())
    for site, subspace in zip(own.sites, own.subspaces, strict=True):
        offsets = features[site.layer] - subspace.mean.numpy()
        left = offsets - offsets @ subspace.directions.numpy() @ subspace.directions.numpy().T
        lengths.append(np.linalg.norm(left, axis=1))
    lengths = np.log(np.stack(lengths, 1) + own.shortest.numpy())
    density = model.log_density(features, logits)
    unusual = np.column_stack([energy, -density, lengths])
    novelty = model.novelty_model_
    distance = np.square((unusual - novelty.mean.numpy()) @ novelty.whiten.numpy()).sum(1)
    columns = np.column_stack([energy, -density[:, -1], lengths[:, -1], distance, odds[:, 0]])
    constant, *slopes = novelty.log_odds.parameters()
    np.testing.assert_allclose(
        prediction.novelty, constant + columns @ slopes, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(model.novelty(features, logits), prediction.novelty)
    np.testing.assert_allclose(prediction.probabilities, mixture)


def test_it_detects_errors_better_than_entropy(model):
    assert model.detection_.uncertainty > model.detection_.entropy > 0.5


def test_rows_in_parts_are_the_same(model, monkeypatch):
    features, logits, _ = FRESH
    whole = model.uncertainty(features, logits)
    monkeypatch.setattr("qipf.layered.mixture.POSTERIORS", 7 * 4 * len(model.weights_))
    np.testing.assert_allclose(model.uncertainty(features, logits), whole, rtol=1e-5, atol=1e-6)


def test_every_verb(model, tmp_path):
    features, logits, _ = FRESH
    uncertainty = model.uncertainty(features, logits)
    prediction = model(features, logits)
    np.testing.assert_array_equal(prediction.predicted, logits.argmax(1))
    np.testing.assert_array_equal(prediction.uncertainty, uncertainty)
    np.testing.assert_array_equal(prediction.p_value, model.p_values(features, logits))
    np.testing.assert_array_equal(prediction.accepted, model.accepts(features, logits))
    assert 0 < prediction.accepted.sum() < 30
    assert model.log_density(features, logits).shape == (30, len(model.layers_))
    assert (model.log_density(features, logits) <= 1e-6).all()
    assert ShiftMonitor(model).update(features, logits).seen == 30
    explanation = model.explain(features, logits, nearest=2)[0]
    assert explanation.predicted == logits[0].argmax()
    for neighbor in explanation.nearest:
        assert TRAIN[2][neighbor.index] == neighbor.label == explanation.predicted
    assert repr(model) == (
        f"FeatureQIPF({', '.join(site.layer for site in model.layers_)}, calibrated on 600 "
        f"predictions, error detection: {model.detection_}, accepts {model.rule_.coverage:.1%})"
    )
    assert repr(FeatureQIPF()) == "FeatureQIPF(not fitted)"
    for line in ("fields of given features", "features and logits were perturbed", "600 held-out"):
        assert line in model.summary()


@pytest.mark.parametrize("as_input", [np.asarray, torch.from_numpy])
def test_a_monitor_scores_the_other_rows_of_a_batch_with_nan(model, as_input):
    features, logits, _ = FRESH
    scores = np.stack(model.both_scores(features, logits))
    scores[:, [3, 8]] = np.nan
    expected = ShiftMonitor(model).update_scores(*scores)
    features, logits = {name: part.copy() for name, part in features.items()}, logits.copy()
    features["deep"][3, 0], logits[8, 1] = np.inf, np.nan
    features = {name: as_input(part) for name, part in features.items()}
    found = ShiftMonitor(model).update(features, as_input(logits))
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-9)
    assert (found.seen, found.abstained) == (30, expected.abstained)


@pytest.mark.slow
def test_saved_and_loaded_it_gives_the_same(model, tmp_path):
    path = tmp_path / "features.qipf"
    qipf.save(model, path)
    loaded = qipf.load(path)
    features, logits, _ = FRESH
    for name, value in vars(model(features, logits)).items():
        np.testing.assert_array_equal(getattr(loaded(features, logits), name), value)
    assert loaded.digest() == model.digest()
    assert loaded.summary() == model.summary()
    with pytest.raises(QIPFInputError, match="belongs to no network"):
        qipf.load(path, torch.nn.Identity())
    with pytest.raises(QIPFInputError, match="Pass example="):
        loaded.export()


def test_tensors_give_tensors(model):
    features, logits, _ = FRESH
    tensors = {name: torch.from_numpy(value) for name, value in features.items()}
    found = model.uncertainty(tensors, torch.from_numpy(logits))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), model.uncertainty(features, logits))


def test_anything_that_converts_to_an_array_is_taken(model):
    """Arrays of JAX and TensorFlow convert in this way."""

    class Foreign:
        def __init__(self, values):
            self.values = values

        def __array__(self, dtype=None, copy=None):
            return self.values

    features, logits, _ = FRESH
    foreign = {name: Foreign(value) for name, value in features.items()}
    found = model.uncertainty(foreign, Foreign(logits))
    np.testing.assert_array_equal(found, model.uncertainty(features, logits))


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_operators")
def test_exported_with_an_input_per_layer(model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    features, logits, _ = FRESH
    written = model.export_onnx(tmp_path / "features.onnx", check=False)  # compared here
    names = [site.layer for site in model.layers_]
    assert written.inputs == ("logits", *names)
    outputs = ("uncertainty", "probabilities", "p_error", "novelty", "accepted")
    assert written.outputs == outputs
    session = onnxruntime.InferenceSession(str(written.path))
    feeds = {"logits": logits, **{name: features[name] for name in names}}
    uncertainty, probabilities, p_error, novelty, accepted = session.run(None, feeds)
    expected = model(features, logits)
    np.testing.assert_allclose(uncertainty, expected.uncertainty, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(p_error, expected.p_error, rtol=1e-4)
    np.testing.assert_allclose(novelty, expected.novelty, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(probabilities, expected.probabilities, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(accepted, expected.accepted)
    few = {name: value[:1] for name, value in feeds.items()}
    np.testing.assert_allclose(session.run(None, few)[0], uncertainty[:1], rtol=1e-5)


@pytest.mark.slow
def test_a_loaded_model_is_exported_with_an_example(model, tmp_path):
    features, logits, _ = FRESH
    qipf.save(model, tmp_path / "features.qipf")
    loaded = qipf.load(tmp_path / "features.qipf")
    one = {name: value[:1] for name, value in features.items()}
    program = loaded.export((one, logits[:1]))
    arrays = [logits, *(features[site.layer] for site in loaded.layers_)]
    tensors = map(torch.from_numpy, arrays)
    found = program.module()(*tensors)["uncertainty"].numpy()
    np.testing.assert_allclose(found, model.uncertainty(features, logits), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_maps_and_tokens_are_pooled_as_in_a_network():
    features, logits, labels = TRAIN
    maps = np.repeat(np.repeat(features["early"][:, :, None, None], 3, 2), 4, 3)
    model = FeatureQIPF(**FEW).fit(
        {"maps": maps, "tokens": features["deep"][:, None]}, logits, labels
    )
    widths = [len(field.metric.mean) for field in model.fields_]
    by_name = dict(zip((site.layer for site in model.layers_), widths, strict=True))
    assert by_name.get("maps", 8 * 9) == 8 * 9
    assert by_name.get("tokens", 4) == 4


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("kind",), "layers", "its header is ["),
        (("perturbed",), "noise", "its list of perturbed copies is 'noise'"),
        (("perturbed",), [1], "its list of perturbed copies is [1]"),
        (("layers", 0, "side"), "output", "its layer is 'early' ('output')"),
        (("parameters", "max_centers"), 0, "its max_centers is 0"),
    ],
)
def test_invalid_files_are_rejected(model, tmp_path, keys, value, reason):
    path = tmp_path / "forged.qipf"
    model.save(path)
    path.write_bytes(changed(path.read_bytes(), *keys, value=value))
    with pytest.raises(QIPFFileError, match=re.escape(reason)):
        qipf.load(path)


def test_scoring_rejects_other_widths_and_missing_layers(model):
    features, logits, _ = FRESH
    used = model.layers_[0].layer
    with pytest.raises(QIPFInputError, match=f"features lacks '{used}'"):
        model.uncertainty({name: v for name, v in features.items() if name != used}, logits)
    with pytest.raises(QIPFInputError, match="the model was fitted with"):
        model.uncertainty({name: v[:, :2] for name, v in features.items()}, logits)
    with pytest.raises(QIPFInputError, match="There are 3 logits; the model was fitted with 4"):
        model.uncertainty(features, logits[:, :3])
    with pytest.raises(QIPFInputError, match="pass at least one"):
        model.calibrate({name: v[:0] for name, v in features.items()}, logits[:0])
    with pytest.raises(QIPFInputError, match=r"classes 0\.\.3, got 4"):
        model.calibrate(features, logits, np.full(30, 4))
    more = {**features, "unused": np.ones((30, 1))}
    np.testing.assert_array_equal(
        model.uncertainty(more, logits), model.uncertainty(features, logits)
    )
