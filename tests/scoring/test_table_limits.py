"""The uncertainty above which a row is an outlier."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qipf import QIPF
from qipf.calibration.conformal import Calibration
from qipf.calibration.quantization import rounded
from qipf.scoring.table import outlier_limit
from tests.conftest import make_logits


@pytest.fixture(scope="module")
def field():
    return QIPF(bandwidth=3.0).fit(make_logits(200).double().numpy())


def calibrated(scores, share):
    """A field with these held-out scores."""
    field = QIPF(contamination=share)
    field.calibration_, field.offset_ = Calibration(scores), 0.0
    return field


@given(
    st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=40),
    st.sampled_from([0.01, 0.1, 0.25, 0.5]),
    st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=10),
)
def test_an_outlier_has_a_small_p_value(held_out, share, scores):
    limit = outlier_limit(calibrated(held_out, share))
    # p-values computed as fractions: 0.25 * 4 must not miss 1 by rounding
    p = [(1 + sum(s >= score for s in held_out)) / (len(held_out) + 1) for score in scores]
    assert [score > limit.above for score in scores] == [value <= share for value in p]


def test_the_share_of_outliers_among_new_rows():
    rng, shares = np.random.default_rng(0), []
    for _ in range(400):
        limit = outlier_limit(calibrated(rng.normal(size=60), 0.1))
        shares.append((rng.normal(size=200) > limit.above).mean())
    spread = np.std(shares) / math.sqrt(len(shares))
    assert 0.1 - 2 / 61 < np.mean(shares) < 0.1 + 3 * spread


def test_rounding_differences_are_not_outliers():
    scores = np.linspace(3.0, 4.0, 99)
    limit = outlier_limit(calibrated(scores, 0.1))
    assert rounded(np.array([limit.above]))[0] == rounded(scores[89:90])[0]
    assert scores[89] * (1 + 1e-7) <= limit.above < scores[90]


def test_training_rows_score_lower_than_new_rows(field):
    train, new = make_logits(200).double().numpy(), make_logits(2000, seed=9).double().numpy()
    limit = outlier_limit(field)
    assert (limit.above, limit.share, limit.held_out) == (-field.offset_, 0.1, None)
    assert (field.uncertainty(train) > limit.above).mean() == pytest.approx(0.1, abs=0.01)
    assert (field.uncertainty(new) > limit.above).mean() > 0.15
    held_out = make_logits(500, seed=8).double().numpy()
    known = QIPF(bandwidth=3.0).fit(train).calibrate(held_out)
    assert outlier_limit(known).above == known.outlier_limit_
    assert (known.predict(new) == -1).mean() == pytest.approx(0.1, abs=0.04)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.25])
def test_predict_and_p_values_agree_once_there_are_held_out_rows(share):
    field = QIPF(bandwidth=3.0, contamination=share).fit(make_logits(200).double().numpy())
    new = make_logits(500, seed=9).double().numpy()
    before = field.predict(new)
    np.testing.assert_array_equal(before == 1, field.uncertainty(new) <= -field.offset_)
    field.calibrate(make_logits(150, seed=8).double().numpy())
    np.testing.assert_array_equal(field.predict(new) == -1, field.p_values(new) <= share)
    np.testing.assert_array_equal(field.predict(new) == -1, field.decision_function(new) < 0)
    assert (before != field.predict(new)).any()  # otherwise the test is void
    assert f"{field.outlier_limit_:.6g}, by the held-out rows" in field.summary()


def test_too_few_held_out_rows_leave_finite_decisions():
    field = QIPF(bandwidth=3.0).fit(make_logits(200).double().numpy())
    new = make_logits(50, seed=9).double().numpy()
    field.calibrate(make_logits(5, seed=8).double().numpy())
    assert (field.predict(1000 * new) == 1).all()
    assert np.isfinite(field.decision_function(1000 * new)).all()


@pytest.mark.parametrize(
    ("held_out", "phrase"),
    [
        (None, "more uncertain than 90% of the training rows"),
        (1200, "more uncertain than 90% of 1,200 held-out rows"),
        (8, "8 held-out rows are too few"),
    ],
)
def test_the_text_says_which_rows_were_used(field, held_out, phrase):
    known = calibrated(np.arange(held_out), 0.1) if held_out else field
    assert phrase in str(outlier_limit(known))


def test_too_few_held_out_rows_give_no_outliers():
    assert outlier_limit(calibrated(np.arange(8.0), 0.1)).above == math.inf
    assert 8.0 <= outlier_limit(calibrated(np.arange(9.0), 0.1)).above < 8.001
