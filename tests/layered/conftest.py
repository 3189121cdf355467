"""A small network with a weakness, its data, and the model that knows of it."""

import pytest
import torch

from qipf import LayeredQIPF
from tests.stored.write_files import layered, layered_data, layered_network

FEW = {"max_centers": 40, "max_tuning": 50, "reduction": "random"}


def batches(data, size=60):
    return list(zip(*(part.split(size) for part in data), strict=True))


def fitted(net, data, **options):
    return LayeredQIPF(net, **{**FEW, **options}).fit(batches(data))


@pytest.fixture(scope="session")
def data():
    return layered_data()


@pytest.fixture(scope="session")
def fresh():
    """Other inputs than those it was fitted on."""
    return torch.randn(30, 4, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def net():
    return layered_network()


@pytest.fixture(scope="session")
def model():
    """Fitted once for all tests that only read."""
    return layered()


@pytest.fixture(scope="session")
def condensed():
    """As `model`, with weighted centres."""
    return layered("coreset")
