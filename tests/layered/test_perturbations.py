"""Perturbations are seeded, bounded, nothing at strength 0, and as strong as requested."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf.layered.perturbations import (
    FOR_ALL,
    FOR_IMAGES,
    FOR_TOKENS,
    blur,
    coarsen,
    drop,
    drop_tokens,
    dropout,
    fade,
    families,
    hole,
    noise,
    perturbed,
    replace_tokens,
    shift,
    strengths,
    swap_tokens,
    text_of,
    tone,
    warp,
)

IMAGES = torch.rand(12, 3, 8, 6, generator=torch.Generator().manual_seed(0))
TABLE = torch.rand(12, 5, generator=torch.Generator().manual_seed(0))
TOKENS = torch.rand(12, 7, 5, generator=torch.Generator().manual_seed(0))
KINDS = [
    *((family, IMAGES) for family in FOR_IMAGES.values()),
    *((family, rows) for family in FOR_ALL.values() for rows in (TABLE, TOKENS)),
]


#: Families that draw no random numbers; families that recompute every number.
DETERMINISTIC, COMPUTED = (blur, fade, coarsen), (fade, tone, warp)


@pytest.mark.parametrize(("perturb", "inputs"), KINDS)
def test_strength_zero_is_the_input_itself(perturb, inputs):
    found = perturbed(inputs, perturb, 0.0, 3)
    if perturb in COMPUTED:
        torch.testing.assert_close(found, inputs, atol=2e-6, rtol=0)
    else:
        assert torch.equal(found, inputs)


@pytest.mark.parametrize(("perturb", "inputs"), KINDS)
@pytest.mark.parametrize("t", [0.3, 1.0])
def test_seeded_and_within_the_range(perturb, inputs, t):
    found = perturbed(inputs, perturb, t, 3)
    assert torch.equal(found, perturbed(inputs, perturb, t, 3))
    assert found.shape == inputs.shape
    assert found.dtype == inputs.dtype
    assert not torch.equal(found, inputs)
    assert inputs.min() <= found.min()
    assert found.max() <= inputs.max()
    other = perturbed(inputs, perturb, t, 4)
    if perturb in DETERMINISTIC:
        assert torch.equal(found, other)
    elif t < 1:  # then every pixel is dropped, and the hole is everywhere
        assert not torch.equal(found, other)


def test_families_fit_the_shape():
    more = {"blur", "hole", "shift", "fade", "tone", "warp", "coarsen"}
    assert set(families(IMAGES)) == {"noise", "drop", *more}
    assert set(families(TABLE)) == set(families(TOKENS)) == {"noise", "drop"}


SHAPES = [(3, 1, 9, 9), (2, 3, 4, 11), (4, 1, 1, 1), (2, 2, 1, 7), (1, 1, 2, 2), (2, 1, 33, 5)]


@pytest.mark.parametrize("name", FOR_IMAGES)
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.floats(0, 1),
    st.integers(0, 2**32),
    st.sampled_from([(0, 1), (-3.5, 2.0), (0, 255), (1e-30, 1e-30), (-1e6, 1e6)]),
)
def test_images_of_any_shape_and_range_stay_images(name, shape, t, seed, ends):
    random = np.random.RandomState(seed % 1000)
    images = torch.from_numpy(random.uniform(*ends, size=shape)).float()
    found = perturbed(images, FOR_IMAGES[name], t, seed)
    assert found.shape == images.shape
    assert torch.isfinite(found).all()
    assert images.min() <= found.min()
    assert found.max() <= images.max()


@pytest.mark.parametrize("name", FOR_IMAGES)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.3, 255.0])
@pytest.mark.parametrize("shape", [(3, 1, 8, 6), (2, 3, 1, 1)])
def test_constant_images_stay_what_they_are(name, value, shape):
    constant = torch.full(shape, value)
    for t in (0.0, 0.4, 1.0):
        assert torch.equal(perturbed(constant, FOR_IMAGES[name], t, 3), constant)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FOR_IMAGES)
def test_numbers_keep_their_type(name, dtype):
    images = IMAGES.to(dtype)
    found = perturbed(images, FOR_IMAGES[name], 0.5, 3)
    assert found.dtype == dtype
    expected = perturbed(images.double(), FOR_IMAGES[name], 0.5, 3)
    torch.testing.assert_close(found.double(), expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("name", FOR_IMAGES)
def test_bytes_are_rounded(name):
    images = (255 * IMAGES).round()
    found = perturbed(images.to(torch.uint8), FOR_IMAGES[name], 0.5, 3)
    expected = perturbed(images, FOR_IMAGES[name], 0.5, 3).round()
    assert torch.equal(found, expected.to(torch.uint8))


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1), st.integers(0, 1000))
def test_a_shift_moves_pixels_and_loses_none(t, seed):
    moved = perturbed(IMAGES, shift, t, seed)
    for channel in range(3):
        for before, after in zip(IMAGES[:, channel], moved[:, channel], strict=True):
            assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)


def test_a_shift_is_a_roll():
    moved = perturbed(IMAGES, shift, 0.7, 1)
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


@pytest.mark.parametrize("t", [0.25, 1.0])
def test_a_fade_keeps_the_mean_and_loses_contrast(t):
    images, axes = IMAGES.double(), (1, 2, 3)
    found = fade(images, t, torch.Generator())
    torch.testing.assert_close(found.mean(axes), images.mean(axes))
    torch.testing.assert_close(found.std(axes), (1 - t) * images.std(axes), atol=1e-12, rtol=1e-9)


def test_tones_are_powers_of_what_they_were():
    """In the range from 0 to 1: up to the sixth power, or the sixth root, for a whole image."""
    images = IMAGES.double().clone()
    images[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    found = tone(images, 0.4, torch.Generator().manual_seed(0))
    darker = [torch.allclose(new, old**3) for new, old in zip(found, images, strict=True)]
    lighter = [torch.allclose(new, old ** (1 / 3)) for new, old in zip(found, images, strict=True)]
    assert [one != other for one, other in zip(darker, lighter, strict=True)] == [True] * 12
    assert any(darker)
    assert any(lighter)
    for end in (images.min(), images.max()):
        torch.testing.assert_close(found[images == end], images[images == end])
    torch.testing.assert_close(
        tone(7 * images - 3, 0.4, torch.Generator().manual_seed(0)), 7 * found - 3
    )
    most = tone(images, 1.0, torch.Generator().manual_seed(0))
    torch.testing.assert_close(most[darker], images[darker] ** 6)


@pytest.mark.parametrize("axis", [2, 3])
def test_a_warp_moves_pixels_smoothly(axis):
    """A ramp tells how far: its numbers are places, here in widths of the image."""
    size, t = 64, 0.2
    places = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    view = (1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1)
    ramp = places.view(view).expand(40, 1, size, size).contiguous()
    moved = (warp(ramp, t, torch.Generator().manual_seed(0)) - ramp)[:, :, 16:-16, 16:-16]
    assert 0.1 * t < float(moved.std()) < 0.3 * t
    assert float(moved.diff(dim=2).abs().max()) < 0.5 * t / 4
    assert float(moved.mean().abs()) < 0.1 * t  # neither way more than the other


def test_a_warp_moves_all_channels_together():
    one = IMAGES[:, :1]
    found = warp(one.repeat(1, 3, 1, 1), 0.5, torch.Generator().manual_seed(0))
    for channel in found.unbind(1):
        torch.testing.assert_close(channel, warp(one, 0.5, torch.Generator().manual_seed(0))[:, 0])


def test_what_is_coarse_has_blocks_of_their_mean():
    found = coarsen(IMAGES, 0.5, torch.Generator())
    for row in range(0, 8, 2):
        for column in range(0, 6, 2):
            block = IMAGES[:, :, row : row + 2, column : column + 2].mean((2, 3), keepdim=True)
            got = found[:, :, row : row + 2, column : column + 2]
            torch.testing.assert_close(got, block.expand(-1, -1, 2, 2))
    torch.testing.assert_close(coarsen(found, 0.5, torch.Generator()), found)


def test_two_by_two_pixels_are_left_at_least():
    found = coarsen(IMAGES, 1.0, torch.Generator())
    assert all(len(channel.unique()) == 4 for image in found for channel in image)
    line = IMAGES[:, :, :1]
    assert torch.equal(coarsen(line, 0.0, torch.Generator()), line)
    assert coarsen(line, 1.0, torch.Generator()).shape == line.shape


def test_noise_is_as_large_as_it_says():
    inputs = torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    added = noise(inputs, 0.25, torch.Generator().manual_seed(1)) - inputs
    assert float(added.std() / inputs.std()) == pytest.approx(0.5, abs=0.02)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_strengths_never_fall_as_less_is_kept(seed):
    """Even where the accuracy goes up and down with the strength."""

    def accuracy(t):
        random = torch.Generator().manual_seed(seed + int(1e6 * t))
        return float(torch.rand((), generator=random))

    found = list(strengths(accuracy, chance=0.0, kept=(0.9, 0.7, 0.5, 0.2)))
    assert found == sorted(found)


def test_strengths_bisect_what_is_known():
    """An accuracy linear in the strength."""
    found = list(strengths(lambda t: 1 - t, 0.2, kept=(0.9, 0.5, 0.0)))
    # accuracy 0.2 + share · 0.8 is reached at t = 0.8 · (1 - share)
    assert found == pytest.approx([0.08, 0.4, 0.8], abs=2**-7)


def test_a_harmless_family_reaches_full_strength():
    found = list(strengths(lambda t: 1.0, 0.1, kept=(0.9, 0.5)))
    assert found == pytest.approx([1.0, 1.0], abs=2**-7)


def test_an_accuracy_that_is_just_kept_is_kept():
    """Half of the examples are right at any strength: as many as are wanted."""
    (found,) = strengths(lambda t: 0.5 if t else 1.0, 0.0, kept=(0.5,))
    assert found > 0.99


def test_features_of_other_scales_are_perturbed_by_their_own():
    """As if every feature had been measured in other units."""
    scales = torch.tensor([1.0, 1000.0, 1e-3, 1.0, 50.0])
    table = torch.rand(200, 5, generator=torch.Generator().manual_seed(4))
    for perturb in FOR_ALL.values():
        plain = perturbed(table, perturb, 0.4, 1)
        torch.testing.assert_close(perturbed(table * scales, perturb, 0.4, 1), plain * scales)
    changed = (perturbed(table, noise, 0.1, 1) - table).std(0) / table.std(0)
    assert ((changed > 0.15) & (changed < 0.25)).all()


START, END, PAD = 1, 2, 0


def texts(count=40, longest=9, seed=0):
    """Texts of different lengths between a start and an end, padded."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 30, (count, longest), generator=random)
    length = torch.randint(4, longest + 1, (count, 1), generator=random)
    places = torch.arange(longest)
    ids[:, 0] = START
    ids = torch.where(places == length - 1, END, torch.where(places >= length, PAD, ids))
    return text_of(ids, ids != PAD)


