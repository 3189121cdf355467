"""Parameters that must be integers."""

import numpy as np
import pytest

from qipf import QIPFInputError
from qipf.validation.parameters import is_integer, is_number, require_positive_integer


@pytest.mark.parametrize("value", [1, 10**30, np.int8(3), np.uint64(2)])
def test_integers_of_python_and_numpy_pass(value):
    assert is_integer(value)
    require_positive_integer(value, "size")


@pytest.mark.parametrize("value", [0, -1, np.int64(0), True, 2.0, "3", None, np.array([3])])
def test_everything_else_is_rejected(value):
    with pytest.raises(QIPFInputError, match="size must be an integer of at least 1"):
        require_positive_integer(value, "size")


@pytest.mark.parametrize("value", [1, -0.5, np.float32(2), np.int8(3), float("nan")])
def test_real_numbers_of_python_and_numpy_are_numbers(value):
    assert is_number(value)


@pytest.mark.parametrize("value", [True, np.True_, "3", None, 1j, np.array([3.0])])
def test_other_values_are_no_numbers(value):
    assert not is_number(value)
