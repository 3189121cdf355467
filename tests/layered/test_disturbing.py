"""Disturbances: seeded, bounded, nothing at strength 0, and as strong as asked for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf.layered.disturbing import (
    FOR_ALL,
    FOR_IMAGES,
    blur,
    disturbed,
    drop,
    families,
    hole,
    noise,
    shift,
    strengths,
)

IMAGES = torch.rand(12, 3, 8, 6, generator=torch.Generator().manual_seed(0))
TABLE = torch.rand(12, 5, generator=torch.Generator().manual_seed(0))
TOKENS = torch.rand(12, 7, 5, generator=torch.Generator().manual_seed(0))
KINDS = [
    *((family, IMAGES) for family in FOR_IMAGES.values()),
    *((family, rows) for family in FOR_ALL.values() for rows in (TABLE, TOKENS)),
]


@pytest.mark.parametrize(("disturb", "inputs"), KINDS)
def test_strength_zero_is_the_input_itself(disturb, inputs):
    assert torch.equal(disturbed(inputs, disturb, 0.0, 3), inputs)


@pytest.mark.parametrize(("disturb", "inputs"), KINDS)
@pytest.mark.parametrize("t", [0.3, 1.0])
def test_seeded_and_within_the_range(disturb, inputs, t):
    found = disturbed(inputs, disturb, t, 3)
    assert torch.equal(found, disturbed(inputs, disturb, t, 3))
    assert found.shape == inputs.shape
    assert found.dtype == inputs.dtype
    assert not torch.equal(found, inputs)
    assert inputs.min() <= found.min()
    assert found.max() <= inputs.max()
    if disturb is not blur:  # which has no luck in it
        assert not torch.equal(found, disturbed(inputs, disturb, t, 4)) or t == 1.0


def test_families_fit_the_shape():
    assert set(families(IMAGES)) == {"noise", "drop", "blur", "hole", "shift"}
    assert set(families(TABLE)) == set(families(TOKENS)) == {"noise", "drop"}


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.integers(0, 1000))
def test_a_shift_moves_pixels_and_loses_none(t, seed):
    moved = disturbed(IMAGES, shift, t, seed)
    for channel in range(3):
        for before, after in zip(IMAGES[:, channel], moved[:, channel], strict=True):
            assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)


def test_a_shift_is_a_roll():
    moved = disturbed(IMAGES, shift, 0.7, 1)
    rolls = [IMAGES[0].roll((a, b), (1, 2)) for a in range(8) for b in range(6)]
    assert any(torch.equal(moved[0], rolled) for rolled in rolls)


@pytest.mark.parametrize("t", [0.1, 0.5, 1.0])
def test_a_blur_keeps_what_is_constant_and_flattens_the_rest(t):
    constant = torch.full((2, 1, 8, 6), 0.7)
    random = torch.Generator()
    torch.testing.assert_close(blur(constant, t, random), constant)
    assert blur(IMAGES, t, random).var() < IMAGES.var()


def test_a_hole_is_a_square_of_the_mean():
    t, inputs = 0.5, IMAGES.double()
    found = hole(inputs, t, torch.Generator().manual_seed(0))
    changed = (found != inputs).any(1)
    for one in changed:
        rows, columns = one.any(1), one.any(0)
        assert torch.equal(one, rows[:, None] & columns)
        assert (int(rows.sum()), int(columns.sum())) == (4, 3)
    mean = inputs.mean((0, 2, 3))[:, None].expand(-1, int(changed.sum()))
    torch.testing.assert_close(found.permute(1, 0, 2, 3)[:, changed], mean)
    assert (hole(inputs, 1.0, torch.Generator()).std((0, 2, 3)) < 1e-12).all()


def test_a_drop_takes_whole_pixels_of_images_and_numbers_of_tables():
    images = drop(IMAGES, 0.4, torch.Generator().manual_seed(0))
    lost = images != IMAGES
    assert torch.equal(lost.all(1), lost.any(1))
    assert 0.3 < float(lost.any(1).float().mean()) < 0.5
    table = drop(TABLE, 1.0, torch.Generator())
    torch.testing.assert_close(table, TABLE.mean(0).expand_as(TABLE))


def test_noise_is_as_large_as_it_says():
    inputs = torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    added = noise(inputs, 0.25, torch.Generator().manual_seed(1)) - inputs
    assert float(added.std() / inputs.std()) == pytest.approx(0.5, abs=0.02)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_strengths_never_fall_as_less_is_kept(seed):
    """Even where the accuracy goes up and down with the strength."""

    def accuracy(shown):
        random = torch.Generator().manual_seed(seed + int(1e4 * float(shown.sum())))
        return float(torch.rand((), generator=random))

    found = strengths(accuracy, TABLE, noise, chance=0.0, seed=0, kept=(0.9, 0.7, 0.5, 0.2))
    assert found == sorted(found)


def test_strengths_bisect_what_is_known():
    """A disturbance whose strength is told by its first number, and an accuracy linear in it."""

    def mark(inputs, t, random):
        return torch.cat([torch.tensor([[t, 0.0]]), inputs[1:]])

    inputs = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    found = strengths(
        lambda shown: 1 - float(shown[0, 0]), inputs, mark, 0.2, seed=0, kept=(0.9, 0.5, 0.0)
    )
    # accuracy 0.2 + share · 0.8 is reached at t = 0.8 · (1 - share)
    assert found == pytest.approx([0.08, 0.4, 0.8], abs=2**-7)


def test_a_family_that_does_no_harm_is_turned_up_to_the_end():
    found = strengths(lambda shown: 1.0, TABLE, noise, 0.1, seed=0, kept=(0.9, 0.5))
    assert found == pytest.approx([1.0, 1.0], abs=2**-7)
