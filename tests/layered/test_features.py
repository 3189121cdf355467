"""FeatureQIPF: the score of LayeredQIPF from arrays, with every verb of the contract."""

import pickle
import re

import numpy as np
import pytest
import torch

import qipf
from qipf import FeatureQIPF, QIPFFileError, QIPFInputError, QIPFNotFittedError, ShiftMonitor
from qipf.layered.holdout import ONE_IN
from qipf.layered.predictions import checked_copies, checked_predictions, noisy_copies
from tests.storage.forged_files import changed

FEW = {"max_centers": 200, "max_tuning": 60}


def examples(count, seed, classes=4):
    """Two layers that know the class and logits that err where the second layer is noisy."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    deep = np.eye(classes)[labels] + 0.25 * random.normal(size=(count, classes))
    early = np.repeat(np.eye(classes)[labels], 2, 1) + 0.3 * random.normal(size=(count, 8))
    logits = 6 * deep + 1.5 * random.normal(size=(count, classes))
    return {"early": early, "deep": deep}, logits, labels


TRAIN, HELD_OUT, FRESH = examples(400, 0), examples(600, 1), examples(30, 2)


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
    unusual = np.column_stack([energy, -model.log_density(features, logits)])
    novelty = model.novelty_model_
    distance = np.linalg.norm((unusual - novelty.mean.numpy()) @ novelty.whiten.numpy(), axis=1)
    columns = np.column_stack([energy, unusual[:, -1], distance])
    constant, *slopes = novelty.log_odds.parameters()
    np.testing.assert_allclose(prediction.novelty, constant + columns @ slopes, rtol=1e-6)
    np.testing.assert_array_equal(model.novelty(features, logits), prediction.novelty)
    np.testing.assert_allclose(prediction.probabilities, mixture)


def test_it_detects_errors_better_than_entropy(model):
    assert model.detection_.uncertainty > model.detection_.entropy > 0.5


def test_rows_in_parts_are_the_same(model, monkeypatch):
    features, logits, _ = FRESH
    whole = model.uncertainty(features, logits)
    monkeypatch.setattr("qipf.layered.base.POSTERIORS", 7 * 4 * len(model.weights_))
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


# ---------------------------------------------------------------------- what it is fitted on


@pytest.mark.slow
def test_examples_to_tune_with_are_no_centres():
    model = FeatureQIPF(max_tuning=60).fit(*TRAIN)
    assert len(model.fields_[0].embeddings) == 400 - 60
    few = FeatureQIPF().fit(*TRAIN)
    assert len(few.fields_[0].embeddings) == 400 - 400 // ONE_IN
    own = FeatureQIPF().fit(*TRAIN, held_out=HELD_OUT)
    assert sorted(own.fields_[0].examples.tolist()) == list(range(400))
    assert torch.equal(own.fields_[0].labels, torch.from_numpy(np.sort(TRAIN[2])))


def test_a_coreset_stands_for_all_examples():
    model = FeatureQIPF(max_centers=40, reduction="coreset").fit(*TRAIN)
    for field in model.fields_:
        assert float(field.counts.sum()) == 320
        assert len(field.embeddings) <= 40


@pytest.mark.slow
def test_perturbed_copies_are_used_and_told():
    features, logits, labels = TRAIN
    random = np.random.default_rng(3)
    noisy = {name: v + 0.4 * random.normal(size=v.shape) for name, v in features.items()}
    copies = {"noise": (noisy, 6 * noisy["deep"])}
    model = FeatureQIPF(**FEW).fit(features, logits, labels, perturbed=copies)
    assert model.perturbed_ == ("noise",)
    assert "perturbed     noise" in model.summary()
    without = FeatureQIPF(**FEW).fit(features, logits, labels)
    assert not torch.equal(model.weights_, without.weights_)
    with pytest.raises(QIPFInputError, match="a copy of each of the 600 held-out"):
        FeatureQIPF().fit(*TRAIN, held_out=HELD_OUT, perturbed=copies)
    shorter = {"noise": ({name: v[:9] for name, v in noisy.items()}, logits[:9])}
    with pytest.raises(QIPFInputError, match="a copy of each of the 400 training"):
        FeatureQIPF().fit(*TRAIN, perturbed=shorter)


def test_a_copy_cannot_be_named_clean():
    with pytest.raises(QIPFInputError, match="'clean', which is the name of the examples"):
        FeatureQIPF().fit(*TRAIN, perturbed={"clean": TRAIN[:2]})


@pytest.mark.slow
@pytest.mark.parametrize("centers", [200, 400])  # a sample of the training examples, or all
def test_neither_training_nor_held_out_examples_calibrate(centers):
    other = examples(500, 7)
    model = FeatureQIPF(max_centers=centers, max_tuning=60).fit(*TRAIN, held_out=other)
    assert model.training_sample().total == 900
    assert len(model.training_sample().rows) == 900 * centers // 400
    for seen in (TRAIN, other):
        with pytest.raises(QIPFInputError, match="About .*% of the calibration rows are training"):
            model.calibrate(*seen)
    assert model.calibration_ is None
    model.calibrate(*HELD_OUT)


@pytest.mark.slow
def test_a_model_keeps_no_view_of_the_arrays():
    features, logits, labels = examples(400, 8)
    model = FeatureQIPF(**FEW).fit(features, logits, labels)
    before = model._few(None).logits.clone()
    size = len(pickle.dumps(model))
    longer = FeatureQIPF(**FEW).fit(*examples(4000, 8))
    assert len(pickle.dumps(longer)) < 1.2 * size
    for part in (logits, *features.values()):
        part[:] = np.nan
    few = model._few(None)  # what it is exported with
    assert torch.equal(few.logits, before)
    assert all(bool(torch.isfinite(rows).all()) for rows in few.given.values())


@pytest.mark.slow
def test_a_fit_that_fails_leaves_the_model_as_it_was(model, monkeypatch):
    kept = pickle.loads(pickle.dumps(model))
    before = kept.digest(), kept.rule_, kept.uncertainty(*FRESH[:2])

    def fails(*args):
        raise MemoryError

    monkeypatch.setattr("qipf.layered.base.error_detection", fails)
    with pytest.raises(MemoryError):
        kept.fit(*examples(300, 9))
    assert (kept.digest(), kept.rule_) == before[:2]
    np.testing.assert_array_equal(kept.uncertainty(*FRESH[:2]), before[2])


def test_other_examples_go_to_the_device_of_the_training_examples():
    given = checked_predictions(*TRAIN[:2])
    elsewhere = given.mapped(lambda part: part.to("meta"))
    found = checked_predictions(*HELD_OUT[:2], like=elsewhere)
    copies = checked_copies({"same": HELD_OUT[:2]}, elsewhere, 600, held_out=True)
    for part in (found, copies["same"]):
        for tensor in (part.logits, *part.given.values(), *part.rows.values()):
            assert tensor.device.type == "meta"


def test_noisy_copies_move_logits_and_features_together():
    """Logits that are a linear function of the features stay that function of them."""
    features, _, labels = TRAIN
    linear = {"deep": np.tanh(features["deep"])}
    given = checked_predictions(linear, 3 * linear["deep"])
    truth = torch.from_numpy(labels)
    copies = noisy_copies(given[:100], truth[:100], given[100:], truth[100:], 0)
    assert len(copies) == 3
    clean = float((given.logits[:100].argmax(1).numpy() == labels[:100]).mean())
    accuracies = []
    for copy in copies.values():
        (rows,) = copy.rows.values()
        torch.testing.assert_close(copy.logits, 3 * rows)
        accuracies.append(float((copy.logits.argmax(1).numpy() == labels[:100]).mean()))
    # nine, seven and five tenths of the accuracy above chance are kept
    wanted = [0.25 + share * (clean - 0.25) for share in (0.9, 0.7, 0.5)]
    np.testing.assert_allclose(accuracies, wanted, atol=0.12)


def test_classes_of_one_example_each_cannot_perturb_others():
    features, logits, labels = TRAIN
    first = [int(np.flatnonzero(labels == label)[0]) for label in range(4)]
    given, truth = checked_predictions(features, logits), torch.from_numpy(labels)
    assert noisy_copies(given[:50], truth[:50], given[first], truth[first], 0) == {}


@pytest.mark.slow
def test_one_logit_is_that_of_class_one_against_class_zero():
    features, logits, labels = TRAIN
    one = logits[:, 1:2] - logits[:, :1]
    binary = labels < 2
    part = {name: value[binary] for name, value in features.items()}
    single = FeatureQIPF(**FEW).fit(part, one[binary], labels[binary])
    double = np.concatenate([np.zeros_like(one), one], 1)
    both = FeatureQIPF(**FEW).fit(part, double[binary], labels[binary])
    np.testing.assert_array_equal(
        single.uncertainty(part, one[binary]), both.uncertainty(part, double[binary])
    )
    assert set(single(part, one[binary]).predicted) == {0, 1}
    program = single.export()
    inputs = program.example_inputs[0]
    np.testing.assert_array_equal(inputs[0], one[binary][: len(inputs[0])])
    few = [torch.from_numpy(part[site.layer][:3]) for site in single.layers_]
    found = program.module()(torch.from_numpy(one[binary][:3]), *few)["uncertainty"]
    np.testing.assert_allclose(
        found, single.uncertainty(part, one[binary])[:3], rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model():
    one, two = (FeatureQIPF(**FEW).fit(*TRAIN) for _ in range(2))
    assert one.digest() == two.digest()
    assert FeatureQIPF(**FEW, random_state=1).fit(*TRAIN).digest() != one.digest()


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f, y: (np.ones((9, 3)), y), "features must be a dict of arrays by layer"),
        (lambda f, y: ({}, y), "features lacks .*; it has none"),
        (lambda f, y: ({"early": f["early"]}, y), r"features lacks 'deep'; it has 'early'"),
        (lambda f, y: ({**f, "deep": f["deep"][:3]}, y), r"\['deep'\] must have one row per"),
        (lambda f, y: ({**f, "deep": f["deep"][:, 0]}, y), r"\['deep'\] must have one row per"),
        (
            lambda f, y: ({**f, "deep": f["deep"] * np.nan}, y),
            r"features\['deep'\] has 9 rows with",
        ),
        (lambda f, y: ({**f, "deep": f["deep"] > 0}, y), "must be a dense array of real numbers"),
        (lambda f, y: ({**f, "deep": [["a"]] * 9}, y), r"features\['deep'\] must hold numbers"),
        (lambda f, y: ({**f, "logits": f["deep"]}, y), "a layer named 'logits'"),
        (lambda f, y: (f, y[:, 0]), r"logits must have shape \(n, classes\), got \(9,\)"),
        (lambda f, y: (f, y + np.inf), "logits has 9 rows with NaN or inf"),
    ],
)
def test_invalid_features_and_logits_are_rejected(change, reason):
    features, logits, labels = examples(9, 0)
    with pytest.raises(QIPFInputError, match=reason):
        FeatureQIPF().fit(*TRAIN, held_out=(*change(features, logits), labels))
    if "lacks 'deep'" not in reason:  # a layer that is not used may be missing
        with pytest.raises(QIPFInputError, match=reason):
            FeatureQIPF().fit(*change(features, logits), labels)


def test_scoring_rejects_other_widths_and_missing_layers(model):
    features, logits, _ = FRESH
    used = model.layers_[0].layer
    with pytest.raises(QIPFInputError, match=f"features lacks '{used}'"):
        model.uncertainty({name: v for name, v in features.items() if name != used}, logits)
    with pytest.raises(QIPFInputError, match="its field was fitted with"):
        model.uncertainty({name: v[:, :2] for name, v in features.items()}, logits)
    with pytest.raises(QIPFInputError, match="its field was fitted with"):
        model.uncertainty(features, logits[:, :3])
    with pytest.raises(QIPFInputError, match="needs at least one"):
        model.calibrate({name: v[:0] for name, v in features.items()}, logits[:0])
    more = {**features, "unused": np.ones((30, 1))}
    np.testing.assert_array_equal(
        model.uncertainty(more, logits), model.uncertainty(features, logits)
    )


def test_invalid_use_is_rejected():
    features, logits, labels = TRAIN
    with pytest.raises(QIPFNotFittedError, match=r"Call fit\(features, logits, labels\) first"):
        FeatureQIPF().uncertainty(features, logits)
    with pytest.raises(QIPFInputError, match="max_tuning"):
        FeatureQIPF(max_tuning=0).fit(features, logits, labels)
    with pytest.raises(QIPFInputError, match="labels must hold classes 0..3"):
        FeatureQIPF().fit(features, logits, labels + 1)
    with pytest.raises(QIPFInputError, match="needs at least a few dozen"):
        FeatureQIPF().fit({"a": np.ones((1, 2))}, np.ones((1, 3)), [0])
    with pytest.raises(QIPFInputError, match="have .* numbers per prediction"):
        FeatureQIPF().fit(
            *TRAIN,
            held_out=(
                {"early": np.ones((4, 3)), "deep": np.ones((4, 4))},
                np.ones((4, 4)),
                [0] * 4,
            ),
        )


def test_probabilities_are_taken_as_such():
    """Their logarithms are used, whose softmax they are."""
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).double() * 3
    p = torch.softmax(logits, 1)
    p[p < 0.05] = 0
    p = p / p.sum(1, keepdim=True)
    found = checked_predictions({"x": logits}, p).logits.softmax(1)
    torch.testing.assert_close(found, p, atol=4e-3, rtol=0)
