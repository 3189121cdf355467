"""Classifiers of tables: margins of boosted trees, every verb of docs/classifiers.md."""

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

import qipf

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("onnx_operators")]
xgboost = pytest.importorskip("xgboost")


def margins(load):
    """Margins and labels that the trees were not trained on: to fit, to calibrate and to test."""
    inputs, labels = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    inputs, labels = inputs[order], labels[order]
    first, second, third = (np.array([2, 5, 7]) * len(labels)) // 8
    trees = xgboost.XGBClassifier(n_estimators=10, max_depth=2, n_jobs=1, random_state=0)
    trees.fit(inputs[:first], labels[:first])
    found = trees.predict(inputs, output_margin=True)
    found = found if found.ndim == 2 else found[:, None]  # two classes have one margin
    parts = (slice(first, second), slice(second, third), slice(third, None))
    return [(found[part], labels[part]) for part in parts]


@pytest.mark.parametrize("load", [load_digits, load_breast_cancer], ids=["digits", "two classes"])
@pytest.mark.filterwarnings("ignore::qipf.QIPFScoreWarning")
def test_every_verb(load, tmp_path):
    train, held_out, (test, _) = margins(load)
    field = qipf.QIPF(orders=(1, 2), max_centers=200).fit(*train)
    field.calibrate(*held_out)
    assert field.detection_.uncertainty >= field.detection_.entropy - 0.05
    assert field.score_ == ("modes" if load is load_digits else "entropy")
    uncertainty = field.uncertainty(test)
    classes = test.argmax(1) if load is load_digits else test[:, 0] > 0
    np.testing.assert_array_equal(field(test).predicted, classes)
    rule = field.accept_rule(max_risk=0.2)
    assert qipf.ShiftMonitor(field).update(test).seen == len(test)
    field.save(tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    np.testing.assert_array_equal(loaded.uncertainty(test), uncertainty)
    np.testing.assert_array_equal(loaded.p_values(test), field.p_values(test))
    path = field.export_onnx(tmp_path / "field.onnx", check=False).path
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [part.name for part in session.get_outputs()]
    feeds = {session.get_inputs()[0].name: test.astype(np.float32)}
    found = dict(zip(names, session.run(None, feeds), strict=True))
    np.testing.assert_allclose(found["uncertainty"], uncertainty, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(found["accepted"], found["uncertainty"] <= rule.threshold)
