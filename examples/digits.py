"""Train a small network on handwritten digits, wrap it, and rotate the test images step by step.

    python examples/digits.py --output demo

Prints, for each angle, the accuracy, the mean uncertainty, and the ROC-AUC of error detection by
qipf and by the entropy of the softmax (0.5 is chance, 1 is perfect), and draws them as a figure.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import qipf
from qipf.bench import datasets
from qipf.bench.corruptions import corrupt
from qipf.bench.networks import build
from qipf.bench.training import train
from qipf.metrics.error_detection import roc_auc
from qipf.plots.drawing import drawing

ANGLES = range(0, 91, 10)
COLUMNS = ("angle", "accuracy", "mean uncertainty", "ROC-AUC qipf", "ROC-AUC entropy")


def evaluate(model: qipf.WrappedModel, images: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Accuracy, mean uncertainty, and ROC-AUC of error detection by qipf and by entropy."""
    prediction = model(images)
    wrong = (prediction.predicted != labels).numpy()
    probabilities = prediction.logits.softmax(1)
    entropy = torch.special.entr(probabilities).sum(1)
    return (
        1 - float(wrong.mean()),
        float(prediction.uncertainty.mean()),
        roc_auc(prediction.uncertainty.numpy(), wrong),
        roc_auc(entropy.numpy(), wrong),
    )


def draw(path: Path, rows: list[tuple[float, ...]]) -> None:
    """Draw accuracy and uncertainty, and both ROC-AUCs, against the angle."""
    angles, accuracy, uncertainty, by_field, by_entropy = zip(*rows, strict=True)
    with drawing(path, width=8.0, height=3.2, columns=2) as ((left, right),):
        left.plot(angles, accuracy, "o-", color="black", label="accuracy")
        left.set(xlabel="rotation (degrees)", ylabel="accuracy", ylim=(0, 1.02))
        beside = left.twinx()
        beside.plot(angles, uncertainty, "s--", color="#d55e00", label="mean uncertainty")
        beside.set_ylabel("mean uncertainty", color="#d55e00")
        beside.grid(visible=False)
        left.set_title("Accuracy and uncertainty")
        right.plot(angles, by_field, "s-", color="#d55e00", label="qipf")
        right.plot(angles, by_entropy, "o--", color="#0072b2", label="softmax entropy")
        right.set(xlabel="rotation (degrees)", ylabel="ROC-AUC", ylim=(0.45, 1.02))
        right.set_title("Error detection")
        right.legend(loc="lower left")


def main() -> None:
    """Train, fit, and evaluate at every angle; takes a few seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder of the figure")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    digits = datasets.load("digits")
    network, recipe = build("mlp", channels=1, classes=10, size=8, seed=options.seed)
    train(network, digits.train_images, digits.train_labels, recipe, seed=options.seed)

    train_images = digits.train_images / 255
    batches = zip(train_images.split(256), digits.train_labels.split(256), strict=True)
    model = qipf.wrap(network).fit(list(batches))

    table = Table(*COLUMNS, title="scikit-learn's digits, rotated")
    rows = []
    for angle in ANGLES:
        images = corrupt(digits.test_images / 255, "rotation", angle)
        rows.append((float(angle), *evaluate(model, images, digits.test_labels)))
        table.add_row(f"{angle}°", *(f"{value:.3f}" for value in rows[-1][1:]))
    Console().print(table)
    draw(options.output / "digits.png", rows)
    print(f"wrote {options.output / 'digits.png'}")


if __name__ == "__main__":
    main()
