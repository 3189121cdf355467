from __future__ import annotations

import re

import pytest
import torch

from qipf.bench.checkpoints import Checkpoint, fingerprint
from qipf.errors import QIPFInputError


def test_what_was_saved_last_is_loaded(tmp_path):
    checkpoint = Checkpoint(tmp_path / "deep" / "net.pt", {"epochs": 3, "seeds": [1]})
    assert checkpoint.load() is None
    checkpoint.save(1, learner={"w": torch.ones(2)})
    checkpoint.save(2, learner={"w": torch.zeros(2)})
    saved = checkpoint.load()
    assert saved["epochs_done"] == 2
    assert torch.equal(saved["learner"]["w"], torch.zeros(2))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["net.pt"]


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "net.pt", {})
    checkpoint.save(1, learner={})

    def interrupted(obj, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(2, learner={})
    assert checkpoint.load()["epochs_done"] == 1


def test_other_settings_and_other_files_are_refused(tmp_path):
    path = tmp_path / "net.pt"
    Checkpoint(path, {"epochs": 3, "seeds": [1]}).save(1)
    message = (
        f"{path} belongs to a training with other settings (epochs was 3, is 4; seeds was [1], "
        "is [2]). Delete it, or name another checkpoint."
    )
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        Checkpoint(path, {"epochs": 4, "seeds": [2]}).load()
    path.write_bytes(b"not a checkpoint")
    message = f"{path} is not a training checkpoint (UnpicklingError). Delete it to train from"
    with pytest.raises(QIPFInputError, match=re.escape(message)):
        Checkpoint(path, {}).load()


def test_fingerprints_tell_values_shapes_and_order_apart():
    a, b = torch.arange(4.0), torch.ones(4)
    prints = [fingerprint(t) for t in ([a], [b], [a.reshape(2, 2)], [a, b], [b, a], [a.double()])]
    assert len(set(prints)) == 6
    assert fingerprint([a.clone(), b]) == prints[3]
