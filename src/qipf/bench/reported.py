"""What the paper reported: its Tables 1 and 2, and the clean accuracies of its networks."""

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

#: Networks of ours by the network of the paper's that comes nearest, where the names differ.
NEAREST = {"kmnist10k_lenet": "kmnist_lenet"}


class Reported(NamedTuple):
    """Mean and standard deviation over a corruption's range, with two decimals."""

    mean: float
    std: float


@cache
def _table() -> dict[tuple[str, str, str, str], Reported]:
    text = resources.files("qipf.bench").joinpath("reported_results.csv").read_text("utf-8")
    return {
        (row["metric"], row["corruption"], row["network"], row["method"]): Reported(
            float(row["mean"]), float(row["std"] or "nan")
        )
        for row in csv.DictReader(text.splitlines())
    }


def reported(metric: str, corruption: str, network: str, method: str) -> Reported | None:
    """A cell of the paper's tables; None if it is not there.

    >>> reported("roc_auc", "rotation", "mnist_lenet", "qipf")
    Reported(mean=0.74, std=0.07)
    """
    return _table().get((metric, corruption, NEAREST.get(network, network), method))


def reported_accuracy(network: str) -> float | None:
    """The accuracy of a network of the paper's on clean test images.

    >>> reported_accuracy("cifar10_vgg3")
    0.885
    """
    cell = reported("accuracy", "none", network, "")
    return None if cell is None else cell.mean
