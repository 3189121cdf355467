"""QIPF: what it refuses, and that nothing is left behind."""

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import qipf
from qipf import QIPF, QIPFError, QIPFInputError, QIPFNotFittedError, QIPFWarning
from tests.field.conftest import SCORES

BROKEN = np.zeros((4, 3))
BROKEN[1, 2], BROKEN[3, 0] = np.nan, np.inf


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            BROKEN,
            "X has 2 rows with NaN or inf (rows 1, 3). Drop or repair them first. (A model made "
            "with nan_policy='propagate' gives NaN for such predictions; fit, calibrate, "
            "explain and report always raise.)",
        ),
        (torch.from_numpy(BROKEN), "X has 2 rows with NaN or inf (rows 1, 3)"),
        (
            np.zeros(5),
            "X: Expected 2D array, got 1D array instead. Reshape your data either using "
            "array.reshape(-1, 1) if your data has a single feature or array.reshape(1, -1) if it "
            "contains a single sample.",
        ),
        (torch.zeros(5), "X must have two dimensions, (predictions, logits), got shape (5,)"),
        (torch.zeros(5, 2, dtype=torch.complex64), "X must hold real numbers"),
        (np.zeros((1, 3)), "X has n_samples = 1 rows, but at least 2 are needed."),
        (np.ones((20, 3)), "X has fewer than two distinct rows (n_samples = 20, all equal)"),
        (np.array([["a", "b"]]), "X: "),
        (np.zeros((0, 3)), "X: Found array with 0 sample"),
        (torch.zeros(0, 3), "X has n_samples = 0 rows"),
        (torch.zeros(5, 2, device="meta"), "X must be a dense tensor with data"),
        (torch.eye(5).to_sparse(), "X must be a dense tensor with data"),
        (
            DataLoader(torch.eye(5)),
            "X must be an array of logits, got DataLoader. QIPF takes logits; for a network use "
            "LayeredQIPF(net).",
        ),
    ],
)
def test_bad_training_rows_are_refused_and_leave_nothing_behind(rows, message):
    field = QIPF()
    before = dict(vars(field))
    with pytest.raises(QIPFInputError, match=re.escape(message)) as caught:
        field.fit(rows)
    assert isinstance(caught.value, QIPFError)
    assert isinstance(caught.value, ValueError)
    assert vars(field) == before


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 3)), "X has 3 features, but QIPF is expecting 10 features"),
        (torch.zeros(2, 3), "X has 3 features, but QIPF was fitted with 10."),
        (np.full((7, 10), np.nan), "X has 7 rows with NaN or inf (rows 0, 1, 2, 3, 4, …)"),
        (np.full((1, 10), np.inf, np.float32), "X has 1 row with NaN or inf (row 0)"),
        (np.zeros(10), "Expected 2D array"),
    ],
)
def test_bad_rows_to_judge_are_refused(field, rows, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        field.uncertainty(rows)


def test_large_finite_numbers_are_not_taken_for_infinite(field):
    rows = np.full((3, 10), 3e38, np.float32)  # their sum overflows
    assert np.isfinite(field.uncertainty(rows)).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bandwidth": 0.0}, "or a positive number"),
        ({"bandwidth": -1}, "or a positive number"),
        ({"bandwidth": float("nan")}, "or a positive number"),
        ({"bandwidth": None}, "got None."),
        (
            {"bandwidth": "scott"},
            "Unknown bandwidth 'scott'. Known: cv, silverman; or give a positive number.",
        ),
        ({"nan_policy": "omit"}, "Unknown nan_policy 'omit'. Known: propagate, raise."),
        ({"softening": -0.1}, "softening must be a number from 0 to 1e+100, got -0.1."),
        ({"orders": (0, 1)}, "orders must be integers from 1 to 64"),
        ({"orders": (1.5,)}, "orders must be integers from 1 to 64"),
        ({"orders": ()}, "orders must be integers from 1 to 64"),
        ({"orders": 3}, "orders must be integers from 1 to 64"),
        ({"orders": (p for p in (1, 2))}, "orders must be integers from 1 to 64"),
        ({"softening": 10**400}, "softening must be a number from 0 to 1e+100, got 1000000"),
        ({"softening": "0.1"}, "softening must be a number from 0 to 1e+100, got '0.1'."),
        ({"bandwidth": True}, "got True."),
        ({"bandwidth": 1e300}, "between 1e-100 and 1e100, got 1e+300."),
        ({"random_state": "abc"}, "random_state must be an integer ≥ 0, None or a numpy"),
        ({"engine": ["attention"]}, "Unknown engine ['attention']"),
        ({"device": "meta"}, "device 'meta' cannot be used here"),
        ({"max_centers": 0}, "max_centers must be an integer of at least 1, got 0."),
        ({"max_centers": 10.0}, "max_centers must be an integer of at least 1, got 10.0."),
        ({"reduction": "randm"}, "Unknown reduction 'randm'. Did you mean 'random'?"),
        ({"contamination": 0.7}, "contamination must lie in (0, 0.5], got 0.7."),
        ({"contamination": "auto"}, "contamination must lie in (0, 0.5], got 'auto'."),
        ({"engine": "atention"}, "Unknown engine 'atention'. Did you mean 'attention'?"),
        ({"device": "gpu"}, "device 'gpu' cannot be used here"),
        ({"device": 3.5}, "device 3.5 cannot be used here"),
    ],
)
def test_bad_parameters_are_refused_at_fit(train, parameters, message):
    field = QIPF(**parameters)
    before = dict(vars(field))
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        field.fit(train)
    assert vars(field) == before


