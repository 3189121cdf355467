"""Online sums of kernels: one pass over tiles against the sums over all centres at once."""

import math

import pytest
import torch

from qipf.field.engines.online import highest, online_step, padded


@pytest.mark.parametrize("size", [1, 7, 64, 200, 1000])
def test_tiles_of_any_size_give_the_sums_of_all_centres(size):
    generator = torch.Generator().manual_seed(size)
    scores = 40 * torch.randn(1000, 5, generator=generator).double()
    values = torch.randn(1000, generator=generator).double()
    top, sums = torch.full((5,), -math.inf).double(), torch.zeros(2, 5).double()
    for tile, own in zip(scores.split(size), values.split(size), strict=True):
        kernel, lowered, top = online_step(tile.clone(), top)
        assert float(kernel.max()) <= 1.0
        sums = sums * lowered + torch.stack([kernel.sum(0), own @ kernel])
    torch.testing.assert_close(top, scores.amax(0))
    weights = torch.softmax(scores * math.log(2), 0)
    torch.testing.assert_close(sums[1] / sums[0], values @ weights)
    log_sum = torch.logsumexp(scores * math.log(2), 0) / math.log(2)
    torch.testing.assert_close(top + sums[0].log2(), log_sum)


def test_a_step_overwrites_the_scores():
    scores = torch.tensor([[3.0, -1.0], [5.0, -300.0]])
    kernel, lowered, top = online_step(scores, torch.full((2,), -math.inf))
    assert kernel.data_ptr() == scores.data_ptr()
    assert kernel.tolist() == [[0.25, 1.0], [1.0, 0.0]]
    assert lowered.tolist() == [0.0, 0.0]
    assert top.tolist() == [5.0, -1.0]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 200])
def test_the_highest_of_each_column(count):
    scores = torch.randn(count, 3, generator=torch.Generator().manual_seed(count))
    assert torch.equal(highest(scores), scores.amax(0))


@pytest.mark.parametrize(
    ("count", "whole"), [(0, 4), (1, 4), (4, 4), (5, 8), (8, 8), (9, 16), (16, 16), (17, 32)]
)
def test_rows_are_padded_to_a_multiple_of_four_or_sixteen(count, whole):
    found = padded(torch.ones(count, 3))
    assert found.shape == (whole, 3)
    assert found.sum().item() == 3 * count
