"""Classifiers with many classes, and trees: every verb of the table in docs/classifiers.md."""

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import OneHotEncoder

import qipf

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("onnx_operators")]


def clusters(classes, count, seed):
    """Features of independent classes, and logits that see only half of the dimensions."""
    means = np.random.default_rng(0).normal(size=(classes, 24))
    random = np.random.default_rng(seed)
    labels = random.permutation(count) % classes  # every class
    features = means[labels] + 0.6 * random.normal(size=(count, 24))
    logits = features[:, :12] @ means[:, :12].T - np.square(means[:, :12]).sum(1) / 2
    return {"features": features}, logits / 0.6**2, labels


def trees():
    """Leaves of a forest as features, logarithms of its probabilities as logits."""
    inputs, labels = load_digits(return_X_y=True)
    forest = RandomForestClassifier(20, max_leaf_nodes=40, random_state=0)
    forest.fit(inputs[:600], labels[:600])
    leaves = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    leaves.fit(forest.apply(inputs[:600]))
    return [
        (
            {"leaves": leaves.transform(forest.apply(inputs[part]))},
            np.log(forest.predict_proba(inputs[part]) + 0.01),
            labels[part],
        )
        for part in (slice(600, 1000), slice(1000, 1400), slice(1400, None))
    ]


def data(kind):
    if kind == "trees":
        return trees()
    return [clusters(kind, max(600, 2 * kind), 1), clusters(kind, 300, 2), clusters(kind, 60, 3)]


@pytest.mark.parametrize("kind", [100, 1000, "trees"])
def test_every_verb(kind, tmp_path):
    train, held_out, (features, logits, _) = data(kind)
    tuning = None if kind == "trees" else clusters(kind, 100, 4)  # all examples are centres
    model = qipf.FeatureQIPF().fit(*train, held_out=tuning).calibrate(*held_out)
    assert model.detection_.uncertainty >= model.detection_.entropy - 0.02
    if kind != "trees":
        assert len(model.layers_) == 1  # the features tell what the logits do not see
        assert model.detection_.uncertainty > model.detection_.entropy
        assert model.fields_[0].classes == kind
    prediction = model(features, logits)
    np.testing.assert_array_equal(prediction.predicted, logits.argmax(1))
    assert np.isfinite(prediction.uncertainty).all()
    assert ((prediction.p_value > 0) & (prediction.p_value <= 1)).all()
    assert qipf.ShiftMonitor(model).update(features, logits).seen == len(logits)
    model.save(tmp_path / "model.qipf")
    loaded = qipf.load(tmp_path / "model.qipf")
    np.testing.assert_array_equal(loaded.uncertainty(features, logits), prediction.uncertainty)
    few = {name: value[:7] for name, value in features.items()}
    path = model.export_onnx(tmp_path / "model.onnx", (few, logits[:7]), check=False).path
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {"logits": logits, **{site.layer: features[site.layer] for site in model.layers_}}
    found = session.run(["uncertainty"], feeds)[0]
    np.testing.assert_allclose(found, prediction.uncertainty, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("classes", [100, 1000])
def test_a_field_of_many_logits_falls_back_or_warns(classes):
    _, logits, labels = clusters(classes, 2 * classes if classes > 500 else 400, 1)
    with pytest.warns(qipf.QIPFScoreWarning):
        field = qipf.QIPF(orders=(1,), max_centers=200).fit(logits, labels)
    assert field.score_ == "entropy" or field.detection_.uncertainty < field.detection_.entropy
