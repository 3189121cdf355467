"""The field of weighted clouds: a mean over their points, read through wider kernels."""

import numpy as np
import pytest
import torch

from qipf.field import coreset, engines
from qipf.field.kernel import Coreset, as_clouds, field_of
from tests.conftest import make_logits, naive_moments


@pytest.fixture(scope="module")
def rows():
    return make_logits(200).double().numpy()


def test_a_field_of_clouds_is_the_mean_over_their_points():
    """In one dimension, against a fine sum over the clouds."""
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


def test_without_spread_a_field_of_clouds_is_the_plain_one(rows):
    centers, queries = torch.from_numpy(rows[:50]), torch.from_numpy(rows[50:80])
    plain = engines.moments(queries, centers, 2.0)
    for found in (field_of("auto", centers, 2.0), field_of("auto", centers, 2.0, spread=1e-9)):
        for ours, theirs in zip(found(queries), plain, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_gradients_pass_through_clouds(rows):
    field = field_of("auto", torch.from_numpy(rows[:30]), 4.0, spread=2.0)
    queries = torch.from_numpy(rows[30:33]).requires_grad_()
    torch.autograd.gradcheck(lambda x: field(x)[:3], queries, rtol=1e-4)


def test_far_from_everything_clouds_stay_finite():
    field = field_of("auto", torch.zeros(1, 3), 1.0, spread=0.5)
    moments = field(torch.tensor([[1e30, 0, 0], [3e38, 3e38, 0]]))
    assert all(bool(torch.isfinite(values).all()) for values in moments[:3])
    assert (moments.m2 >= moments.m1_squared).all()


def test_a_coreset_knows_its_shares_and_moves_whole():
    part = Coreset(torch.zeros(3, 2), torch.tensor([1.0, 2.0, 5.0]), 0.5)
    assert part.count == 8.0
    torch.testing.assert_close(part.log_weights.exp(), torch.tensor([0.125, 0.25, 0.625]))
    moved = part.on(torch.device("meta"))
    assert (moved.centers.device.type, moved.weights.device.type) == ("meta", "meta")
    assert moved.spread == 0.5


def test_the_names_are_found_beside_what_builds_coresets():
    assert (coreset.Coreset, coreset.as_clouds, coreset.field_of) == (Coreset, as_clouds, field_of)