@pytest.mark.parametrize("method", [*SCORES, "predict"])
def test_use_before_fit_is_refused(method):
    with pytest.raises(QIPFNotFittedError, match="not fitted yet. Call fit"):
        getattr(QIPF(), method)(np.zeros((1, 2)))


def test_bad_labels_are_refused(train):
    with pytest.raises(QIPFInputError, match=re.escape("y must have shape (800,)")):
        QIPF().fit(train, np.zeros(799, int))
    with pytest.raises(QIPFInputError, match="wrong must have the shape of X"):
        QIPF().fit(train, wrong=np.zeros((800, 2), bool))
    with pytest.raises(QIPFInputError, match="wrong must hold booleans"):
        QIPF().fit(train, wrong=np.arange(800))
    with pytest.raises(QIPFInputError, match="not both"):
        QIPF().fit(train, np.zeros(800, int), wrong=np.zeros(800, bool))
    for labels in (np.arange(1, 801) % 10 + 1, np.full(800, 0.5), np.full(800, "cat")):
        with pytest.warns(QIPFWarning, match="y must hold") as warned:
            assert QIPF().fit(train, labels).bandwidth_criterion_ == "likelihood"
        assert [w.filename for w in warned] == [__file__]


@pytest.mark.parametrize("scale", [1e-170, 1e-145, 1e140, 1e150])
@pytest.mark.parametrize("bandwidth", ["cv", "silverman"])
def test_data_whose_squares_leave_the_floating_point_range_are_rejected(train, scale, bandwidth):
    """Uncertainties of such data were off by more than 1, without a word."""
    field = QIPF(bandwidth=bandwidth)
    with pytest.raises(QIPFInputError, match="by a constant"):
        field.fit(train.astype(np.float64) * scale)


@pytest.mark.parametrize("scale", [1e-139, 1e-30, 1e30, 1e138])
def test_scaled_data_have_the_same_uncertainties(train, test, scale, tmp_path):
    train, test = train.astype(np.float64), test.astype(np.float64)
    plain = QIPF(bandwidth="silverman").fit(train).uncertainty(test)
    field = QIPF(bandwidth="silverman").fit(train * scale)
    np.testing.assert_allclose(field.uncertainty(test * scale), plain, rtol=1e-9)
    field.save(tmp_path / "field.qipf")
    found = qipf.load(tmp_path / "field.qipf").uncertainty(test * scale)
    np.testing.assert_allclose(found, plain, rtol=1e-9)


def test_a_huge_row_is_named_and_can_be_scored(train, tmp_path):
    rows = train.astype(np.float64)
    rows[5, 2] = -1e160
    with pytest.raises(QIPFInputError, match=r"beyond ±1e\+140 \(row 5: 1e\+160\)"):
        QIPF().fit(rows)
    field = QIPF(bandwidth="silverman").fit(train.astype(np.float64))
    assert np.isfinite(field.potential(rows)).all()
    assert np.isfinite(field.uncertainty(rows)).all()


def test_arrays_of_orders_and_fractions_are_numbers_too(train, test, tmp_path):
    expected = QIPF(orders=(1, 2), softening=0.0001, bandwidth=0.5).fit(train)
    field = QIPF(
        orders=np.array([1, 2]), softening=Fraction(1, 10_000), bandwidth=Fraction(1, 2)
    ).fit(train)
    np.testing.assert_array_equal(field.uncertainty(test), expected.uncertainty(test))
    field.save(tmp_path / "field.qipf")
    loaded = qipf.load(tmp_path / "field.qipf")
    np.testing.assert_array_equal(loaded.uncertainty(test), expected.uncertainty(test))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"orders": (1, 2, 1)}, "orders must differ from each other, got (1, 2, 1)"),
        ({"max_centers": 1, "reduction": "random"}, "max_centers must be at least 2"),
        ({"max_centers": 1, "bandwidth": 2.0}, "max_centers must be at least 2"),
    ],
)
def test_parameters_are_blamed_not_the_rows(train, parameters, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        QIPF(**parameters).fit(train)


def test_labels_that_are_no_classes_are_named(train):
    labels = np.arange(len(train)) % 10
    labels[[7, 9]] = 10, -1
    with pytest.warns(UserWarning, match=r"got -1, 10 in 2 of 800 rows \(first: row 7\)"):
        QIPF(bandwidth="silverman").fit(train, labels)


def test_tensors_without_data_are_rejected(train, field):
    meta = torch.zeros(len(train), device="meta")
    message = "must be a dense tensor with data, got layout torch.strided on meta"
    for call in (
        lambda: QIPF().fit(train, meta.long()),
        lambda: QIPF().fit(train, wrong=meta.bool()),
        lambda: field.uncertainty(torch.zeros(2, 10, device="meta")),
        lambda: qipf.Calibration(meta),
        lambda: qipf.coreset(torch.zeros(9, 2, device="meta"), 2, bandwidth=1.0),
    ):
        with pytest.raises(QIPFInputError, match=message):
            call()
    model = qipf.wrap(torch.nn.Identity(), field=field)
    with pytest.raises(QIPFInputError, match="got input on the device meta"):
        model.uncertainty(torch.zeros(2, 10, device="meta"))
