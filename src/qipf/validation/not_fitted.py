"""The error for models used before `fit`; a module of its own, because it imports scikit-learn."""

from sklearn.exceptions import NotFittedError

from qipf.errors import QIPFError


class QIPFNotFittedError(QIPFError, NotFittedError):
    """Model used before `fit` or `calibrate`; a scikit-learn `NotFittedError`."""
