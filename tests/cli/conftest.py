"""A calibrated field, and a folder to watch a stream in."""

import pytest

import qipf
from tests.cli.monitoring import write
from tests.conftest import make_logits


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("field") / "field.qipf"
    held_out = make_logits(120, seed=1).numpy()
    field = qipf.QIPF(bandwidth="silverman").fit(make_logits(100).numpy())
    qipf.save(field.calibrate(held_out, held_out.argmax(1)), path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch, fitted):
    """A folder with field.qipf and stream.csv, 45 lines of it, and the commands run in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "field.qipf").write_bytes(fitted.read_bytes())
    write("stream.csv", make_logits(45, seed=2).tolist())
    return tmp_path
