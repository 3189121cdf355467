"""One contract: every verb, on all three classes."""

import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import (
    QIPF,
    Calibration,
    LayeredQIPF,
    Prediction,
    QIPFInputError,
    QIPFNotFittedError,
    ShiftMonitor,
    accept_rule,
)
from qipf.calibration.quantization import rounded

CLASSES = 3

#: At this error rate rules of all three classes accept some predictions and reject others.
RISK = 0.2


def rows(count, seed):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).eval()


NET = network()


def labelled(count, seed):
    """Inputs, and labels that the network misses more often the less its class leads."""
    inputs = rows(count, seed)
    with torch.no_grad():
        top = NET(inputs).topk(2, 1)
    lead = top.values[:, 0] - top.values[:, 1]
    swap = torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.5 * torch.exp(
        -4 * lead
    )
    return inputs, torch.where(swap, top.indices[:, 1], top.indices[:, 0])


class Kind:
    """One class behind the same few functions: what it is fitted, called and calibrated with."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    def unfitted(self, **parameters):
        if self.name == "QIPF":
            return QIPF(**parameters)
        if self.name == "wrap":
            return qipf.wrap(NET, **parameters)
        return LayeredQIPF(NET, **parameters)

    def data(self, count, seed):
        inputs, labels = labelled(count, seed)
        if self.name == "QIPF":
            with torch.no_grad():
                return NET(inputs), labels
        return ([(inputs[i : i + 64], labels[i : i + 64]) for i in range(0, count, 64)],)

    def batch(self, count, seed):
        with torch.no_grad():
            return NET(rows(count, seed)) if self.name == "QIPF" else rows(count, seed)

    def load(self, path):
        return qipf.load(path) if self.name == "QIPF" else qipf.load(path, NET)


KINDS = [Kind("QIPF"), Kind("wrap"), Kind("LayeredQIPF")]
_fitted = {}


@pytest.fixture(params=KINDS, ids=repr)
def kind(request):
    return request.param


def calibrated(kind):
    """A fitted and calibrated model, copied so that tests may change it."""
    if kind.name not in _fitted:
        model = kind.unfitted().fit(*kind.data(400, 0))
        _fitted[kind.name] = pickle.dumps(model.calibrate(*kind.data(1200, 1)))
    return pickle.loads(_fitted[kind.name])


def test_uncertainty_is_one_finite_number_per_prediction(kind):
    model, batch = calibrated(kind), kind.batch(20, 2)
    uncertainty = model.uncertainty(batch)
    assert uncertainty.shape == (20,)
    assert torch.isfinite(uncertainty).all()
    torch.testing.assert_close(uncertainty[:5], model.uncertainty(batch[:5]), rtol=1e-5, atol=1e-6)


def test_uncertainty_detects_errors(kind):
    detection = calibrated(kind).detection_
    assert detection.count == 1200
    assert 0 < detection.errors < 600
    assert detection.entropy > 0.6
    assert detection.uncertainty > 0.5


def test_p_values_are_shares_of_the_calibration_set(kind):
    model, batch = calibrated(kind), kind.batch(50, 3)
    held_out = rounded(model.calibration_.scores)
    scores = rounded(model.uncertainty(batch).double().numpy())
    expected = [(1 + (held_out >= score).sum()) / 1201 for score in scores]
    np.testing.assert_allclose(model.p_values(batch).numpy(), expected)


def test_p_values_of_the_novelty_are_shares_of_the_calibration_set(kind):
    model, batch = calibrated(kind), kind.batch(50, 3)
    held_out = rounded(model.calibration_.novelty)
    scores = rounded(model.novelty(batch).double().numpy())
    expected = [(1 + (held_out >= score).sum()) / 1201 for score in scores]
    found = model.novelty_p_values(batch)
    np.testing.assert_allclose(found.numpy(), expected)
    assert torch.equal(found, model(batch).novelty_p_value)
    model.calibration_ = Calibration(model.calibration_.scores)
    assert model(batch).novelty_p_value is None
    with pytest.raises(QIPFInputError, match="no novelties"):
        model.novelty_p_values(batch)
    with pytest.raises(QIPFInputError, match="calibrated without labels"):
        model.accept_rule(min_novelty_p=0.01)


def test_a_rule_may_look_at_the_novelty_too(kind, tmp_path):
    model, batch = calibrated(kind), kind.batch(200, 4)
    held_out = model.calibration_
    rule = model.accept_rule(max_risk=RISK, min_novelty_p=0.2)
    assert rule == accept_rule(
        held_out.scores, held_out.wrong, RISK, novelty=held_out.novelty, min_novelty_p=0.2,
        origin=held_out.origin,
    )  # fmt: skip
    uncertainty, novelty = model.both_scores(batch)
    expected = (uncertainty <= rule.threshold) & (novelty <= rule.max_novelty)
    assert 0 < expected.sum() < (uncertainty <= rule.threshold).sum()
    assert torch.equal(model.accepts(batch), expected)
    assert torch.equal(model(batch).accepted, expected)
    model.save(tmp_path / "model.qipf")
    assert kind.load(tmp_path / "model.qipf").rule_ == rule
    graph = model.graph()[1] if kind.name == "QIPF" else model.export(batch).module()
    assert torch.equal(graph(batch)["accepted"], expected)
    monitor = ShiftMonitor(model, score="uncertainty")
    assert monitor.update(batch).abstained == 200 - int(expected.sum())
    with pytest.raises(QIPFInputError, match="monitor's rule needs the novelty"):
        monitor.update_scores(uncertainty)
    model.calibration_ = Calibration(held_out.scores, held_out.wrong)
    with pytest.raises(QIPFInputError, match="no novelties"):
        model.accept_rule(min_novelty_p=0.2)


def test_the_mixture_is_a_classifier_of_models_with_layers(kind):
    prediction = calibrated(kind)(kind.batch(30, 5))
    if kind.name != "LayeredQIPF":
        assert prediction.mixture_class is None
        return
    assert torch.equal(prediction.mixture_class, prediction.probabilities.argmax(1))
    torch.testing.assert_close(prediction.probabilities.sum(1), torch.ones(30).double())


def test_a_method_and_the_free_function_make_the_same_rule(kind):
    model = calibrated(kind)
    held_out = model.calibration_
    for options in ({"max_risk": 0.1}, {"min_coverage": 0.8}, {"max_risk": 1e-4}):
        rule = model.accept_rule(**options)
        assert rule == accept_rule(held_out.scores, held_out.wrong, **options)
        assert rule is model.rule_


def test_the_rule_does_not_depend_on_the_order_of_tied_rows():
    random = np.random.default_rng(0)
    for _ in range(20):
        scores = random.random(1500).round(2)
        wrong = random.random(1500) < scores**3 / 3
        held_out, order = Calibration(scores, wrong), random.permutation(1500)
        rule = accept_rule(scores, wrong, max_risk=0.05)
        assert accept_rule(scores[order], wrong[order], max_risk=0.05) == rule
        assert accept_rule(held_out.scores, held_out.wrong, max_risk=0.05) == rule


def test_accepts_is_the_rule_on_the_uncertainty(kind):
    model, batch = calibrated(kind), kind.batch(200, 4)
    rule = model.accept_rule(max_risk=RISK)
    assert rule.certified
    accepted = model.accepts(batch)
    assert accepted.dtype == torch.bool
    assert torch.equal(accepted, model.uncertainty(batch) <= rule.threshold)
    assert 0 < int(accepted.sum()) < 200


def test_novelty_is_finite_and_of_every_prediction(kind):
    model, batch = calibrated(kind), kind.batch(30, 5)
    novelty = model.novelty(batch)
    assert novelty.shape == model.uncertainty(batch).shape
    assert torch.isfinite(novelty).all()


def prediction_scores(prediction):
    return prediction.uncertainty, prediction.novelty


def test_a_prediction_has_all_parts(kind):
    model, batch = calibrated(kind), kind.batch(30, 5)
    prediction = model(batch)
    assert isinstance(prediction, Prediction)
    assert prediction.accepted is None  # no rule yet
    model.accept_rule(max_risk=RISK)
    prediction = model(batch)
    assert torch.equal(prediction.predicted, prediction.logits.argmax(1))
    assert torch.equal(prediction.uncertainty, model.uncertainty(batch))
    assert torch.equal(prediction.p_value, model.p_values(batch))
    assert torch.equal(prediction.accepted, model.accepts(batch))
    layered = kind.name == "LayeredQIPF"
    assert (prediction.probabilities is not None) == layered
    assert (prediction.p_error is not None) == layered
    assert torch.equal(prediction.novelty, model.novelty(batch))
    for found, alone in zip(model.both_scores(batch), prediction_scores(prediction), strict=True):
        assert torch.equal(found, alone)
    assert [field.name for field in fields(prediction)][:5] == [
        "logits", "predicted", "uncertainty", "p_value", "accepted",
    ]  # fmt: skip


def test_before_calibration_a_prediction_has_neither_p_value_nor_decision(kind):
    model = kind.unfitted().fit(*kind.data(120, 0))
    prediction = model(kind.batch(3, 1))
    assert (prediction.p_value, prediction.accepted) == (None, None)
    for use in (lambda: model.p_values(kind.batch(3, 1)), lambda: ShiftMonitor(model)):
        with pytest.raises(QIPFNotFittedError, match="not calibrated"):
            use()
    with pytest.raises(QIPFNotFittedError, match="no accept rule"):
        model.accepts(kind.batch(3, 1))


def test_without_labels_there_are_p_values_but_no_rule(kind):
    model = calibrated(kind)
    data = kind.data(100, 6)
    unlabelled = data[:1] if kind.name == "QIPF" else ([inputs for inputs, _ in data[0]],)
    model.calibrate(*unlabelled)
    assert model.p_values(kind.batch(4, 7)).shape == (4,)
    with pytest.raises(QIPFInputError, match="without labels"):
        model.accept_rule()


def test_fitting_and_calibrating_again_drop_the_rule(kind):
    model = calibrated(kind)
    model.accept_rule(max_risk=RISK)
    model.calibrate(*kind.data(200, 8))
    assert model.rule_ is None
    assert len(model.calibration_) == 200
    model.fit(*kind.data(120, 0))
    assert (model.calibration_, model.rule_) == (None, None)
    assert "calibration set" not in str(model.detection_)


@pytest.mark.parametrize("verb", ["uncertainty", "p_values", "accepts", "__call__"])
def test_verbs_need_a_fitted_model(kind, verb):
    with pytest.raises(QIPFNotFittedError, match="not fitted yet"):
        getattr(kind.unfitted(), verb)(kind.batch(3, 0))


def test_the_other_verbs_need_a_fitted_model_too(kind, tmp_path):
    model = kind.unfitted()
    for use in (
        model.summary,
        model.accept_rule,
        lambda: model.save(tmp_path / "model.qipf"),
        lambda: model.calibrate(*kind.data(64, 0)),
        lambda: model.export_onnx(tmp_path / "model.onnx"),
    ):
        with pytest.raises(QIPFNotFittedError, match="not fitted yet"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_reading_attributes_fits_nothing(kind):
    model = kind.unfitted()
    for name in ("centers_", "weights_", "offset_", "fields_"):
        assert not hasattr(model, name)
    if kind.name == "QIPF":
        model.partial_fit(*kind.data(50, 0))
        assert not hasattr(model, "centers_")
        assert hasattr(model.build(), "centers_")


@pytest.mark.parametrize(
    ("name", "parameters", "phrase"),
    [
        ("QIPF", {"max_centers": 0}, "max_centers"),
        ("QIPF", {"reduction": "cluster"}, "reduction"),
        ("wrap", {"pooling": "max"}, "pooling"),
        ("wrap", {"layer": "nowhere"}, "no layer"),
        ("wrap", {"field": 3}, "field must be a QIPF"),
        ("LayeredQIPF", {"max_centers": 0}, "max_centers"),
        ("LayeredQIPF", {"reduction": "cluster"}, "reduction"),
        ("LayeredQIPF", {"layers": ["nowhere"]}, "no layer"),
        ("LayeredQIPF", {"random_state": -1}, "random_state"),
    ],
)
def test_parameters_are_checked_in_fit(name, parameters, phrase):
    kind = Kind(name)
    model = kind.unfitted(**parameters)
    with pytest.raises(QIPFInputError, match=phrase):
        model.fit(*kind.data(60, 0))


@pytest.mark.parametrize("make", [qipf.wrap, LayeredQIPF])
def test_a_network_must_be_a_module(make):
    with pytest.raises(QIPFInputError, match=r"torch\.nn\.Module"):
        make("lenet").fit([rows(30, 0)])


def test_the_default_reduction_is_the_same():
    assert QIPF().reduction == LayeredQIPF(NET).reduction == "auto"


def test_the_summary_says_what_the_model_knows(kind):
    model = calibrated(kind)
    model.accept_rule(max_risk=RISK)
    text = model.summary()
    assert "1,200 held-out predictions" in text
    assert f"ROC-AUC {model.detection_.uncertainty:.3f}" in text
    assert f"entropy {model.detection_.entropy:.3f}" in text
    assert str(model.rule_).splitlines()[0] in text


def test_a_file_keeps_scores_decisions_and_summary(kind, tmp_path):
    model, batch = calibrated(kind), kind.batch(40, 9)
    model.accept_rule(max_risk=RISK)
    model.save(tmp_path / "one.qipf")
    qipf.save(model, tmp_path / "two.qipf")
    assert (tmp_path / "one.qipf").read_bytes() == (tmp_path / "two.qipf").read_bytes()
    again = kind.load(tmp_path / "one.qipf")
    assert type(again) is type(model)
    assert torch.equal(again.uncertainty(batch), model.uncertainty(batch))
    assert torch.equal(again.p_values(batch), model.p_values(batch))
    assert torch.equal(again.accepts(batch), model.accepts(batch))
    assert (again.rule_, again.detection_) == (model.rule_, model.detection_)
    assert again.summary() == model.summary()
    assert again.digest() == model.digest()


def test_the_digest_changes_with_scores_and_calibration_but_not_with_the_rule(kind):
    model = calibrated(kind)
    before = model.digest()
    model.accept_rule(max_risk=RISK)
    assert model.digest() == before
    if kind.name == "QIPF":
        assert model.set_params(device="cpu").digest() == before
    model.calibrate(*kind.data(100, 3))
    assert model.digest() != before


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_operators")
def test_onnx_files_decide_as_the_model_does(kind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, batch = calibrated(kind), kind.batch(60, 10)
    rule = model.accept_rule(max_risk=RISK)
    path = model.export_onnx(tmp_path / "model.onnx").path
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = [each.name for each in session.get_inputs()]
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, {name: batch.numpy()}), strict=True))
    expected = model.uncertainty(batch).double().numpy()
    np.testing.assert_allclose(found["uncertainty"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found["accepted"], found["uncertainty"] <= rule.threshold)
    with pytest.raises(QIPFInputError, match="AcceptRule"):
        model.export_onnx(tmp_path / "other.onnx", rule=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_rule_that_is_given_decides_in_an_onnx_file(kind, own, tmp_path, monkeypatch):
    """In the program that is converted: the conversion takes seconds."""
    programs = []
    monkeypatch.setattr("qipf.export.onnx.converted", lambda *a: programs.append(a[0]) or b"")
    model, batch = calibrated(kind), kind.batch(60, 10)
    given = model.accept_rule(max_risk=RISK)
    if own:
        assert model.accept_rule(max_risk=2 * RISK).threshold != given.threshold
    else:
        model.calibrate(*kind.data(100, 3))  # which drops the model's own rule
    model.export_onnx(tmp_path / "model.onnx", rule=given, check=False)
    found = programs[0].module()(batch)
    assert torch.equal(found["accepted"], found["uncertainty"] <= given.threshold)
    assert found["accepted"].any()
    assert not found["accepted"].all()


def test_a_monitor_watches_any_model(kind):
    model = calibrated(kind)
    monitor, default = ShiftMonitor(model, score="novelty"), ShiftMonitor(model)
    usual, shifted = kind.batch(300, 11), 4 * kind.batch(300, 12)
    assert not monitor.update(usual).alarm
    assert default.score == "both"
    assert not default.update(usual).alarm
    assert default.update(shifted).alarm
    twin = ShiftMonitor(Calibration(model.calibration_.novelty))
    assert not twin.update_scores(model.novelty(usual)).alarm
    assert monitor.update(shifted).log_evidence == pytest.approx(
        twin.update_scores(model.novelty(shifted)).log_evidence
    )


def test_a_monitor_watches_the_uncertainty_if_told_to(kind):
    model = calibrated(kind)
    held_out, usual = model.calibration_, kind.batch(300, 11)
    monitor = ShiftMonitor(model, score="uncertainty")
    twin = ShiftMonitor(Calibration(held_out.scores, held_out.wrong, held_out.origin))
    found, expected = monitor.update(usual), twin.update_scores(model.uncertainty(usual))
    assert found.log_evidence == pytest.approx(expected.log_evidence)
    # accuracy and abstentions are by the uncertainty, whatever is tested
    assert ShiftMonitor(model).update(usual).accuracy == found.accuracy == expected.accuracy


def test_a_monitor_of_a_model_that_was_calibrated_again_raises(kind):
    model = calibrated(kind)
    monitor = ShiftMonitor(model)
    model.calibrate(*kind.data(100, 3))
    with pytest.raises(QIPFInputError, match="Make a new monitor"):
        monitor.update(kind.batch(10, 11))


def test_the_representation_says_what_a_model_is():
    kind = KINDS[2]
    assert repr(kind.unfitted()) == "LayeredQIPF(Sequential, not fitted)"
    assert "calibrated on 1,200 predictions" in repr(calibrated(kind))


def test_a_state_file_of_a_monitor_belongs_to_its_model(kind, tmp_path):
    model = calibrated(kind)
    monitor = ShiftMonitor(model)
    monitor.update(kind.batch(100, 11))
    monitor.save(tmp_path / "state.qipf")
    again = ShiftMonitor.load(tmp_path / "state.qipf", model)
    assert again.seen == 100
    with pytest.raises(qipf.QIPFFileError, match="another"):
        ShiftMonitor.load(tmp_path / "state.qipf", model.calibrate(*kind.data(100, 3)))


def test_accuracy_is_estimated_for_any_model(kind):
    model = calibrated(kind)
    found = qipf.estimate_accuracy(model.uncertainty(kind.batch(500, 13)), model)
    truth = 1 - model.detection_.errors / model.detection_.count
    assert found.low - 0.05 <= truth <= found.high + 0.05
