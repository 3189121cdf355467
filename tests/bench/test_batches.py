from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from qipf.bench.batches import SHIFT, Batches, shifted_and_flipped


def images(count: int = 10) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (count, 2, 6, 5), generator=generator).to(torch.uint8)


def drawn(count: int, batch_size: int, seed: int = 0, augment: bool = False) -> Batches:
    batches = Batches(images(count), torch.arange(count), batch_size, seed, augment)
    batches.draw(0)
    return batches


def test_an_epoch_is_a_new_order_of_all_examples():
    batches = drawn(50, 10, seed=3)
    first = batches.order.clone()
    assert torch.equal(first.sort().values, torch.arange(50))
    batches.draw(1)
    assert not torch.equal(batches.order, first)
    batches.draw(0)
    assert torch.equal(batches.order, first)
    assert not torch.equal(drawn(50, 10, seed=4).order, first)


def test_shifts_and_flips_cover_their_range_evenly():
    batches = drawn(9_000, 10, augment=True)
    for axis in range(2):
        counts = batches.shift[:, axis].bincount(minlength=9)
        assert counts.shape == (2 * SHIFT + 1,)
        assert counts.min() > 850
    assert batches.flip.double().mean().item() == pytest.approx(0.5, abs=0.03)


def test_batches_follow_the_order_and_leave_out_the_rest():
    batches = drawn(10, 4)
    assert batches.steps == 2
    for step in range(2):
        inputs, classes = batches(torch.tensor([step]))
        chosen = batches.order[4 * step : 4 * step + 4]
        assert torch.equal(classes, chosen)
        assert torch.equal(inputs, images()[chosen].float() / 255)
    assert drawn(10, 99).size == 10


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


def test_augmented_batches_use_the_drawn_shifts():
    batches = drawn(6, 3, augment=True)
    inputs, _ = batches(torch.tensor([1]))
    assert inputs.shape == (3, 2, 6, 5)
    for place in range(3, 6):
        down, across = batches.shift[place].tolist()
        image = images(6)[batches.order[place]]
        expected = moved(image, down, across, bool(batches.flip[place]))
        assert torch.equal(inputs[place - 3], expected.float() / 255)
