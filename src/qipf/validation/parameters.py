"""Checks of parameters."""

from numbers import Integral, Real

from qipf.errors import QIPFInputError, unknown_name

#: Seeds are below this; the next one is used too.
LARGEST_SEED = 2**32 - 1


#: What to do with predictions that have NaN or infinity in their logits or features: raise, or
#: score the others and give these NaN.
NAN_POLICIES = ("raise", "propagate")


def propagates(nan_policy: object) -> bool:
    """Whether rows with NaN or infinity get NaN; False if they raise."""
    if not isinstance(nan_policy, str) or nan_policy not in NAN_POLICIES:
        raise unknown_name("nan_policy", nan_policy, NAN_POLICIES)
    return nan_policy == "propagate"


def is_integer(value: object) -> bool:
    """Whether a value is an integer, of Python or NumPy, and not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a real number, of Python or NumPy, and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_positive_integer(value: object, name: str) -> None:
    """Raise `QIPFInputError` unless a parameter is an integer of at least 1."""
    if not is_integer(value) or value < 1:  # type: ignore[operator]
        raise QIPFInputError(f"{name} must be an integer of at least 1, got {value!r}.")
