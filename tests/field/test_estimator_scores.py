"""QIPF: what it gives for every kind of input, and the laws of it."""

import numpy as np
import pytest
import torch

from qipf import QIPF
from qipf.errors import QIPFScoreWarning
from qipf.field import fitted
from tests.conftest import make_logits, naive_moments
from tests.field.conftest import SCORES


@pytest.mark.parametrize(
    ("normalization", "constant"),
    [("standard", (2 * np.pi) ** -5), ("density", (2 * np.pi * 9) ** -5), ("peak", 1.0)],
)
def test_scores_follow_from_the_definitions(train, test, normalization, constant):
    field = QIPF(bandwidth=3.0, normalization=normalization).fit(train)
    sigma, d = field.bandwidth_, 10

    def by_hand(x):
        log_density, m1_squared, m2 = naive_moments(x, field.centers_, sigma)
        K = m2 / (4 * sigma**2) - m1_squared / (8 * sigma**2) - d / 4
        S = m1_squared / (8 * sigma**2)
        psi = np.sqrt(constant) * np.exp(log_density / 2)
        ratio_2 = (4 * psi**2 * K + 4 * psi**2 * S) / (2 * psi**2 - 1) / 1
        h3 = (8 * psi**3 - 12 * psi, 24 * psi**2 - 12, 48 * psi)
        h4 = (16 * psi**4 - 48 * psi**2 + 12, 64 * psi**3 - 96 * psi, 192 * psi**2 - 96)
        higher = [(h[1] * psi * K + h[2] * psi**2 * S) / h[0] for h in (h3, h4)]
        return log_density, K, np.stack([K, ratio_2, *higher], axis=1)

    _, K_inside, inside = by_hand(field.centers_)
    log_density, K, bare = by_hand(test)
    modes = bare - inside.min(0)
    np.testing.assert_allclose(field.log_density(test), log_density, rtol=1e-5)
    np.testing.assert_array_equal(field.novelty(test), -field.log_density(test))
    np.testing.assert_allclose(field.potential(test), K - K_inside.min(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(field.modes(test), modes, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(field.uncertainty(test), modes.mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(field.score_samples(test), -field.uncertainty(test))
    np.testing.assert_allclose(field.modes(test)[:, 0], field.potential(test), atol=1e-9)


def test_the_calmest_centre_has_no_potential(field):
    assert field.potential(field.centers_).min() == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(field.modes(field.centers_).min(0), 0.0, atol=1e-6)


@pytest.mark.parametrize("engine", ["reference", "attention"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uncertainty_grows_without_end(train, test, engine, dtype):
    field = QIPF(bandwidth=3.0, engine=engine).fit(train.astype(dtype))
    far = np.stack([field.uncertainty(test.astype(dtype) * 10.0**k) for k in range(7)])
    assert np.isfinite(far).all()
    assert (np.diff(far[1:], axis=0) > 0).all()
    growth = far[6] / far[5]
    np.testing.assert_allclose(growth, 100.0, rtol=1e-3)  # quadratic


@pytest.mark.parametrize("scale", [1e18, 1e30, 1e38])
def test_uncertainty_is_finite_for_the_largest_numbers(field, scale):
    assert np.isfinite(field.uncertainty(np.full((1, 10), scale))).all()


@pytest.mark.parametrize("method", SCORES)
def test_numpy_in_numpy_out_tensor_in_tensor_out(field, test, method):
    array = getattr(field, method)(test)
    tensor = getattr(field, method)(torch.from_numpy(test))
    assert isinstance(array, np.ndarray)
    assert isinstance(tensor, torch.Tensor)
    assert array.dtype == np.float64
    assert tensor.dtype == torch.float64
    np.testing.assert_array_equal(array, tensor.numpy())
    assert getattr(field, method)(test.tolist()).shape == array.shape


def test_predict_gives_the_kind_that_came(field, test):
    array = field.predict(test)
    assert set(array) <= {1, -1}
    np.testing.assert_array_equal(array, field.predict(torch.from_numpy(test)).numpy())
    assert np.array_equal(array == 1, field.decision_function(test) >= 0)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32]
)
def test_every_number_format_is_taken(field, test, dtype):
    rows = torch.from_numpy(test).to(dtype)
    expected = field.uncertainty(rows.double())
    torch.testing.assert_close(field.uncertainty(rows), expected, rtol=1e-4, atol=1e-5)
    fitted = QIPF(bandwidth=3.0, max_centers=100).fit(rows)
    assert fitted.centers_.dtype in (np.float32, np.float64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8, ">f4", ">f8"])
def test_every_array_format_is_taken(field, test, dtype):
    rows = np.abs(test).astype(dtype)
    expected = field.uncertainty(rows.astype(np.float64))
    np.testing.assert_allclose(field.uncertainty(rows), expected, rtol=1e-4, atol=1e-5)


def test_layout_in_memory_does_not_matter(field, test):
    plain = field.uncertainty(test)
    wide = np.repeat(test, 2, axis=1)[:, ::2]
    frozen = test.copy()
    frozen.flags.writeable = False
    tensor = torch.from_numpy(test)
    for rows in (wide, np.asfortranarray(test), test[::-1][::-1], frozen):
        np.testing.assert_allclose(field.uncertainty(rows), plain, rtol=1e-6)
    np.testing.assert_allclose(field.uncertainty(test[::-1])[::-1], plain, rtol=1e-6)
    strided = tensor.T.contiguous().T
    np.testing.assert_allclose(field.uncertainty(strided).numpy(), plain, rtol=1e-6)


@pytest.mark.parametrize("method", [*SCORES, "predict"])
def test_an_empty_batch_gives_an_empty_answer(field, method):
    assert len(getattr(field, method)(np.empty((0, 10), np.float32))) == 0
    assert len(getattr(field, method)(torch.empty(0, 10))) == 0


def test_input_is_never_changed(train, test):
    before = train.copy(), test.copy()
    QIPF().fit(train).uncertainty(test)
    np.testing.assert_array_equal(train, before[0])
    np.testing.assert_array_equal(test, before[1])


def test_two_tight_groups_on_a_pole_of_the_second_mode_keep_their_order():
    # ρ is exactly 1/2 at every row, where h_2 is zero
    rows = np.repeat([[5.0, -5.0], [-5.0, 5.0]], 50, axis=0)
    field = QIPF().fit(rows)
    inside, outside = field.uncertainty(rows), field.uncertainty([[40.0, 40.0], [0.0, 90.0]])
    assert np.abs(inside).max() < 1e3
    assert outside.min() > inside.max()


def test_a_few_thousand_rows_are_one_block(field, test, monkeypatch):
    sizes, plain = [], QIPF._both_of_block
    monkeypatch.setattr(
        QIPF, "_both_of_block", lambda self, rows: sizes.append(len(rows)) or plain(self, rows)
    )
    field.uncertainty(np.resize(test, (2000, test.shape[1])))
    assert sizes == [2000]


def test_many_rows_are_judged_block_by_block(field, test, monkeypatch):
    whole = field.uncertainty(test)
    monkeypatch.setitem(fitted.ROWS_PER_BLOCK, "cpu", 7)
    np.testing.assert_allclose(field.uncertainty(test), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
def test_the_scale_of_the_logits_does_not_matter(train, test, scale):
    plain = QIPF(bandwidth="silverman").fit(train.astype(np.float64)).uncertainty(test)
    scaled = QIPF(bandwidth="silverman").fit(train * np.float64(scale))
    np.testing.assert_allclose(scaled.uncertainty(test * np.float64(scale)), plain, rtol=1e-4)


def test_a_tensor_forgets_the_names_of_an_earlier_table(train):
    pandas = pytest.importorskip("pandas")
    field = QIPF(bandwidth=3.0).fit(pandas.DataFrame(train, columns=list("abcdefghij")))
    field.fit(torch.from_numpy(train))
    assert field.uncertainty(train[:3]).shape == (3,)


@pytest.mark.filterwarnings("error")
def test_ten_rows_that_look_like_probabilities_are_warned_of(field):
    rows = torch.softmax(make_logits(10), 1).numpy()
    field.uncertainty(rows[:9])  # so few may be logits
    with pytest.warns(QIPFScoreWarning, match="These rows are class probabilities"):
        field.uncertainty(rows)
