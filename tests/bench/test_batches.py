from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from qipf.bench.batches import SHIFT, Batches, Plan, shifted_and_flipped

CPU = torch.device("cpu")


def images(count: int = 10) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (count, 2, 6, 5), generator=generator).to(torch.uint8)


def test_an_epoch_is_a_new_order_of_all_examples():
    plan = Plan(3, 50, augment=False, device=CPU)
    plan.draw(0)
    first = plan.order.clone()
    assert torch.equal(first.sort().values, torch.arange(50))
    plan.draw(1)
    assert not torch.equal(plan.order, first)
    plan.draw(0)
    assert torch.equal(plan.order, first)
    other = Plan(4, 50, augment=False, device=CPU)
    other.draw(0)
    assert not torch.equal(other.order, first)


def test_shifts_and_flips_cover_their_range_evenly():
    plan = Plan(0, 9_000, augment=True, device=CPU)
    plan.draw(0)
    for axis in range(2):
        counts = plan.shift[:, axis].bincount(minlength=9)
        assert counts.shape == (2 * SHIFT + 1,)
        assert counts.min() > 850
    assert plan.flip.double().mean().item() == pytest.approx(0.5, abs=0.03)


def test_batches_follow_the_order_and_leave_out_the_rest():
    plan = Plan(0, 10, augment=False, device=CPU)
    plan.draw(0)
    given, labels = images(), torch.arange(10)
    batches = Batches(given, labels, plan, batch_size=4)
    assert batches.steps == 2
    for step in range(2):
        inputs, classes = batches(torch.tensor([step]))
        chosen = plan.order[4 * step : 4 * step + 4]
        assert torch.equal(classes, chosen)
        assert torch.equal(inputs, given[chosen].float() / 255)
    assert Batches(given, labels, plan, batch_size=99).size == 10


def moved(image: torch.Tensor, down: int, across: int, flip: bool) -> torch.Tensor:
    """Pixel by pixel, what the gather does at once."""
    _, height, width = image.shape
    result = torch.zeros_like(image)
    for i in range(height):
        for j in range(width):
            source = width - 1 - j if flip else j
            y, x = i + down - SHIFT, source + across - SHIFT
            if 0 <= y < height and 0 <= x < width:
                result[:, i, j] = image[:, y, x]
    return result


def test_the_gather_shifts_flips_and_fills_with_black():
    given = images(3)
    padded = functional.pad(given, [SHIFT] * 4).movedim(1, -1)
    cases = [(SHIFT, SHIFT, False), (0, 2 * SHIFT, False), (5, 3, True), (8, 0, True)]
    chosen = torch.tensor([0, 1, 2, 1])
    shift = torch.tensor([[down, across] for down, across, _ in cases])
    flip = torch.tensor([flipped for *_, flipped in cases])
    result = shifted_and_flipped(padded, chosen, shift, flip)
    for row, index, case in zip(result, chosen, cases, strict=True):
        assert torch.equal(row, moved(given[index], *case))
    assert torch.equal(result[0], given[0])


def test_augmented_batches_use_the_plans_shifts():
    plan = Plan(0, 6, augment=True, device=CPU)
    plan.draw(2)
    given = images(6)
    inputs, _ = Batches(given, torch.arange(6), plan, batch_size=3)(torch.tensor([1]))
    assert inputs.shape == (3, 2, 6, 5)
    for place in range(3, 6):
        down, across = plan.shift[place].tolist()
        expected = moved(given[plan.order[place]], down, across, bool(plan.flip[place]))
        assert torch.equal(inputs[place - 3], expected.float() / 255)
