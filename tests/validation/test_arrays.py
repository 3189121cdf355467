"""Arrays at the public door: what is finite, and what is not."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from qipf import QIPFInputError
from qipf.validation.arrays import as_given, number_tensor, require_finite


def test_finite_rows_pass_even_where_their_sum_is_not():
    require_finite(torch.full((3, 2), 1e308, dtype=torch.float64), "X")
    require_finite(torch.full((3, 2), 3e38), "X")
    require_finite(torch.empty(0, 2), "X")


def test_rows_that_ask_for_gradients_pass_without_a_warning():
    require_finite(torch.zeros(2, 2, requires_grad=True), "X")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_named(value):
    rows = torch.zeros(9, 2)
    rows[[1, 4], 1] = value
    with pytest.raises(QIPFInputError, match=r"logits has 2 rows with NaN or inf \(rows 1, 4\)"):
        require_finite(rows, "logits")


def test_infinities_that_cancel_are_found():
    rows = torch.tensor([[float("inf"), -float("inf")]])
    with pytest.raises(QIPFInputError, match="X has 1 row with NaN or inf"):
        require_finite(rows, "X")


def test_what_comes_in_goes_out():
    values = torch.ones(2)
    assert as_given(values, torch.zeros(1)) is values
    np.testing.assert_array_equal(as_given(values, [0.0]), np.ones(2))


@pytest.mark.parametrize(
    ("values", "phrase"),
    [
        (csr_matrix(np.eye(2)), "y must be dense, got a sparse matrix. Pass its toarray()."),
        (np.array([1, None]), "y must hold numbers, got dtype object."),
        (None, "y must hold numbers, got None."),
        ([[1], [2, 3]], "y must hold numbers (setting an array element"),
        ([torch.zeros(2, requires_grad=True)], "y must hold numbers ("),
    ],
)
def test_what_holds_no_numbers_is_refused(values, phrase):
    with pytest.raises(QIPFInputError) as refused:
        number_tensor(values, "y")
    assert str(refused.value).startswith(phrase)


def test_numbers_become_a_tensor_and_tensors_stay():
    asks = torch.zeros(2, requires_grad=True)
    assert number_tensor(asks, "y") is asks
    assert number_tensor([1, 2], "y").tolist() == [1, 2]
