"""Train a small network on handwritten digits, fit `LayeredQIPF`, and rotate the test images.

    python examples/digits.py --output demo

Half of the test images calibrate the model, the others are rotated. Prints, for each angle, the
accuracy, its estimate without labels (* where the model calls it unreliable, because more than 15 %
of the inputs are novel), and how well three scores find the errors: ROC-AUC is the probability
that a wrong prediction has a higher uncertainty than a right one (0.5 is chance, 1 is perfect).
Draws the same as a figure.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

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

#: Colour, line style, marker and width of the three scores, the best first.
LOOKS = {
    "LayeredQIPF": ("#c24e00", "-", "o", 2.8),
    "softmax entropy": ("#0072b2", "--", "s", 1.4),
    "paper's QIPF": ("#8a8a8a", ":", "^", 1.2),
}


class Row(NamedTuple):
    """Results at one angle."""

    angle: int
    accuracy: float
    estimated: float
    reliable: bool  # whether the model calls its estimate reliable
    roc_aucs: list[float]  # in the order of LOOKS


def evaluate(
    layered: qipf.LayeredQIPF,
    field: qipf.WrappedModel,
    images: Tensor,  # (n, channels, height, width)
    labels: Tensor,  # (n,)
    angle: int,
) -> Row:
    """Accuracy, its estimate, and the ROC-AUC of each score."""
    prediction = layered(images)
    wrong = (prediction.predicted != labels).numpy()
    estimate = qipf.estimate_accuracy(prediction, layered)
    entropy = torch.special.entr(prediction.logits.softmax(1)).sum(1)
    scores = prediction.uncertainty, entropy, field(images).uncertainty
    aucs = [roc_auc(score.numpy(), wrong) for score in scores]
    return Row(angle, 1 - float(wrong.mean()), estimate.accuracy, bool(estimate.reliable), aucs)


def table_of(rows: list[Row]) -> Table:
    """The rows as a table for the terminal; the best ROC-AUC of each is bold."""
    table = Table(
        title="scikit-learn's digits, rotated: ROC-AUC of error detection by three scores",
        caption="* called unreliable by the estimate itself",
    )
    for name in ("angle", "accuracy", "estimated", *LOOKS):
        table.add_column(name, justify="right")
    for row in rows:
        best = max(row.roc_aucs)
        aucs = (f"[bold]{a:.3f}[/]" if a == best else f"{a:.3f}" for a in row.roc_aucs)
        mark = " " if row.reliable else "*"
        table.add_row(f"{row.angle}°", f"{row.accuracy:.1%}", f"{row.estimated:.1%}{mark}", *aucs)
    return table


def draw(path: Path, rows: list[Row]) -> None:
    """Draw true and estimated accuracy, and the ROC-AUC of each score, against the angle."""
    angles = [row.angle for row in rows]
    color = next(iter(LOOKS.values()))[0]
    with drawing(path, width=8.0, height=3.2, columns=2) as ((left, right),):
        left.plot(angles, [row.accuracy for row in rows], "ks-", lw=1.4, label="true accuracy")
        estimated = [row.estimated for row in rows]
        left.plot(angles, estimated, "-", color=color, lw=2.8)
        for reliable, ink, text in (
            (True, color, "estimated without labels"),
            (False, "white", "estimate called unreliable"),
        ):
            own = [row for row in rows if row.reliable == reliable]
            at, values = [row.angle for row in own], [row.estimated for row in own]
            left.plot(at, values, "o", color=color, mfc=ink, label=text)
        left.set(xlabel="rotation (degrees)", ylabel="accuracy", ylim=(0, 1.02))
        left.set_title("Accuracy")
        left.legend(loc="upper right")
        for place, (name, (ink, dash, marker, width)) in enumerate(LOOKS.items()):
            values = [row.roc_aucs[place] for row in rows]
            style = {"ls": dash, "marker": marker, "lw": width, "zorder": 3 - place}
            right.plot(angles, values, color=ink, label=name, **style)
        right.set(xlabel="rotation (degrees)", ylabel="ROC-AUC", ylim=(0.45, 1.02))
        right.set_title("Finding the wrong predictions")
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

    images, labels = digits.test_images / 255, digits.test_labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(options.seed))
    held_out, other = order[: len(order) // 2], order[len(order) // 2 :]
    train_images = digits.train_images / 255
    batches = list(zip(train_images.split(256), digits.train_labels.split(256), strict=True))
    layered = qipf.LayeredQIPF(network).fit(batches)
    layered.calibrate([(images[held_out], labels[held_out])])
    paper = qipf.QIPF(reduction="random", fallback=False)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that it detects errors worse than entropy: the table shows it
        field = qipf.wrap(network, field=paper).fit(batches)

    rows = []
    for angle in ANGLES:
        rotated = corrupt(images[other], "rotation", angle)
        rows.append(evaluate(layered, field, rotated, labels[other], angle))
    Console().print(table_of(rows))
    draw(options.output / "digits.png", rows)
    print(f"wrote {options.output / 'digits.png'}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped; no figure was written.")
