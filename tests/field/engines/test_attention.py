"""The layout of fused attention calls, and their gradients."""

import pytest
import torch

from qipf.field import engines
from qipf.field.bandwidth import silverman
from qipf.field.engines.attention import AttentionEngine, differentiable_averages
from qipf.field.engines.base import blocks
from tests.conftest import make_logits
from tests.field.engines.test_fused import assert_accurate


def test_both_precisions_are_fused_on_the_cpu():
    engine = AttentionEngine(make_logits(5), 1.0)
    assert engine.supports(torch.float32)
    assert engine.supports(torch.float64)


@pytest.mark.parametrize("dimension", [1, 2, 13, 14, 15, 16, 31, 62, 63])
def test_every_width_of_the_head(dimension):
    centers = make_logits(700, dimension=dimension)
    queries = make_logits(70, dimension=dimension, seed=1)
    assert_accurate(queries, centers, 2 * silverman(centers), torch.linspace(-3, 0, 700))


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [2, 10, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_does_not_depend_on_its_batch(dimension, dtype):
    centers = make_logits(3000, dimension=dimension).to(dtype)
    queries = make_logits(132, dimension=dimension, seed=1).to(dtype)
    field = engines.create("attention", centers, silverman(centers))
    whole = field(queries)
    for size in (1, 3, 31, 33, 66):
        parts = [field(queries[part])[:3] for part in blocks(132, size)]
        # float32 errors differ where only one of the two batches is recomputed in float64, and
        # where a processor multiplies batches of some sizes in another order
        tolerance = 3e-5 if dtype == torch.float32 else 1e-6
        for value, truth in zip(zip(*parts, strict=True), whole, strict=False):
            torch.testing.assert_close(torch.cat(value), truth, rtol=tolerance, atol=tolerance)


def test_differentiable_averages_and_their_gradients_are_those_of_softmax():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(24, 3, generator=generator).double()
    given = [torch.randn(7, *shape, generator=generator).double() for shape in ((3,), (), (3,), ())]
    keys, bias, values, squares = given
    scores = queries @ keys.T + bias
    found = differentiable_averages(queries, *given)
    torch.testing.assert_close(found.logsumexp, torch.logsumexp(scores, 1))
    torch.testing.assert_close(found.mean, torch.softmax(scores, 1) @ values)
    torch.testing.assert_close(found.mean_square, torch.softmax(scores, 1) @ squares)
    leaves = [part.requires_grad_() for part in given]
    assert torch.autograd.gradcheck(lambda *parts: differentiable_averages(queries, *parts), leaves)


def test_differentiable_averages_work_in_given_memory():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(5, 3, generator=generator)
    given = [torch.randn(7, *shape, generator=generator) for shape in ((3,), (), (3,), ())]
    keys = given[0].requires_grad_()
    memory = torch.full((2, 8 * 7), torch.nan)
    slopes = []
    for held in (None, memory, memory):
        found = differentiable_averages(queries, *given, held)
        slopes.append(torch.autograd.grad(sum(part.sum() for part in found), keys)[0])
    assert torch.equal(slopes[1], slopes[0])
    assert torch.equal(slopes[2], slopes[0])
    assert bool(memory[:, : 5 * 7].isfinite().all())
    assert bool(memory[:, 5 * 7 :].isnan().all())


def test_differentiable_averages_of_large_scores_are_finite():
    queries, keys = torch.tensor([[1e3], [-1e3]]), torch.tensor([[1.0], [-1.0]])
    zeros = torch.zeros(2, requires_grad=True)
    found = differentiable_averages(queries, keys, zeros, keys, zeros)
    assert found.logsumexp.tolist() == pytest.approx([1000.0, 1000.0], rel=1e-6)
    assert found.mean[:, 0].tolist() == [1.0, -1.0]
    (slope,) = torch.autograd.grad(found.logsumexp.sum(), zeros)
    assert slope.tolist() == [1.0, 1.0]
