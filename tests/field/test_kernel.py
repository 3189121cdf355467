"""The field of weighted centres with a spread."""

import numpy as np
import pytest
import torch

from qipf.field.kernel import Coreset, field_of
from tests.conftest import make_logits, naive_moments
from tests.field.conftest import moments


@pytest.fixture(scope="module")
def rows():
    return make_logits(200).double().numpy()


def test_centres_with_a_spread_are_gaussians():
    """In one dimension, against a fine sum over the Gaussians."""
    centers, weights, spread, sigma = [[0.0], [3.0], [4.0]], [1.0, 5.0, 2.0], 0.8, 0.5
    steps = np.linspace(-12, 12, 4001)
    points = (np.array(centers) + spread * steps).reshape(-1, 1)
    shares = np.outer(weights, np.exp(-(steps**2) / 2)).ravel()
    queries = np.linspace(-4, 9, 40)[:, None]
    expected = naive_moments(queries, points, sigma, shares)
    log_weights = torch.tensor(weights).log()
    for engine in ("reference", "attention"):
        field = field_of(engine, torch.tensor(centers).double(), sigma, log_weights, spread)
        found = field(torch.from_numpy(queries))
        for ours, theirs in zip(found, expected, strict=False):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)
        assert found.dimension == 1


def test_without_spread_the_field_is_the_plain_one(rows):
    centers, queries = torch.from_numpy(rows[:50]), torch.from_numpy(rows[50:80])
    plain = moments(queries, centers, 2.0)
    for found in (field_of("auto", centers, 2.0), field_of("auto", centers, 2.0, spread=1e-9)):
        for ours, theirs in zip(found(queries), plain, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_gradients_with_a_spread(rows):
    field = field_of("auto", torch.from_numpy(rows[:30]), 4.0, spread=2.0)
    queries = torch.from_numpy(rows[30:33]).requires_grad_()
    torch.autograd.gradcheck(lambda x: field(x)[:3], queries, rtol=1e-4)


def test_far_from_all_centres_moments_are_finite():
    field = field_of("auto", torch.zeros(1, 3), 1.0, spread=0.5)
    found = field(torch.tensor([[1e30, 0, 0], [3e38, 3e38, 0]]))
    assert all(bool(torch.isfinite(values).all()) for values in found[:3])
    assert (found.m2 >= found.m1_squared).all()


def test_weights_and_device_of_a_coreset():
    part = Coreset(torch.zeros(3, 2), torch.tensor([1.0, 2.0, 5.0]), 0.5)
    assert part.count == 8.0
    torch.testing.assert_close(part.log_weights.exp(), torch.tensor([0.125, 0.25, 0.625]))
    moved = part.to(torch.device("meta"))
    assert (moved.centers.device.type, moved.weights.device.type) == ("meta", "meta")
    assert moved.spread == 0.5
