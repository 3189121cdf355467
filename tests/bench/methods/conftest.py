"""A digits network, trained once, on which every method is tried."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from qipf.bench.datasets import Dataset, load
from qipf.bench.methods import Batch, CleanData, LayeredNetwork
from qipf.bench.networks import build
from qipf.bench.training import Trainer, train


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")


@pytest.fixture(scope="session")
def clean(digits: Dataset) -> CleanData:
    network, recipe = build("mlp", channels=1, classes=10, size=8, seed=0)
    recipe = dataclasses.replace(recipe, epochs=15)
    train(network, digits.train_images, digits.train_labels, recipe, seed=0)
    return Trainer(recipe).clean_data(network, digits.train_images, digits.train_labels)


@pytest.fixture(scope="session")
def network(clean: CleanData) -> LayeredNetwork:
    return clean.network


@pytest.fixture(scope="session")
def shifted(digits: Dataset, network: LayeredNetwork) -> Batch:
    """Test images moved by one pixel of eight: about half of the predictions are wrong."""
    return Batch.of(network, torch.roll(digits.test_images, 1, dims=3))


def _relu_images(n: int, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=generator)
    images = torch.eye(4)[labels].repeat(1, 2) + scale * torch.randn(n, 8, generator=generator)
    return images[:, None, None, :], labels


@pytest.fixture(scope="session")
def relu_data() -> CleanData:
    """Four classes, twelve features that are not negative, a last layer near the class means."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stem = torch.nn.Linear(8, 12)
        network = LayeredNetwork(
            [torch.nn.Flatten(), stem, torch.nn.ReLU()], torch.nn.Linear(12, 4)
        )
    images, labels = _relu_images(200, 1, 0.5)
    features = network.features(images).detach()
    means = torch.stack([features[labels == c].mean(0) for c in range(4)])
    with torch.no_grad():
        network.head.weight.mul_(0.5).add_(4 * (means - means.mean(0)))
        network.head.bias.copy_(-(network.head.weight @ means.mean(0)))
    return CleanData(network, images, labels)


@pytest.fixture(scope="session")
def relu_batch(relu_data: CleanData) -> Batch:
    return Batch.of(relu_data.network, _relu_images(40, 2)[0])
