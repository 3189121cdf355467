"""Export a digits model as ONNX, with images and their scores in PyTorch to compare with.

    python examples/onnx_digits.py --output exported

Writes `digits.onnx`, `inputs.npy` and `expected.npz`. `onnx_scores.py` compares them in another
environment, without torch and qipf:

    python -m venv fresh
    fresh/bin/pip install numpy onnxruntime
    fresh/bin/python examples/onnx_scores.py exported/digits.onnx exported/inputs.npy \
        --expected exported/expected.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import qipf
from qipf.bench import datasets
from qipf.bench.corruptions import corrupt
from qipf.bench.networks import build
from qipf.bench.training import train

ANGLES = (0, 30, 60, 90)


def example_images(clean: Tensor) -> Tensor:
    """Clean and rotated images, and noise that is 1000 times brighter."""
    noise = torch.rand(100, *clean.shape[1:], generator=torch.Generator().manual_seed(0))
    return torch.cat([*(corrupt(clean, "rotation", angle) for angle in ANGLES), 1000 * noise])


def main() -> None:
    """Train, fit, export, and score the images in PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("exported"), help="folder to write")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)

    digits = datasets.load("digits")
    network, recipe = build("mlp", channels=1, classes=10, size=8)
    train(network, digits.train_images, digits.train_labels, recipe)
    model = qipf.wrap(network).fit([(digits.train_images / 255, digits.train_labels)])
    written = model.export_onnx(output / "digits.onnx")

    images = example_images(digits.test_images / 255)
    prediction = model(images)
    logits = prediction.logits.numpy()
    np.save(output / "inputs.npy", images.numpy())
    np.savez(
        output / "expected.npz",
        logits=logits,
        uncertainty=prediction.uncertainty.numpy(),
        modes=model.field.modes(logits),
        novelty=prediction.novelty.numpy(),
    )
    print(
        f"wrote {written.path}: {written.bytes:,} bytes, {written.centers:,} centres; "
        f"{len(images):,} images and their scores beside it"
    )


if __name__ == "__main__":
    main()
