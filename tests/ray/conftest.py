"""One cluster of two workers for all tests of this folder, and a field."""

import pytest

from qipf import QIPF
from tests.conftest import make_logits


@pytest.fixture(scope="package", autouse=True)
def plan():
    pytest.importorskip("ray")
    from qipf.ray import cluster

    with cluster(workers=2) as plan:
        yield plan


@pytest.fixture(scope="session")
def field():
    return QIPF(bandwidth=3.0).fit(make_logits(500, seed=8).numpy())
