"""One cluster of two workers for all tests of this folder, and a field."""

import pytest

from qipf import QIPF
from tests.conftest import make_logits
from tests.ray.ray_cluster import running


@pytest.fixture(scope="package", autouse=True)
def plan():
    pytest.importorskip("ray")
    with running(workers=2) as plan:
        yield plan


@pytest.fixture(scope="module")
def field():
    return QIPF(bandwidth=3.0).fit(make_logits(2000, seed=8).numpy())
