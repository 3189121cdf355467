"""Files in the current folder, for the commands to read."""

import numpy as np
import pytest

import qipf
from tests.cli.commands import LABELS, TEST, TRAIN, write
from tests.conftest import make_logits


@pytest.fixture(scope="session")
def labelled_field(tmp_path_factory):
    path = tmp_path_factory.mktemp("labelled") / "field.qipf"
    qipf.save(qipf.QIPF().fit(TRAIN, LABELS), path)
    return path.read_bytes()


@pytest.fixture
def files(tmp_path, monkeypatch, labelled_field):
    """A folder with train.npz, test.npz and field.qipf; the commands run in it."""
    monkeypatch.chdir(tmp_path)
    np.savez("train.npz", logits=TRAIN, labels=LABELS)
    np.savez("test.npz", logits=TEST)
    (tmp_path / "field.qipf").write_bytes(labelled_field)
    return tmp_path


@pytest.fixture(scope="session")
def calibrated_field(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrated") / "field.qipf"
    held_out = make_logits(120, seed=1).numpy()
    field = qipf.QIPF(bandwidth="silverman").fit(make_logits(100).numpy())
    qipf.save(field.calibrate(held_out, held_out.argmax(1)), path)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path, monkeypatch, calibrated_field):
    """A folder with a calibrated field.qipf and stream.csv, 45 lines; the commands run in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "field.qipf").write_bytes(calibrated_field)
    write("stream.csv", make_logits(45, seed=2).tolist())
    return tmp_path
