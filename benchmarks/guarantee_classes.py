"""Simulations of intervals of the accuracy that are estimated with predicted classes."""

from types import SimpleNamespace

import numpy as np
from guarantee_populations import Array
from numpy.typing import NDArray
from scipy.special import expit

import qipf


def _falling(classes: int, power: float) -> Array:
    """Shares of classes, the larger the power the more unequal."""
    shares = np.arange(1.0, classes + 1) ** -power
    return shares / shares.sum()


#: Shares of the predicted classes, and which predictions are wrong.
CLASSES: dict[str, tuple[Array, str]] = {
    "two classes": (np.full(2, 0.5), "by the odds"),
    "one class alone": (np.ones(1), "by the odds"),
    "one class of two rare": (np.array([0.99, 0.01]), "by the odds"),
    "ten classes": (np.full(10, 0.1), "by the odds"),
    "hundred classes": (np.full(100, 0.01), "by the odds"),
    "thousand, unequal": (_falling(1000, 1.0), "by the odds"),
    "more classes than predictions": (np.full(5000, 1 / 5000), "by the odds"),
    "all errors in one class": (np.full(10, 0.1), "first class"),
    "rare classes are wrong": (_falling(20, 1.5), "rare classes"),
    "confident errors in one class": (np.full(5, 0.2), "confident"),
    "uncertain by class": (_falling(10, 1.0), "classes differ"),
    "half of them of no class": (np.full(10, 0.1), "no class"),
}


def draw_classes(
    name: str, count: int, rng: np.random.Generator
) -> tuple[Array, NDArray[np.bool_], NDArray[np.int64]]:
    """Log-odds of errors, errors, and predicted classes, independent of each other row."""
    shares, kind = CLASSES[name]
    predicted = np.searchsorted(np.cumsum(shares)[:-1], rng.random(count), side="right")
    odds = rng.normal(-2.5, 1.5, count)
    if kind == "classes differ":
        odds += predicted - 3.0
    truth = {
        "first class": np.where(predicted == 0, odds + 3.0, -40.0),
        "rare classes": np.where(predicted >= 10, 40.0, odds - 2.0),
        "confident": np.where(predicted == 0, -odds - 3.0, odds),
    }.get(kind, odds)
    wrong = rng.random(count) < expit(truth)
    if kind == "no class":
        predicted = np.where(rng.random(count) < 0.5, -1, predicted)
    return odds, wrong, predicted


def misses_of_classes(
    name: str, sizes: tuple[int, int], rng: np.random.Generator
) -> dict[tuple[str, bool], bool]:
    """Whether the interval misses the accuracy, by method and `label_shift`, for one window."""
    odds, wrong, predicted = draw_classes(name, sizes[0], rng)
    counts = np.bincount(predicted[predicted >= 0], minlength=len(CLASSES[name][0]))
    held_out = qipf.Calibration(odds, wrong, class_counts=counts)
    odds, wrong, predicted = draw_classes(name, sizes[1], rng)
    window = SimpleNamespace(uncertainty=odds, predicted=predicted)
    found = {}
    for method in ("threshold", "log_odds"):
        for label_shift in (False, True):
            told = qipf.estimate_accuracy(window, held_out, 0.95, method, label_shift=label_shift)
            found[method, label_shift] = not told.low <= 1 - wrong.mean() <= told.high
    return found
