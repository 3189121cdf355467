"""How far to trust each prediction of a trained neural network, in one forward pass."""

from qipf.errors import (
    QIPFError,
    QIPFFileError,
    QIPFInputError,
    QIPFNotFittedError,
    QIPFWarning,
)
from qipf.estimator import QIPF
from qipf.model import Prediction, WrappedModel, wrap
from qipf.storage import load, save

__version__ = "0.1.0.dev0"

__all__ = [
    "QIPF",
    "Prediction",
    "QIPFError",
    "QIPFFileError",
    "QIPFInputError",
    "QIPFNotFittedError",
    "QIPFWarning",
    "WrappedModel",
    "load",
    "save",
    "wrap",
]
