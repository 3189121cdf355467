"""Checks of parameters."""

from numbers import Integral

from qipf.errors import QIPFInputError

#: Seeds are below this; the next one is used too.
LARGEST_SEED = 2**32 - 1


def is_integer(value: object) -> bool:
    """Whether a value is an integer, of Python or NumPy, and not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_positive_integer(value: object, name: str) -> None:
    """Raise `QIPFInputError` unless a parameter is an integer of at least 1."""
    if not is_integer(value) or value < 1:  # type: ignore[operator]
        raise QIPFInputError(f"{name} must be an integer of at least 1, got {value!r}.")
