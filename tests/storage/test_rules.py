"""Calibrations and accept rules in files, and the files of every format version."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qipf
from qipf import QIPF, AcceptRule, QIPFFileError, QIPFInputError, accept_rule
from qipf.io.container import encode
from qipf.storage.save_load import describe, load_field
from tests.conftest import make_logits
from tests.storage.forged_files import Forge, changed, saved
from tests.stored.write_files import calibrated, network

STORED = Path(__file__).parents[1] / "stored"
QUERIES = make_logits(50, seed=5).numpy()


@pytest.fixture(scope="module")
def field():
    return calibrated()


@pytest.fixture(scope="module")
def valid(field, tmp_path_factory):
    return saved(field, tmp_path_factory)


@pytest.fixture(scope="module")
def valid_rule(field, tmp_path_factory):
    return saved(field.rule_, tmp_path_factory)


def test_a_calibration_and_a_rule_come_back_exactly(tmp_path, field):
    qipf.save(field, tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    np.testing.assert_array_equal(loaded.calibration_.scores, field.calibration_.scores)
    np.testing.assert_array_equal(loaded.calibration_.wrong, field.calibration_.wrong)
    assert loaded.calibration_.digest == field.calibration_.digest
    assert loaded.rule_ == field.rule_
    np.testing.assert_array_equal(loaded.p_values(QUERIES), field.p_values(QUERIES))
    np.testing.assert_array_equal(loaded.accepts(QUERIES), field.accepts(QUERIES))
    assert loaded.accept_rule(0.2, 0.9) == field.rule_
    qipf.save(loaded, tmp_path / "again.qipf")
    assert (tmp_path / "again.qipf").read_bytes() == (tmp_path / "field.qipf").read_bytes()


def test_a_calibration_without_errors_comes_back(tmp_path):
    field = QIPF(bandwidth=3.0).fit(make_logits(50).numpy()).calibrate(QUERIES)
    qipf.save(field, tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    assert loaded.calibration_.wrong is None
    assert loaded.rule_ is None
    np.testing.assert_array_equal(loaded.calibration_.scores, field.calibration_.scores)


@pytest.mark.parametrize(
    "rule",
    [
        accept_rule(np.linspace(0, 1, 400), np.arange(400) % 90 == 5, max_risk=0.05),
        accept_rule(np.linspace(0, 1, 400), np.arange(400) % 9 == 5, min_coverage=0.3),
        accept_rule(np.linspace(0, 1, 10), np.arange(10) == 5, min_coverage=0.999),
        accept_rule(np.linspace(0, 1, 10), np.arange(10) == 5),
    ],
    ids=["risk", "coverage", "everything", "nothing"],
)
def test_a_rule_alone_comes_back_exactly(tmp_path, rule):
    qipf.save(rule, tmp_path / "rule.qipf")
    loaded = qipf.load(tmp_path / "rule.qipf")
    assert type(loaded) is AcceptRule
    assert loaded == rule
    assert str(loaded) == str(rule)
    values = np.array([-1.0, 0.2, 0.9, 1.1])
    np.testing.assert_array_equal(loaded(values), rule(values))


def test_a_wrapped_model_keeps_its_rule(tmp_path):
    net = network()
    inputs = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
    model = qipf.wrap(net, field=QIPF(bandwidth=1.0)).fit([inputs[:100]])
    held_out = inputs[100:]
    model.calibrate([(held_out, model(held_out).predicted)]).field.accept_rule(max_risk=0.05)
    qipf.save(model, tmp_path / "model.qipf")
    loaded = qipf.load(tmp_path / "model.qipf", net)
    assert torch.equal(loaded(inputs).accepted, model(inputs).accepted)
    assert loaded.field.rule_ == model.field.rule_


def test_a_rule_has_no_network_and_no_field(tmp_path, field):
    path = tmp_path / "rule.qipf"
    qipf.save(field.rule_, path)
    with pytest.raises(QIPFInputError, match=re.escape(f"{path} holds a rule alone, without a")):
        qipf.load(path, nn.Linear(2, 2))
    with pytest.raises(QIPFFileError) as refused:
        load_field(path)
    assert str(refused.value) == f"{path} holds an accept rule, not a field."


def test_describe_tells_of_calibration_and_rule(tmp_path, field):
    qipf.save(field, tmp_path / "field.qipf")
    told = describe(tmp_path / "field.qipf")
    scores = field.calibration_.scores
    assert told["calibration"] == {
        "count": 280,
        "errors": int(field.calibration_.wrong.sum()),
        "median": float(np.median(scores)),
        "max": float(scores[-1]),
    }
    assert told["rule"]["threshold"] == field.rule_.threshold
    assert json.loads(json.dumps(told)) == told
    qipf.save(replace(field.rule_), tmp_path / "rule.qipf")
    alone = describe(tmp_path / "rule.qipf")
    assert (alone["kind"], alone["rule"]) == ("rule", told["rule"])
    assert describe(STORED / "field-v3.qipf")["calibration"] is None


# ---------------------------------------------------------------------- every version


@pytest.mark.parametrize("path", sorted(STORED.glob("*.npz")), ids=lambda path: path.stem)
def test_fields_of_every_format_version_stay_loadable(path):
    field = load_field(path.with_suffix(".qipf"))
    with np.load(path) as expected:
        found = field.uncertainty(expected["queries"])
        np.testing.assert_allclose(found, expected["uncertainty"], rtol=1e-4)
        if "accepted" in expected:
            np.testing.assert_array_equal(field.accepts(expected["queries"]), expected["accepted"])
            np.testing.assert_allclose(
                field.p_values(expected["queries"]), expected["p_values"], atol=1e-9
            )


def test_every_kind_of_every_version_has_its_file():
    names = {path.stem for path in STORED.glob("*.qipf")}
    kinds = ("field", "weighted", "model", "calibrated", "rule", "layers")
    assert names == {*(f"{kind}-v3" for kind in kinds), "condensed-v3", "monitor-v1"}
    assert load_field(STORED / "weighted-v3.qipf").log_weights_ is not None
    model = qipf.load(STORED / "model-v3.qipf", network())
    assert model(torch.zeros(1, 4)).accepted is None
    rule = qipf.load(STORED / "rule-v3.qipf")
    assert rule == load_field(STORED / "calibrated-v3.qipf").rule_


# ---------------------------------------------------------------------- lies


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("rule",), [], "its accept rule is [], not ['accepted', "),
        (("rule", "threshold"), "0", "An accept rule's threshold must be a number, got '0'."),
        (("rule", "threshold"), None, "threshold must be finite, or -inf where nothing is acc"),
        (("rule", "threshold"), 3, "An accept rule's threshold must be a number, got 3."),
        (("rule", "accepted"), 10**6, "errors must not exceed accepted, nor that held_out"),
        (("rule", "accepted"), 0.5, "An accept rule's accepted must be an integer, got 0.5."),
        (("rule", "confidence"), 7.0, "confidence must be a number above 0, up to 1, got 7.0."),
        (("rule", "min_coverage"), 0.5, "max_risk or min_coverage must be given, not both"),
        (("kind",), "rule", "its header is ["),
    ],
)
def test_a_header_that_lies_about_its_rule_is_refused(tmp_path, valid, keys, value, reason):
    path = tmp_path / "forged.qipf"
    path.write_bytes(changed(valid, *keys, value=value))
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: ")) as refused:
        qipf.load(path)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("rule",), None, "its accept rule is None, not ['accepted', "),
        (("rule", "errors"), -1, "errors must not exceed accepted, nor that held_out, got -1."),
        (("kind",), "field", "its header is ['format_version', 'kind', 'library_version', 'rule']"),
        (("format_version",), 1, "its kind is 'rule'"),
        (("library_version",), None, "its library_version is None"),
    ],
)
def test_a_rule_alone_that_lies_is_refused(tmp_path, valid_rule, keys, value, reason):
    path = tmp_path / "forged.qipf"
    path.write_bytes(changed(valid_rule, *keys, value=value))
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: ")) as refused:
        qipf.load(path)
    assert reason in str(refused.value)


def unsorted(forge):
    forge.array("calibration")[0] = 1e9


def nan_scores(forge):
    forge.array("calibration")[-1] = np.nan


def half_wrong(forge):
    forge.array("calibration_wrong")[3] = 0.5


def scores_of_two_dimensions(forge):
    forge.entries["calibration"]["shape"] = [140, 2]


def fewer_errors(forge):
    forge.entries["calibration_wrong"]["shape"] = [140, 2]


def narrow_scores(forge):
    forge.entries["calibration"].update(dtype="F32", shape=[560])


def errors_without_scores(forge):
    begin, end = forge.entries.pop("calibration")["data_offsets"]
    del forge.body[begin:end]
    for entry in forge.entries.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [place - (end - begin) for place in entry["data_offsets"]]


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (unsorted, "its held-out scores are not finite and rising"),
        (nan_scores, "its held-out scores are not finite and rising"),
        (half_wrong, "its held-out errors are not all 0 or 1"),
        (scores_of_two_dimensions, "its held-out scores are float64 of shape (140, 2)"),
        (fewer_errors, "its held-out errors are float32 of shape (140, 2)"),
        (narrow_scores, "its held-out scores are float32 of shape (560,)"),
        (errors_without_scores, "it knows errors of held-out predictions, but not their scores"),
    ],
)
def test_held_out_predictions_that_lie_are_refused(tmp_path, valid, lie, reason):
    forge = Forge(valid)
    lie(forge)
    path = tmp_path / "forged.qipf"
    path.write_bytes(forge.data())
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: {reason}")):
        qipf.load(path)


def test_a_rule_with_arrays_is_refused(tmp_path, valid_rule):
    forge = Forge(valid_rule)
    forge.entries["centers"] = {"dtype": "F64", "shape": [1, 1], "data_offsets": [0, 8]}
    forge.body += bytes(8)
    path = tmp_path / "forged.qipf"
    path.write_bytes(forge.data())
    with pytest.raises(QIPFFileError, match=re.escape("its arrays are ['centers']")):
        qipf.load(path)


@pytest.mark.parametrize("kind", ["rule", "layers"])
def test_kinds_that_version_1_did_not_have_are_refused_in_it(kind, tmp_path):
    path = tmp_path / "old.qipf"
    path.write_bytes(encode({"format_version": 1, "library_version": "x", "kind": kind}, {}))
    with pytest.raises(QIPFFileError, match=f"cannot be used: its kind is {kind!r}"):
        qipf.load(path)
