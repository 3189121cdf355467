"""The error for what was used before `fit`; on its own, because it needs scikit-learn."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError

from qipf.errors import QIPFError


class QIPFNotFittedError(QIPFError, NotFittedError):
    """Used before `fit`; a scikit-learn `NotFittedError`."""
