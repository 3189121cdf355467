from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from qipf.bench.learning import (
    SHIFT,
    Batches,
    BatchStack,
    Stack,
    Steps,
    cut_out,
    one_cycle,
    shifted_and_flipped,
)
from qipf.bench.methods.network import seeded
from qipf.bench.networks import DigitsMLP


@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_the_rate_rises_to_its_peak_and_falls(steps):
    rates = one_cycle(steps, peak=0.5)
    assert rates.shape == (steps,)
    assert (rates > 0).all()
    assert (rates <= 0.5).all()
    assert rates[0].item() == pytest.approx(0.02)
    top = int(rates.argmax())
    assert (rates[: top + 1].diff() > 0).all()
    assert (rates[top:].diff() < 0).all()


def test_the_rate_is_a_line_then_a_cosine():
    rates = one_cycle(1000, peak=1.0)
    assert rates[150].item() == pytest.approx(0.52)
    assert rates[300].item() == 1.0
    assert rates[650].item() == pytest.approx(0.5)
    assert rates[999].item() < 1e-4


def steps_of(network: nn.Module, penalty: Callable[[], torch.Tensor] | None = None) -> Steps:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(24, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 3, (24,), generator=generator)
    batches = Batches(images, labels, 8, seed=5)
    batches.draw(0)
    return Steps(network, batches, one_cycle(30, 0.01), penalty)


def test_a_step_is_adams_step_on_the_mean_cross_entropy():
    with seeded("cpu", 0):
        network = DigitsMLP(1, 3, 8)
    reference = copy.deepcopy(network)
    steps = steps_of(network)
    optimiser = torch.optim.Adam(reference.parameters())
    for number in range(5):
        inputs, labels = steps.batches(torch.tensor([number % 3]))
        optimiser.param_groups[0]["lr"] = one_cycle(30, 0.01)[number].item()
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(inputs), labels).backward()
        optimiser.step()
        steps()
    for learned, expected in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(learned, expected, rtol=1e-4, atol=1e-6)


def test_a_resumed_training_makes_the_same_steps():
    with seeded("cpu", 0):
        whole = DigitsMLP(1, 3, 8)
    steps = steps_of(whole)
    for _ in range(4):
        steps()
    half = copy.deepcopy(whole)
    state = copy.deepcopy(steps.adam.state_dict())
    again = steps_of(half)
    again.resume(4, state)
    for _ in range(3):
        steps()
        again()
    assert int(again.number) == 7
    for one, other in zip(whole.parameters(), half.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_penalty_is_added_to_the_loss():
    with seeded("cpu", 0):
        plain = DigitsMLP(1, 3, 8)
    added = copy.deepcopy(plain)
    steps = [steps_of(plain), steps_of(added, lambda: added.head.weight.square().sum())]
    squares = added.head.weight.detach().square().sum().item()
    for step in steps:
        step()
    assert float(steps[1].loss - steps[0].loss) == pytest.approx(squares, rel=1e-5)
    assert not torch.equal(plain.head.weight, added.head.weight)
    assert torch.equal(plain.body[2].weight, added.body[2].weight)


def test_gradients_take_their_parameters_layout():
    """Fused Adam reads both in memory order; a transposed gradient would be taken wrongly."""
    with seeded("cpu", 0):
        network = nn.Sequential(Transposed(64, 3))
    steps = steps_of(network)
    steps()
    first = -steps.adam.param_groups[0]["lr"] * network[0].weight.grad.sign()
    with seeded("cpu", 0):
        start = nn.Sequential(Transposed(64, 3))[0].weight
    # Adam's first step is the rate times the sign of the gradient
    torch.testing.assert_close(network[0].weight - start, first, rtol=1e-3, atol=1e-6)


class Transposed(nn.Module):
    """A dense layer whose weight's gradient comes out transposed in memory."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ self.weight.T


def test_counts_are_means_since_the_restart():
    with seeded("cpu", 0):
        steps = steps_of(DigitsMLP(1, 3, 8))
    steps()
    steps.restart_counts()
    steps()
    accuracy, loss = steps.accuracy_and_loss(1)
    assert accuracy == int(steps.correct) / 8
    assert loss == float(steps.loss)
    assert 0.5 < loss < 2


def test_stacked_networks_have_dropout_of_their_own():
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)).train()
    stack = Stack([network, copy.deepcopy(network)])
    inputs = torch.rand(2, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with seeded("cpu", 0):
        one, other = stack(torch.stack([inputs[0], inputs[0]]))
    assert not torch.allclose(one, other)


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


def test_a_grey_square_is_cut_out_about_its_middle():
    images = torch.ones(3, 2, 6, 6)
    middle = torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.99, 0.5]])
    found = cut_out(images, middle, side=2)
    grey = [(image[0] == 0.5).nonzero().tolist() for image in found]
    assert grey[0] == [[2, 2], [2, 3], [3, 2], [3, 3]]
    assert grey[1] == [[0, 0]]
    assert grey[2] == [[4, 2], [4, 3], [5, 2], [5, 3]]
    assert torch.equal(found[:, 0], found[:, 1])


def test_squares_are_drawn_anew_each_epoch():
    images, labels = torch.ones(40, 1, 8, 8), torch.zeros(40).long()
    batches = Batches(images, labels, 40, seed=0, augment=True, cutout=4)
    shown = []
    for epoch in (0, 1, 0):
        batches.draw(epoch)
        shown.append(batches(torch.zeros(1).long())[0])
    assert torch.equal(shown[0], shown[2])
    assert not torch.equal(shown[0], shown[1])
    assert 0.02 < float((shown[0] == 0.5).double().mean()) < 0.26


def test_matrices_decay_and_biases_do_not():
    for networks in (1, 2):
        network = torch.nn.Linear(2, 2)
        stack = network if networks == 1 else Stack([network, torch.nn.Linear(2, 2)])
        one = Batches(torch.rand(4, 2), torch.zeros(4).long(), 4, seed=0)
        batches = one if networks == 1 else BatchStack([one, one])
        steps = Steps(stack, batches, torch.ones(1), networks=networks, weight_decay=0.5)
        decays = {
            parameter.ndim - (networks > 1): group["weight_decay"]
            for group in steps.adam.param_groups
            for parameter in group["params"]
        }
        assert decays == {2: 0.5, 1: 0.0}


def test_counts_are_means_over_several_steps():
    with seeded("cpu", 0):
        steps = steps_of(DigitsMLP(1, 3, 8))
    losses = []
    for _ in range(3):
        before = float(steps.loss)
        steps()
        losses.append(float(steps.loss) - before)
    accuracy, loss = steps.accuracy_and_loss(3)
    assert accuracy == int(steps.correct) / 24
    assert loss == pytest.approx(sum(losses) / 3)


def test_counts_of_a_stack_are_means_over_its_networks():
    with seeded("cpu", 0):
        steps = steps_of(DigitsMLP(1, 3, 8))
    steps._networks = 2
    steps.correct.fill_(12)
    steps.loss.fill_(6.0)
    assert steps.accuracy_and_loss(3) == (12 / (3 * 2 * 8), 1.0)


def test_correct_answers_are_those_before_the_step():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    nn.init.zeros_(network[1].weight)
    network[1].bias.data = torch.tensor([1.0, 0.0, 0.0])  # always the first class
    steps = steps_of(network)
    inputs, labels = steps.batches(steps.number)
    assert 0 < int((labels == 0).sum()) != 4
    expected = int((network(inputs).argmax(1) == labels).sum())
    steps()
    assert int(steps.correct) == expected
