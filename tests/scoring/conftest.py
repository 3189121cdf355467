"""A field, and a folder of shards to score."""

import pytest

from qipf import QIPF
from tests.conftest import make_logits
from tests.scoring.shard_files import write_shards


@pytest.fixture(scope="module")
def field():
    return QIPF(bandwidth=3.0).fit(make_logits(200).numpy())


@pytest.fixture
def folder(tmp_path):
    write_shards(tmp_path / "in", 4, 30)
    return tmp_path
