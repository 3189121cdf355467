"""A field over made logits, and logits to judge."""

import pytest

from qipf import QIPF
from qipf.field import engines
from tests.conftest import make_logits

SCORES = ["uncertainty", "modes", "potential", "log_density", "score_samples", "decision_function"]


@pytest.fixture(scope="module")
def train():
    return make_logits(800).numpy()


@pytest.fixture(scope="module")
def test():
    return make_logits(50, seed=1).numpy()


@pytest.fixture(scope="module")
def field(train):
    return QIPF(bandwidth=3.0).fit(train)


def moments(queries, centers, bandwidth, log_weights=None, engine="auto"):
    """Moments of the field of `centers` at `queries`, in one call."""
    return engines.create(engine, centers, bandwidth, log_weights)(queries)
