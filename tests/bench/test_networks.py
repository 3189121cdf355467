from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from qipf.bench.networks import NETWORKS, VGG3, Centre, DigitsMLP, LeNet, Recipe, build
from qipf.errors import QIPFInputError

SHAPES = [("lenet", 1, 28, 84), ("lenet", 3, 32, 84), ("vgg3", 3, 32, 128), ("mlp", 1, 8, 64)]


@pytest.mark.parametrize(("name", "channels", "size", "width"), SHAPES)
def test_images_become_features_and_logits(name, channels, size, width):
    network, _ = build(name, channels, 10, size)
    network.eval()
    images = torch.rand(3, channels, size, size, generator=torch.Generator().manual_seed(0))
    features = network.features(images)
    assert features.shape == (3, width)
    assert network(images).shape == (3, 10)
    assert torch.equal(network.head(features), network(images))


def layers(network: nn.Module, kind: type) -> list:
    return [layer for layer in network.modules() if isinstance(layer, kind)]


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_lenet_is_the_designs(channels, size):
    network = LeNet(channels, 10, size)
    kernels = [tuple(c.weight.shape) for c in layers(network, nn.Conv2d)]
    assert kernels == [(6, channels, 5, 5), (16, 6, 5, 5)]
    dense = [(layer.in_features, layer.out_features) for layer in layers(network, nn.Linear)]
    assert dense == [(400, 120), (120, 84), (84, 10)]
    assert len(layers(network, nn.Tanh)) == 4
    assert len(layers(network, nn.AvgPool2d)) == 2
    assert {layer.p for layer in layers(network, nn.Dropout)} == {0.0}


def test_vgg3_is_the_designs():
    network = VGG3(3, 10, 32)
    kernels = [tuple(c.weight.shape) for c in layers(network, nn.Conv2d)]
    filters = [(32, 3), (32, 32), (64, 32), (64, 64), (128, 64), (128, 128)]
    assert kernels == [(out, given, 3, 3) for out, given in filters]
    assert [b.num_features for b in layers(network, nn.BatchNorm2d)] == [32, 32, 64, 64, 128, 128]
    dense = [(layer.in_features, layer.out_features) for layer in layers(network, nn.Linear)]
    assert dense == [(2048, 128), (128, 10)]
    assert len(layers(network, nn.MaxPool2d)) == 3
    assert len(layers(network, nn.Dropout)) == 4
    assert all(layer.p > 0 for layer in layers(network, nn.Dropout))


def test_the_first_layer_spreads_the_images():
    assert Centre()(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-1.0, 0.0, 1.0]
    assert all(isinstance(build(n, c, 10, s)[0].body[0], Centre) for n, c, s, _ in SHAPES)


def test_the_seed_draws_the_weights():
    first, again, other = (build("mlp", 1, 10, 8, seed)[0].head.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_recipes_are_those_of_the_published_results():
    """Epochs, batch size, peak rate, augmentation, bfloat16, dropout rate (the paper's)."""
    small = ("lenet", "vgg3", "mlp")
    assert {name: NETWORKS[name][1] for name in small} == {
        "lenet": Recipe(20, 128, 2e-3, augment=False, bfloat16=False, dropout_rate=0.1),
        "vgg3": Recipe(40, 256, 3e-3, augment=True, bfloat16=True, dropout_rate=0.2),
        "mlp": Recipe(40, 64, 2e-3, augment=False, bfloat16=False, dropout_rate=0.1),
    }


def test_digits_network_takes_other_shapes():
    assert DigitsMLP(3, 4, 5)(torch.rand(2, 3, 5, 5)).shape == (2, 4)


@pytest.mark.parametrize(
    ("make", "size", "message"),
    [
        (LeNet, 11, "LeNet needs images of at least 12×12 pixels; got size=11."),
        (VGG3, 7, "VGG3 needs images of at least 8×8 pixels; got size=7."),
        (DigitsMLP, 0, "DigitsMLP needs images of at least 1×1 pixels; got size=0."),
    ],
)
def test_too_small_images_are_refused(make, size, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        make(1, 10, size)


def test_the_smallest_images_work():
    assert LeNet(1, 10, 12)(torch.rand(1, 1, 12, 12)).shape == (1, 10)
    assert VGG3(1, 10, 8).eval()(torch.rand(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be positive; got 0."),
        ({"epochs": 1, "batch_size": 0}, "batch_size must be positive; got 0."),
        ({"epochs": 1, "learning_rate": -1.0}, "learning_rate must be positive; got -1.0."),
        ({"epochs": 1, "dropout_rate": 1.0}, "dropout_rate must lie strictly between 0 and 1"),
    ],
)
def test_impossible_recipes_are_refused(settings, message):
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        Recipe(**settings)


def test_an_unknown_network_is_answered_with_a_near_one():
    message = "Unknown network 'lenett'. Did you mean 'lenet'? Known: lenet, mlp, "
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        build("lenett", 1, 10, 28)
