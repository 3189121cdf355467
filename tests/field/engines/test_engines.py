"""The reference and attention engines: definitions, laws, extremes, gradients, rejections."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf import QIPFInputError
from qipf.field import engines
from qipf.field.engines.base import blocks
from qipf.field.potential import curvature
from tests.conftest import make_logits, naive_moments
from tests.field.conftest import moments

BOTH = pytest.mark.parametrize("engine", ["reference", "attention"])
INF = float("inf")


@BOTH
@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 17])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_their_definitions(engine, dimension, weighted):
    generator = torch.Generator().manual_seed(dimension)
    centers = torch.randn(53, dimension, generator=generator, dtype=torch.float64)
    queries = 2 * torch.randn(19, dimension, generator=generator, dtype=torch.float64)
    weights = torch.rand(53, generator=generator, dtype=torch.float64) if weighted else None
    log_weights = None if weights is None else weights.log()
    found = moments(queries, centers, 0.7, log_weights, engine)
    expected = naive_moments(queries, centers, 0.7, weights)
    for value, truth in zip(found[:3], expected, strict=True):
        np.testing.assert_allclose(value, truth, rtol=1e-10, atol=1e-12)
    assert found.dimension == dimension


@BOTH
def test_small_blocks_of_the_reference_give_the_same(engine, monkeypatch):
    monkeypatch.setattr("qipf.field.engines.reference.PAIRS_PER_BLOCK", 64)
    centers, queries = make_logits(30).double(), make_logits(11, seed=1).double()
    found = moments(queries, centers, 3.0, engine=engine)
    for value, truth in zip(found[:3], naive_moments(queries, centers, 3.0), strict=True):
        np.testing.assert_allclose(value, truth, rtol=1e-10)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_queries_and_centres_give_finite_moments(engine, dtype):
    top = torch.finfo(dtype).max
    queries = torch.tensor([[0.0], [1e-30], [1e19], [-top], [top]], dtype=dtype)
    found = moments(queries, torch.tensor([[-1.0], [1.0]], dtype=dtype), 0.5, engine=engine)
    assert all(torch.isfinite(value).all() for value in found[:3])
    assert (found.m2 >= found.m1_squared).all()
    centers = torch.tensor([[1e200], [-1e200]], dtype=torch.float64)  # their squares overflow
    found = moments(centers, centers, 1.0, engine=engine)
    assert all(torch.isfinite(value).all() for value in found[:3])


def test_far_from_all_centres_the_second_moment_is_the_squared_distance():
    centers = make_logits(600).double()
    queries = torch.ones(3, 10).double() * torch.tensor([[1e12], [1e16], [1e18]])
    found = moments(queries, centers, 3.0, engine="reference")
    torch.testing.assert_close(found.m2, queries.square().sum(1), rtol=1e-9, atol=0.0)


@BOTH
def test_no_queries_give_empty_moments(engine):
    found = moments(torch.empty(0, 3), torch.zeros(4, 3), 1.0, engine=engine)
    assert [tuple(value.shape) for value in found[:3]] == [(0,), (0,), (0,)]


@BOTH
def test_centres_of_zero_weight_are_ignored(engine):
    centers = make_logits(20).double()
    log_weights = torch.zeros(20, dtype=torch.float64)
    log_weights[5:] = -INF
    found = moments(centers, centers, 3.0, log_weights, engine)
    alone = moments(centers, centers[:5], 3.0, engine=engine)
    for value, truth in zip(found[:3], alone[:3], strict=True):
        torch.testing.assert_close(value, truth)


@BOTH
def test_gradients_of_all_moments(engine):
    centers = make_logits(40, spread=1.0, dimension=3).double()
    queries = make_logits(4, spread=1.0, dimension=3, seed=1).double().requires_grad_()
    field = engines.create(engine, centers, 0.8)
    torch.autograd.gradcheck(lambda q: field(q)[:3], queries)


floats = st.floats(-5, 5, allow_nan=False, width=32)
points = st.lists(st.tuples(floats, floats), min_size=1, max_size=8)


@pytest.mark.slow
@BOTH
@settings(max_examples=40, deadline=None)
@given(centers=points, queries=points, bandwidth=st.floats(0.2, 5), seed=st.integers(0, 99))
def test_invariance_to_shift_rotation_scale_and_repetition(
    engine, centers, queries, bandwidth, seed
):
    c = torch.tensor(centers, dtype=torch.float64)
    x = torch.tensor(queries, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(2, 2, generator=generator, dtype=torch.float64))
    shift = torch.randn(2, generator=generator, dtype=torch.float64)

    def K_and_density(x, c, sigma):
        found = moments(x, c, sigma, engine=engine)
        return curvature(found, sigma), found.log_density

    plain = K_and_density(x, c, bandwidth)
    assert (plain[1] <= 0).all()
    for changed in (
        K_and_density(x + shift, c + shift, bandwidth),
        K_and_density(x @ turn, c @ turn, bandwidth),
        K_and_density(17 * x, 17 * c, 17 * bandwidth),
        K_and_density(x, c.repeat(3, 1), bandwidth),
    ):
        for value, truth in zip(changed, plain, strict=True):
            torch.testing.assert_close(value, truth, rtol=1e-7, atol=1e-7)


FIELD = (torch.zeros(4, 3), 1.0)


@pytest.mark.parametrize(
    ("queries", "field", "message"),
    [
        (torch.zeros(2, 3), (torch.zeros(0, 3), 1.0), "centers must have shape (N, d)"),
        (torch.zeros(2, 3), (torch.zeros(4), 1.0), "centers must have shape (N, d)"),
        (torch.zeros(2, 4), FIELD, "queries must have shape (Q, 3), got (2, 4)"),
        (torch.zeros(3), FIELD, "queries must have shape (Q, 3), got (3,)"),
        (torch.zeros(2, 3), (FIELD[0], 0.0), "bandwidth must be a positive finite"),
        (torch.zeros(2, 3), (FIELD[0], float("nan")), "bandwidth must be a positive finite"),
        (torch.zeros(2, 3), (FIELD[0], True), "bandwidth must be a positive finite"),
        (torch.zeros(2, 3), (*FIELD, torch.zeros(5)), "shape (4,), one per centre"),
        (torch.zeros(2, 3), (*FIELD, torch.full((4,), -INF)), "All weights are zero"),
        (torch.zeros(2, 3), (*FIELD, torch.full((4,), float("nan"))), "contain NaN"),
        (torch.zeros(2, 3), (*FIELD, torch.zeros(4, device="meta")), "log_weights are on meta"),
        (torch.zeros(2, 3, device="meta"), FIELD, "queries are on meta, centers on cpu"),
    ],
)
@BOTH
def test_invalid_fields_and_queries_raise(engine, queries, field, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        moments(queries, *field, engine=engine)


def test_an_unknown_engine_raises_with_the_nearest_name():
    with pytest.raises(QIPFInputError, match="Did you mean 'attention'"):
        engines.create("atention", torch.zeros(1, 1), 1.0)


def test_blocks_cover_all_rows_once():
    assert list(blocks(0, 3)) == []
    assert [part.stop - part.start for part in blocks(7, 3)] == [3, 3, 1]
