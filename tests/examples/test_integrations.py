"""The Lightning callback and the pytorch-ood detector, without these packages."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import qipf
from tests.plots.models import NET, batches, inputs

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(net):
    return qipf.wrap(net, field=qipf.QIPF(bandwidth=1.0))


class Module(torch.nn.Sequential):
    """Stands for a LightningModule: a network that logs."""

    def __init__(self):
        super().__init__(NET)
        self.logged = {}

    def log(self, name, value, batch_size):
        self.logged[name] = (float(value), batch_size)


TRAINER = SimpleNamespace(train_dataloader=batches(0))


def test_the_callback_fits_calibrates_decides_and_saves(tmp_path):
    module, path = Module(), tmp_path / "model.qipf"
    callback = example("lightning_callback").QIPFCallback(batches(1), 0.4, make, path)
    callback.on_test_batch_end(TRAINER, module, None, batches(2)[0], 0)
    assert module.logged == {}  # before the training there is nothing to log
    callback.on_fit_end(TRAINER, module)
    assert len(callback.model.calibration_) == 240
    assert callback.model.rule_.max_risk == 0.4
    x, labels = batches(2)[0]
    callback.on_test_batch_end(TRAINER, module, None, (x, labels), 0, 0)
    found = qipf.load(path, module)(x)
    assert module.logged == {
        f"qipf_{name}": (pytest.approx(float(getattr(found, name).float().mean())), 64)
        for name in ("uncertainty", "novelty", "accepted")
    }


def test_the_callback_without_held_out_data_logs_scores_alone():
    module = Module()
    callback = example("lightning_callback").QIPFCallback(make=make)
    callback.on_fit_end(TRAINER, module)
    callback.on_test_batch_end(TRAINER, module, None, batches(2)[0][0], 0)
    assert set(module.logged) == {"qipf_uncertainty", "qipf_novelty"}


@pytest.mark.parametrize("score", ["novelty", "uncertainty"])
def test_the_detector_scores_as_the_model_and_leaves_unknown_classes_out(score):
    kind = example("pytorch_ood_detector").QIPFDetector
    unknown = [(torch.full((8, 4), 50.0), torch.full((8,), -1))]
    mixed = [(torch.cat([x, x + 30]), torch.cat([y, -y - 1])) for x, y in batches(0)]
    detector = kind(NET, score, make).fit(unknown + mixed)
    model = make(NET).fit(batches(0))
    x = inputs(2)[0]
    torch.testing.assert_close(detector(x), getattr(model, score)(x))
    torch.testing.assert_close(detector.predict(x), detector(x))
    far = detector(20 * x).mean() > detector(x).mean()
    assert far or score == "uncertainty"


def test_an_unknown_score_raises():
    with pytest.raises(ValueError, match="score must be 'novelty' or 'uncertainty', got 'energy'"):
        example("pytorch_ood_detector").QIPFDetector(NET, "energy", make)