def contents(text):
    return [ids[inside].tolist() for ids, inside in zip(text.ids, text.content, strict=True)]


def test_the_content_of_a_text_is_without_its_ends_and_padding():
    text = texts()
    assert torch.equal(text.content, text.ids > END)
    assert torch.equal(text.seen, text.ids != PAD)
    # padding on the left, and texts that start or end in different tokens
    left = text_of(text.ids.flip(1), text.seen.flip(1))
    assert torch.equal(left.content, text.content.flip(1))
    ids = torch.tensor([[5, 6], [7, 8]])
    assert text_of(ids, torch.ones(2, 2)).content.all()
    assert text_of(ids[:1], torch.ones(1, 2)).content.all()  # one text has nothing in common


@pytest.mark.parametrize("perturb", FOR_TOKENS.values())
def test_token_families_are_seeded_and_nothing_at_strength_zero(perturb):
    text = texts()
    same = perturb(text, 0.0, torch.Generator().manual_seed(1))
    assert all(torch.equal(part, before) for part, before in zip(same, text, strict=True))
    one, two, other = (perturb(text, 0.5, torch.Generator().manual_seed(s)).ids for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert not torch.equal(one, text.ids)
    assert one.dtype == text.ids.dtype
    assert (one[:, 0] == START).all()
    assert torch.isin(one, text.ids).all()


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.integers(0, 1000))
def test_dropped_tokens_leave_the_others_in_order(t, seed):
    text = texts(seed=seed)
    found = drop_tokens(text, t, torch.Generator().manual_seed(seed))
    for left, before, seen, ids in zip(
        contents(found), contents(text), found.seen, found.ids, strict=True
    ):
        assert 1 <= len(left) <= len(before)
        others = iter(before)
        assert all(token in others for token in left)  # a subsequence
        assert int(seen.sum()) == len(left) + 2
        assert ids[int(seen.sum()) - 1] == END
        assert (ids[~seen] == PAD).all()


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.integers(0, 1000))
def test_swapped_tokens_are_the_same_ones(t, seed):
    text = texts(seed=seed)
    found = swap_tokens(text, t, torch.Generator().manual_seed(seed))
    for after, before in zip(contents(found), contents(text), strict=True):
        assert sorted(after) == sorted(before)
    outside = ~text.content
    assert torch.equal(found.ids[outside], text.ids[outside])


def test_replaced_tokens_are_a_share_of_all():
    text = texts(count=2000)
    found = replace_tokens(text, 0.3, torch.Generator().manual_seed(0))
    changed = (found.ids != text.ids)[text.content].double().mean()
    assert float(changed) == pytest.approx(0.3 * (1 - 1 / 27), abs=0.02)
    assert torch.equal(found.ids[~text.content], text.ids[~text.content])
    empty = text_of(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3))
    assert replace_tokens(empty, 1.0, torch.Generator()) is empty


def test_dropout_sets_a_share_to_zero():
    values = torch.ones(50, 20, 8)
    found = dropout(values, 0.25, torch.Generator().manual_seed(0))
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert float((found == 0).double().mean()) == pytest.approx(0.25, abs=0.02)
