"""Pseudo-outliers: partners of other classes, and what is made of which parts."""

import pytest
import torch

from qipf.layered.outliers import (
    FOR_ALL,
    FOR_IMAGES,
    interleave_texts,
    join_features,
    join_halves,
    join_texts,
    join_tiles,
    joinings,
    of_other_classes,
    shuffle_tiles,
)
from qipf.layered.perturbations import text_of


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_partners_are_of_other_classes_and_each_is_used_once(count):
    labels = torch.arange(60) % count
    others = of_other_classes(labels, generator())
    assert bool((labels[others] != labels).all())
    assert others.sort().values.tolist() == list(range(60))
    assert not torch.equal(others, of_other_classes(labels, generator(1)))


def test_partners_where_one_class_has_more_than_half_or_all():
    labels = torch.tensor([0, 0, 0, 1])
    assert int((labels[of_other_classes(labels, generator())] != labels).sum()) == 2
    assert of_other_classes(torch.zeros(1), generator()).tolist() == [0]


def image(n=20, height=8, width=8):
    """Every pixel has a number of its own."""
    return torch.arange(float(n * 2 * height * width)).view(n, 2, height, width)


@pytest.mark.parametrize("tiles", [2, 4])
def test_tiles_stay_whole_and_change_places(tiles):
    images = image()
    found = shuffle_tiles(images, images, generator(), tiles)
    side = 8 // tiles
    for before, after in zip(images, found, strict=True):
        cut = [part.unfold(1, side, side).unfold(2, side, side) for part in (before, after)]
        rows = [sorted(own.movedim(0, 2).flatten(0, 1).flatten(1).tolist()) for own in cut]
        assert rows[0] == rows[1]
    assert not torch.equal(images, found)


def test_what_is_left_over_stays_and_small_images_have_fewer_tiles():
    images = image(height=7, width=6)
    found = shuffle_tiles(images, images, generator(), 4)  # tiles of one pixel, 4 x 4
    assert torch.equal(found[:, :, 4:], images[:, :, 4:])
    assert torch.equal(found[:, :, :, 4:], images[:, :, :, 4:])
    assert not torch.equal(found, images)
    flat = image(height=1, width=6)
    assert torch.equal(shuffle_tiles(flat, flat, generator(), 4), flat)


def test_halves_are_of_both_images():
    images = torch.zeros(40, 1, 4, 6)
    found = join_halves(images, images + 1, generator())
    right, lower = torch.zeros(1, 4, 6), torch.zeros(1, 4, 6)
    right[:, :, 3:], lower[:, 2:] = 1, 1
    kinds = [(torch.equal(one, right), torch.equal(one, lower)) for one in found]
    assert set(kinds) == {(True, False), (False, True)}


def test_tiles_and_features_of_two():
    images = torch.zeros(40, 3, 8, 8)
    found = join_tiles(images, images + 1, generator())
    tiles = found.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    assert bool((tiles == tiles[:, :1, ..., :1]).all())  # whole tiles, in all channels alike
    assert 0.4 < float(found.mean()) < 0.6
    rows = torch.zeros(500, 4)
    joined = join_features(rows, rows + 1, generator())
    assert set(joined.flatten().tolist()) == {0.0, 1.0}
    assert 0.45 < float(joined.mean()) < 0.55


def test_texts_keep_their_length_their_marks_and_their_padding():
    one = torch.tensor([[1, 5, 6, 7, 2, 0], [1, 8, 9, 2, 0, 0], [1, 3, 2, 0, 0, 0]])
    two = torch.tensor([[1, 11, 2, 0, 0, 0], [1, 12, 13, 14, 15, 2], [1, 2, 0, 0, 0, 0]])
    texts = text_of(one, one > 0), text_of(two, two > 0)
    joined, mixed = join_texts(*texts), interleave_texts(*texts)
    expected = [[1, 5, 6, 11, 2, 0], [1, 8, 15, 2, 0, 0], [1, 3, 2, 0, 0, 0]]
    assert joined.ids.tolist() == expected
    expected = [[1, 5, 11, 7, 2, 0], [1, 8, 13, 2, 0, 0], [1, 3, 2, 0, 0, 0]]
    assert mixed.ids.tolist() == expected
    for found in (joined, mixed):
        assert torch.equal(found.seen, texts[0].seen)


def test_a_text_is_joined_with_the_last_tokens_of_the_other_in_their_order():
    one, two = torch.arange(10, 18)[None], torch.arange(30, 38)[None]
    texts = text_of(one, one > 0), text_of(two, two > 0)
    assert join_texts(*texts).ids.tolist() == [[10, 11, 12, 13, 34, 35, 36, 37]]
    assert interleave_texts(*texts).ids.tolist() == [[10, 31, 12, 33, 14, 35, 16, 37]]


def test_another_text_without_content_changes_nothing():
    one, two = torch.tensor([[5, 6, 7, 8]]), torch.zeros(1, 4).long()
    texts = text_of(one, one > 0), text_of(two, two > 0)
    assert torch.equal(join_texts(*texts).ids, one)
    assert torch.equal(interleave_texts(*texts).ids, one)


def test_kinds_by_shape():
    assert joinings(torch.zeros(2, 3)) is FOR_ALL
    assert joinings(torch.zeros(2, 3, 4, 4)) is FOR_IMAGES
