"""Files of fields: exact round trips, and the rejection of invalid headers and arrays."""

import re
import warnings

import numpy as np
import pytest

import qipf
from qipf import QIPF, QIPFFileError, QIPFInputError, QIPFWarning
from qipf.field.state import FITTED
from tests.conftest import make_logits
from tests.storage.forged_files import Forge, changed, saved

QUERIES = make_logits(50, seed=5).numpy()


@pytest.fixture(scope="module")
def weighted():
    """A field whose centres carry weights and stand for more rows than there are centres."""
    return QIPF(max_centers=40, reduction="coreset", bandwidth=3.0).fit(make_logits(300).numpy())


@pytest.fixture(scope="module")
def valid(weighted, tmp_path_factory):
    return saved(weighted, tmp_path_factory)


def same(one, other, queries=QUERIES):
    for scores in ("uncertainty", "modes", "potential", "log_density", "decision_function"):
        np.testing.assert_array_equal(
            getattr(one, scores)(queries), getattr(other, scores)(queries)
        )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"max_centers": 30},
        {"max_centers": 30, "reduction": "random", "engine": "reference"},
        {"bandwidth": "silverman", "orders": [2, 5], "softening": 0.1, "contamination": 0.2},
        {"bandwidth": 2.5, "random_state": None, "device": "cpu"},
    ],
)
def test_a_field_comes_back_to_the_last_bit(tmp_path, dtype, parameters):
    train = make_logits(200).numpy().astype(dtype)
    field = QIPF(**parameters).fit(train, train.argmax(1))
    qipf.save(field, tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    same(field, loaded, QUERIES.astype(dtype))
    expected = {**field.get_params(), "orders": tuple(field.orders)}
    assert loaded.get_params() == expected
    for name in (*field.learned, "n_features_in_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(field, name))
    assert loaded.centers_.dtype == dtype


def test_a_file_holds_everything_that_fit_learns():
    assert {f"{name}_" for name in FITTED} | {"centers_", "log_weights_"} == (
        set(QIPF().learned) | {"n_samples_seen_"}
    )


def test_the_same_field_gives_the_same_bytes(tmp_path, weighted):
    qipf.save(weighted, tmp_path / "a")
    qipf.save(qipf.load(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_column_names_come_back(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(make_logits(60).numpy(), columns=[f"class {k}" for k in range(10)])
    qipf.save(QIPF(bandwidth=3.0).fit(frame), tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    assert loaded.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(QIPFInputError, match="feature names"):
        loaded.uncertainty(frame[frame.columns[::-1]])


def test_a_field_of_batches_is_built_when_it_is_saved(tmp_path):
    rows = make_logits(100).numpy()
    field = QIPF(bandwidth=3.0).partial_fit(rows[:50]).partial_fit(rows[50:])
    qipf.save(field, tmp_path / "field.qipf")
    same(QIPF(bandwidth=3.0).fit(rows), qipf.load(tmp_path / "field.qipf"))


def test_values_that_a_file_cannot_hold_are_rejected(tmp_path):
    seeded = QIPF(bandwidth=3.0, random_state=np.random.RandomState(0)).fit(QUERIES)
    with pytest.raises(QIPFInputError, match="random_state is a RandomState"):
        seeded.save(tmp_path / "field.qipf")
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_available_becomes_auto(tmp_path, valid, weighted):
    path = tmp_path / "field.qipf"
    path.write_bytes(changed(valid, "parameters", "device", value="cuda:77"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loaded = qipf.load(path)
    assert [(w.category, w.filename) for w in warned] == [(QIPFWarning, __file__)]
    assert "'cuda:77', which is not available here" in str(warned[0].message)
    assert loaded.device == "auto"
    same(loaded, weighted)


# ---------------------------------------------------------------------- invalid files


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("kind",), "model", "its network is None"),
        (("detection",), {}, "its detection is []"),
        (("parameters",), {}, "its list of parameters is []"),
        (("parameters", "orders"), [10**9], "more than 64 orders, or one above 64"),
        (("parameters", "orders"), "12", "its orders are '12'"),
        (("parameters", "orders"), 1, "its orders are 1"),
        (("parameters", "orders"), [0], "orders must be integers from 1 to 64"),
        (("parameters", "softening"), "1", "its softening is '1'"),
        (("parameters", "softening"), 10**400, "its softening is 1000"),
        (("parameters", "softening"), -(10**400), "its softening is -1000"),
        (("parameters", "contamination"), 10**400, "its contamination is 1000"),
        (("parameters", "max_centers"), 0, "max_centers must be an integer of at least 1, got 0"),
        (("parameters", "bandwidth"), -1.0, "bandwidth must be 'cv', 'silverman' or a positive"),
        (("parameters", "engine"), "atention", "Did you mean 'attention'"),
        (("parameters", "random_state"), "x", "its random_state is 'x'"),
        (("parameters", "device"), 5, "its device is 5"),
        (("fitted", "bandwidth"), 0.0, "its bandwidth is 0.0"),
        (("fitted", "bandwidth"), "1", "its bandwidth is '1'"),
        (("fitted", "spread"), -1.0, "its spread is -1.0"),
        (("fitted", "spread"), 1e200, "its spread is 1e+200"),
        (("fitted", "offset"), None, "its offset is None"),
        (("fitted", "energies"), [1.0], "its energies are not 4 finite numbers"),
        (("fitted", "n_samples_seen"), -3, "its n_samples_seen is -3"),
        (("features",), ["a"], "it names ['a'] as the features of 10 columns"),
        (("network",), {"layer": None}, "names a network"),
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_invalid_headers_are_rejected(tmp_path, valid, keys, value, reason):
    path = tmp_path / "forged.qipf"
    path.write_bytes(changed(valid, *keys, value=value))
    with pytest.raises(QIPFFileError, match=re.escape(f"{path} cannot be used: ")) as rejected:
        qipf.load(path)
    assert reason in str(rejected.value)


def nan_centers(forge):
    forge.array("centers")[7] = np.nan


def uneven_weights(forge):
    forge.array("log_weights")[:] += 1


def gigantic_shape(forge):
    forge.entries["centers"]["shape"] = [2**40, 2**20]


def wrong_dtype(forge):
    forge.entries["centers"].update(dtype="I32")


def another_array(forge):
    end = len(forge.body)
    forge.entries["extra"] = {"dtype": "F64", "shape": [0], "data_offsets": [end, end]}


def cut_weights(forge):
    forge.entries["log_weights"]["shape"] = [20, 2]


def appended(forge):
    forge.body += b"more"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (nan_centers, "its centres hold NaN or inf"),
        (uneven_weights, "its weights are not finite shares that sum to one"),
        (gigantic_shape, "its array 'centers' is not where its shape puts it"),
        (wrong_dtype, "its array 'centers' has dtype 'I32'; F32 or F64 is needed"),
        (another_array, "its arrays are ['centers', 'extra', 'log_weights', 'training']"),
        (cut_weights, "its weights are float64 of shape (20, 2)"),
        (appended, "its arrays declare 13920 bytes and have 13924"),
    ],
)
def test_invalid_arrays_are_rejected(tmp_path, valid, change, reason):
    forge = Forge(valid)
    change(forge)
    path = tmp_path / "forged.qipf"
    path.write_bytes(forge.data(signed=change not in (gigantic_shape, wrong_dtype)))
    with pytest.raises(QIPFFileError) as rejected:
        qipf.load(path)
    assert reason in str(rejected.value)
