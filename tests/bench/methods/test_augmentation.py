from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from qipf.bench.methods import Batch, CleanData, LayeredNetwork, create
from qipf.bench.methods.augmentation import augmented_images, augmented_tokens


def test_shifted_and_mirrored_copies():
    image = torch.arange(4.0).reshape(1, 1, 2, 2)
    copies = list(augmented_images(image, mirror=True))
    assert len(copies) == 10
    assert torch.equal(copies[0], image)
    assert torch.equal(copies[1], image.flip(-1))
    assert copies[4].flatten().tolist() == [0, 1, 0, 1]  # one down, the edge repeated
    assert copies[6].flatten().tolist() == [1, 1, 3, 3]  # one to the left
    assert len(list(augmented_images(image, mirror=False))) == 5
    large = torch.arange(32.0).expand(1, 1, 48, 32)  # a sixteenth of the shorter side: two pixels
    right = list(augmented_images(large, mirror=False))[4]
    assert right[0, 0, 0, :4].tolist() == [0, 0, 0, 1]


def test_copies_of_tokens_lack_some_and_follow_the_seed():
    tokens = torch.full((50, 20), 7)
    copies = list(augmented_tokens(tokens, seed=3))
    assert len(copies) == 10
    share = torch.stack([(copy == 0).double().mean() for copy in copies])
    assert bool(((share > 0.05) & (share < 0.15)).all())
    assert set(torch.stack(copies).unique().tolist()) == {0, 7}
    assert all(map(torch.equal, copies, augmented_tokens(tokens, seed=3)))
    assert not torch.equal(copies[0], next(augmented_tokens(tokens, seed=4)))


def test_the_score_is_that_of_the_mean_over_the_copies():
    network = LayeredNetwork([torch.nn.Flatten()], torch.nn.Linear(16, 3))
    images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    clean = CleanData(network, images, torch.zeros(6).long())
    found = create("tta_entropy").fit(clean).score(Batch.of(network, images))
    with torch.no_grad():
        drawn = [
            torch.softmax(network(copy).double(), 1) for copy in augmented_images(images, False)
        ]
    mean = torch.stack(drawn).mean(0)
    torch.testing.assert_close(found, -(mean * mean.log()).sum(1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("augment", "copies"), [(True, 10), (False, 5)])
def test_mirror_images_if_the_network_was_trained_on_them(augment, copies):
    network = LayeredNetwork([torch.nn.Flatten()], torch.nn.Linear(16, 3))
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    trainer = SimpleNamespace(recipe=SimpleNamespace(augment=augment))
    clean = CleanData(network, images, torch.zeros(2).long(), trainer=trainer)
    found = create("tta_entropy").fit(clean).score(Batch.of(network, images))
    expected = [network(copy) for copy in augmented_images(images, augment)]
    assert len(expected) == copies
    mean = torch.stack([torch.softmax(z.double(), 1) for z in expected]).mean(0)
    torch.testing.assert_close(found, -(mean * mean.log()).sum(1), rtol=1e-5, atol=1e-6)
