from __future__ import annotations

import re

import pytest
import torch

from qipf.bench.methods.network import fresh_copy, mixed_seed, predict, seeded, unit_range
from qipf.bench.networks import VGG3
from qipf.errors import QIPFInputError


def small_vgg() -> VGG3:
    with seeded("cpu", 0):
        return VGG3(channels=1, classes=3, size=8)


def test_predict_gives_logits_and_features_in_evaluation_mode_and_restores_the_mode():
    network = small_vgg().train()
    network.body[1].eval()  # a mode of its own, to be kept
    images = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    outputs = predict(network, images, batch_size=3)
    assert network.training
    assert not network.body[1].training
    network.eval()
    torch.testing.assert_close(outputs.logits, network(images))
    torch.testing.assert_close(outputs.features, network.features(images))
    torch.testing.assert_close(network.head(outputs.features), outputs.logits)
    assert not outputs.logits.requires_grad


def test_bytes_and_floats_of_the_same_image_predict_the_same():
    images = torch.randint(0, 256, (5, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    network = small_vgg()
    as_bytes = predict(network, images.to(torch.uint8)).logits
    torch.testing.assert_close(as_bytes, predict(network, images / 255).logits)


def test_no_images_give_no_rows():
    assert predict(small_vgg(), torch.zeros(0, 1, 8, 8)).logits.shape == (0, 3)


def test_a_fresh_copy_has_new_weights_of_the_same_shapes_and_keeps_the_original():
    network = small_vgg()
    network.train()(torch.rand(8, 1, 8, 8))  # moves the batch-norm statistics
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    copied = fresh_copy(network)
    assert not torch.equal(copied.head.weight, network.head.weight)
    assert not torch.equal(copied.body[1].weight, network.body[1].weight)
    assert torch.equal(copied.body[2].running_mean, torch.zeros(32))
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())


def test_integer_images_and_empty_batches_are_refused():
    message = (
        "images must be uint8 (0 to 255) or floating point (0 to 1); got torch.int64. Convert "
        "them with images.to(torch.uint8) or images.float()."
    )
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        unit_range(torch.zeros(1, dtype=torch.int64))
    with pytest.raises(QIPFInputError, match="batch_size must be at least 1; got 0"):
        predict(small_vgg(), torch.zeros(1, 1, 8, 8), batch_size=0)


def test_draws_follow_the_seed_and_the_outside_goes_on_undisturbed():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    with seeded("cpu", 1, 2):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(4), expected)
    with seeded("cpu", 1, 2):
        assert torch.equal(torch.rand(3), inside)
    with seeded("cpu", 2, 1):
        assert not torch.equal(torch.rand(3), inside)


def test_the_outside_is_restored_after_an_error():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    try:
        with seeded("cpu", 7):
            torch.rand(1)
            raise RuntimeError
    except RuntimeError:
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_mixed_seeds_fit_a_generator_and_do_not_collide():
    seeds = {mixed_seed(a, b) for a in range(40) for b in range(40)}
    assert len(seeds) == 1600
    assert all(0 <= seed < 2**63 for seed in seeds)
