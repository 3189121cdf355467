"""The metric of a layer, against the formulas in numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from qipf.layered.metric import Metric, Scatter, unit_length, units_of


def rows_of(count=200, width=6, classes=3, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    stretch = random.normal(size=(width, width))
    rows = (
        random.normal(size=(count, width)) @ stretch
        + 4 * random.normal(size=(classes, width))[labels]
    )
    return torch.from_numpy(rows).float(), torch.from_numpy(labels)


def offsets_within(rows, labels):
    rows, labels = rows.double().numpy(), labels.numpy()
    return np.concatenate([rows[labels == c] - rows[labels == c].mean(0) for c in set(labels)])


def naive(rows, labels, shrinkage, dimension, gain_free):
    """Unit vectors by the formulas, up to a rotation that no cosine sees."""
    z = rows.double().numpy()
    if gain_free:
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
    within = offsets_within(torch.from_numpy(z), labels)
    s = within.T @ within / len(z)
    s = (1 - shrinkage) * s + shrinkage * np.trace(s) / len(s) * np.eye(len(s))
    values, vectors = np.linalg.eigh(s)
    whitened = (z - z.mean(0)) @ vectors / np.sqrt(values)
    _, spread = np.linalg.eigh(whitened.T @ whitened)
    narrowed = whitened @ spread[:, -dimension:]
    return narrowed / np.linalg.norm(narrowed, axis=1, keepdims=True)


@pytest.mark.parametrize("gain_free", [False, True])
@pytest.mark.parametrize("dimension", [2, 6, 50])
@pytest.mark.parametrize("shrinkage", [0.02, 0.5, 1.0])
def test_cosines_are_those_of_the_formulas(gain_free, dimension, shrinkage):
    rows, labels = rows_of()
    embeddings = Scatter(rows, labels, gain_free).metric(shrinkage, dimension)(rows).double()
    expected = torch.from_numpy(naive(rows, labels, shrinkage, dimension, gain_free))
    assert embeddings.shape == (200, min(dimension, 6))
    torch.testing.assert_close(embeddings @ embeddings.T, expected @ expected.T, atol=2e-5, rtol=0)


def test_without_shrinkage_the_covariance_within_classes_is_a_multiple_of_one():
    rows, labels = rows_of()
    metric = Scatter(rows, labels, gain_free=False).metric(0.0, 6)
    within = offsets_within(rows, labels) @ metric.directions.double().numpy()
    covariance = within.T @ within / len(rows)
    scale = np.trace(covariance) / 6
    np.testing.assert_allclose(covariance / scale, np.eye(6), atol=1e-5)
    assert float(metric.directions.abs().max()) == 1


def test_narrowing_keeps_the_directions_in_which_classes_lie_apart():
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 2
    rows = torch.randn(300, 5, generator=random) * torch.tensor([1.0, 30, 30, 30, 30])
    rows[:, 0] += 12.0 * labels
    found = Scatter(rows, labels, gain_free=False).metric(0.02, 1)(rows)[:, 0]
    assert len(set((found.sign() * (2 * labels - 1)).tolist())) == 1


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(0, 99))
def test_free_of_gain_a_brighter_row_is_the_same_row(gain, row):
    rows, labels = rows_of()
    metric = Scatter(rows, labels, gain_free=True).metric(0.3, 4)
    torch.testing.assert_close(
        metric(gain * rows[row : row + 1]), metric(rows[row : row + 1]), atol=2e-5, rtol=0
    )


@pytest.mark.parametrize("gain_free", [False, True])
@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e10, 1e30])
def test_rows_of_any_size_have_length_one(gain_free, size):
    rows, labels = rows_of()
    metric = Scatter(size * rows, labels, gain_free).metric(0.3, 4)
    embeddings = metric(size * rows)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(200))
    expected = Scatter(rows, labels, gain_free).metric(0.3, 4)(rows)
    torch.testing.assert_close(embeddings @ embeddings.T, expected @ expected.T, atol=1e-3, rtol=0)


def test_an_outlier_beyond_all_squares_has_a_direction():
    rows, labels = rows_of()
    metric = Scatter(rows, labels, gain_free=False).metric(0.3, 4)
    far = torch.full((1, 6), 1e37)
    torch.testing.assert_close(metric(far), metric(far / 1e30), atol=1e-4, rtol=0)


def test_the_mean_itself_stays_at_the_origin():
    metric = Metric(torch.ones(3), torch.eye(3), gain_free=False)
    assert metric(torch.ones(1, 3)).tolist() == [[0.0, 0.0, 0.0]]
    assert unit_length(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1.0, 2.5e38])
def test_any_row_of_float32_has_a_direction(size):
    """Its length may be more than float32 can represent, or less than its normal numbers."""
    found = units_of(torch.full((1, 4), size))
    torch.testing.assert_close(found.vectors, torch.full((1, 4), 0.5))
    assert float(found.lengths) == pytest.approx(2 * float(torch.tensor(size)))


def test_rows_of_zeros_stay_zero_where_subnormal_numbers_count_as_zero():
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("not supported by this processor")
        assert unit_length(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("shrinkage", [0.0, 0.5])
def test_classes_of_one_row_each_are_not_whitened(shrinkage):
    """Their scatter is zero, and nothing is divided by it."""
    rows = torch.eye(4)
    embeddings = Scatter(rows, torch.arange(4), gain_free=False).metric(shrinkage, 4)(rows)
    assert torch.isfinite(embeddings).all()
    torch.testing.assert_close(
        embeddings @ embeddings.T, 4 / 3 * torch.eye(4) - 1 / 3, atol=1e-5, rtol=0
    )


def test_more_numbers_than_rows():
    rows, labels = rows_of(count=10, width=40)
    embeddings = Scatter(rows, labels, gain_free=False).metric(0.02, 5)(rows)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(10))


def test_empty():
    rows, labels = rows_of()
    assert Scatter(rows, labels, True).metric(0.3, 4)(rows[:0]).shape == (0, 4)


def test_directions_of_rounding_are_not_magnified():
    """Variances below 1e-10 of the largest count as that."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(400, 2, generator=rng).double()
    rows = rows - rows.mean(0)
    rows[:, 1] -= rows[:, 0] * (rows[:, 0] @ rows[:, 1]) / (rows[:, 0] @ rows[:, 0])
    for small, ratio in ((1e-4, 1e4), (1e-7, 1e5)):  # deviations: known, and below 1e-5
        scaled = rows / rows.std(0, correction=0) * torch.tensor([1.0, small])
        found = Scatter(scaled, torch.zeros(400, dtype=torch.long), False).metric(0.0, 2)
        norms = found.directions.double().norm(dim=0)
        assert float(norms.max() / norms.min()) == pytest.approx(ratio, rel=1e-4)


def test_a_projected_metric_has_the_cosines_of_projected_rows():
    rows, labels = rows_of(width=5)
    metric = Scatter(rows, labels, gain_free=False).metric(0.3, 5)
    projection = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))
    found = metric.projected(projection)
    torch.testing.assert_close(found(rows), unit_length(metric(rows) @ projection))
    assert float(found.directions.abs().max()) == 1.0


def test_the_last_directions_are_those_in_which_rows_spread_most():
    rows, labels = rows_of()
    scatter = Scatter(rows, labels, gain_free=False)
    wide, narrow = scatter.metric(0.1, 6), scatter.metric(0.1, 2)
    assert (wide.whitened(rows).var(0).diff() > 0).all()
    cosines = functional.cosine_similarity(wide.directions[:, 4:], narrow.directions, dim=0)
    torch.testing.assert_close(cosines.abs(), torch.ones(2))
