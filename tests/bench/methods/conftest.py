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
