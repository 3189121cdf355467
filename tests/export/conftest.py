"""Models and files that the tests of export share: capturing a graph takes seconds."""

import pytest
import torch
from torch.nn.functional import interpolate

import qipf
from qipf.bench import datasets
from qipf.bench.corruptions import corrupt
from qipf.bench.networks import Recipe, build
from qipf.bench.training import train


def trained(name, channels, size, epochs, rows, orders=(1, 2, 3, 4)):
    """A network of the benchmark, briefly trained on digits of its size, and images to judge."""
    digits = datasets.load("digits")

    def images(raw):
        sized = interpolate(raw.float() / 255, size=(size, size), mode="bilinear")
        return sized.expand(-1, channels, -1, -1).contiguous()

    network, _ = build(name, channels=channels, classes=10, size=size, seed=0)
    seen, labels = images(digits.train_images[:rows]), digits.train_labels[:rows]
    train(network, (seen * 255).to(torch.uint8), labels, Recipe(epochs=epochs), seed=0)
    model = qipf.wrap(network, field=qipf.QIPF(orders=orders))
    model.fit(list(zip(seen.split(200), labels.split(200), strict=True)))
    return model, to_judge(images(digits.test_images[:80]))


def to_judge(clean):
    """Clean and turned images, noise in their range, and far outliers up to 1000 times it."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(20, *clean.shape[1:], generator=generator)
    far = [noise * 10.0**power - 5.0**power for power in (1, 2, 3)]
    return torch.cat([clean, corrupt(clean, "rotation", 30), corrupt(clean, "rotation", 90), *far])


@pytest.fixture(scope="session")
def digits():
    return trained("mlp", channels=1, size=8, epochs=20, rows=1198)


@pytest.fixture(scope="session")
def digits_file(digits, tmp_path_factory):
    """The digits model as ONNX, with what `export_onnx` tells of it."""
    model, _ = digits
    return model.export_onnx(tmp_path_factory.mktemp("exported") / "digits.onnx")


@pytest.fixture(scope="session")
def rule(digits):
    """Accepts about half of what `digits` has to judge."""
    model, images = digits
    uncertainty = model(images).uncertainty.numpy()
    return qipf.accept_rule(uncertainty, uncertainty > 5, min_coverage=0.4)
