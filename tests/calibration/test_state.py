"""Calibration sets and rules in files: exact round trips, and the rejection of invalid ones."""

import re

import numpy as np
import pytest

import qipf
from qipf import QIPF, AcceptRule, QIPFFileError, accept_rule
from tests.conftest import make_logits
from tests.storage.forged_files import Forge, changed, saved
from tests.stored.write_files import calibrated

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
    np.testing.assert_array_equal(loaded.calibration_.novelty, field.calibration_.novelty)
    assert loaded.calibration_.digest == field.calibration_.digest
    assert (loaded.rule_, loaded.detection_) == (field.rule_, field.detection_)
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
    counts = np.bincount(QUERIES.argmax(1), minlength=QUERIES.shape[1])
    np.testing.assert_array_equal(loaded.calibration_.class_counts, counts)


@pytest.mark.parametrize("count", [-1.0, np.nan, np.inf])
def test_counts_of_classes_that_cannot_be(tmp_path, count):
    field = QIPF(bandwidth=3.0).fit(make_logits(50).numpy()).calibrate(QUERIES)
    path = tmp_path / "field.qipf"
    qipf.save(field, path)
    forge = Forge(path.read_bytes())
    forge.array("calibration_class_counts")[0] = count
    path.write_bytes(forge.data())
    with pytest.raises(QIPFFileError, match="its held-out counts of classes are"):
        qipf.load(path)


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


# ---------------------------------------------------------------------- invalid files


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
        (("detection",), {}, "its detection is []"),
        (("detection", "count"), 280.0, "errors of 280.0"),
        (("detection", "errors"), 0, "its detection counts 0 errors of 280"),
        (("detection", "uncertainty"), None, "its ROC-AUC of uncertainty is None"),
        (("detection", "entropy"), 1.5, "its ROC-AUC of entropy is 1.5"),
    ],
)
def test_invalid_decisions_are_rejected(tmp_path, valid, keys, value, reason):
    path = tmp_path / "forged.qipf"
    path.write_bytes(changed(valid, *keys, value=value))
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: ")) as rejected:
        qipf.load(path)
    assert reason in str(rejected.value)


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("rule",), None, "its accept rule is None, not ['accepted', "),
        (("rule", "errors"), -1, "errors must not exceed accepted, nor that held_out, got -1."),
        (("kind",), "field", "its header is ['format_version', 'kind', 'library_version', 'rule']"),
    ],
)
def test_invalid_rules_are_rejected(tmp_path, valid_rule, keys, value, reason):
    path = tmp_path / "forged.qipf"
    path.write_bytes(changed(valid_rule, *keys, value=value))
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: ")) as rejected:
        qipf.load(path)
    assert reason in str(rejected.value)


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


def nan_novelty(forge):
    forge.array("calibration_novelty")[0] = np.nan


def narrow_novelties(forge):
    forge.entries["calibration_novelty"].update(dtype="F32", shape=[560])


def errors_without_scores(forge):
    begin, end = forge.entries.pop("calibration")["data_offsets"]
    del forge.body[begin:end]
    for entry in forge.entries.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [place - (end - begin) for place in entry["data_offsets"]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (unsorted, "its held-out scores are not finite and sorted"),
        (nan_scores, "its held-out scores are not finite and sorted"),
        (half_wrong, "its held-out errors are not all 0 or 1"),
        (scores_of_two_dimensions, "its held-out scores are float64 of shape (140, 2)"),
        (fewer_errors, "its held-out errors are float32 of shape (140, 2)"),
        (narrow_novelties, "its held-out novelties are float32 of shape (560,)"),
        (nan_novelty, "its held-out novelties are not finite"),
        (narrow_scores, "its held-out scores are float32 of shape (560,)"),
        (
            errors_without_scores,
            "it has errors, novelties or classes of held-out predictions, but not",
        ),
    ],
)
def test_invalid_calibration_sets_are_rejected(tmp_path, valid, change, reason):
    forge = Forge(valid)
    change(forge)
    path = tmp_path / "forged.qipf"
    path.write_bytes(forge.data())
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: {reason}")):
        qipf.load(path)


def test_a_rule_with_arrays_is_rejected(tmp_path, valid_rule):
    forge = Forge(valid_rule)
    forge.entries["centers"] = {"dtype": "F64", "shape": [1, 1], "data_offsets": [0, 8]}
    forge.body += bytes(8)
    path = tmp_path / "forged.qipf"
    path.write_bytes(forge.data())
    with pytest.raises(QIPFFileError, match=re.escape("its arrays are ['centers']")):
        qipf.load(path)
