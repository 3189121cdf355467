"""Labels: checked, and compared with the largest logit."""

import re

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from qipf import QIPFInputError
from qipf.validation.labels import (
    LabelValueError,
    checked_labels,
    class_logits,
    errors_from,
    errors_of,
)


def read_only(values):
    array = np.array(values)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "labels",
    [
        [0, 2],
        (0.0, 2.0),
        torch.tensor([0, 2], dtype=torch.uint8),
        np.array([0, 2], ">i4"),
        np.array([2, 0])[::-1],
        np.array([0, 2], np.uint16),
        read_only([0, 2]),
    ],
)
def test_labels_of_any_kind_are_integers(labels):
    found = checked_labels(labels, 2, 3, "y")
    assert (found.dtype, found.tolist()) == (torch.int64, [0, 2])


@pytest.mark.parametrize(
    ("labels", "phrase"),
    [
        (["cat", "dog"], "must hold numbers, got dtype <U3. A label is the index of the class"),
        ([0, None], "must hold numbers, got dtype object"),
        ([0, [1]], "must hold numbers (setting an array element"),
        ([0.5, 1.0], "integers"),
        (
            [1.0, np.nan],
            "y hold NaN in 1 of 2 rows (first: row 1), but must hold integers, the index of each "
            "true class. Drop these rows.",
        ),
        ([0.5, np.nan], "Drop these rows. qipf scores classifiers, not regression."),
        ([np.inf, 1.0], "integers"),
        ([1j, 1], "integers"),
        ([0, 3], "classes 0..2, got 3 in 1 of 2 rows (first: row 1)"),
        ([-1, 0], "got -1 in 1 of 2 rows (first: row 0)"),
    ],
)
def test_values_that_are_not_classes_are_rejected(labels, phrase):
    with pytest.raises(LabelValueError, match=re.escape(phrase)):
        checked_labels(labels, 2, 3, "y")


def test_sparse_labels_are_not_told_of_class_names():
    with pytest.raises(QIPFInputError, match=r"Pass its toarray\(\)\.$"):
        checked_labels(csr_matrix(np.eye(2)), 2, 3, "y")


def test_another_shape_is_rejected_and_is_not_an_error_of_values():
    for labels in ([0, 1, 2], [[0], [1]], 1):
        with pytest.raises(QIPFInputError, match=re.escape("y must have shape (2,)")) as caught:
            checked_labels(labels, 2, 3, "y")
        assert not isinstance(caught.value, LabelValueError)
        assert ("Pass labels.reshape(-1)" in str(caught.value)) == (labels == [[0], [1]])


def test_missing_labels_are_named():
    with pytest.raises(QIPFInputError, match="labels are needed"):
        checked_labels(None, 2, 3, "labels")


def test_the_range_is_not_checked_without_a_number_of_classes():
    assert checked_labels([0, 99], 2, None, "y").tolist() == [0, 99]
    assert checked_labels([], 0, 3, "y").tolist() == []


def test_errors_are_where_the_largest_logit_is_of_another_class():
    logits = torch.tensor([[3.0, 1.0], [0.0, 2.0], [5.0, 4.0]])
    assert errors_of(logits, [0, 0, 0], "y").tolist() == [False, True, False]
    assert errors_from(logits, [0, 0, 0], None).tolist() == [False, True, False]
    assert errors_from(logits, None, [1, 0, 0]).tolist() == [True, False, False]
    assert errors_from(logits, None, None) is None
    with pytest.raises(QIPFInputError, match="not both"):
        errors_from(logits, [0, 0, 0], [1, 0, 0])


def test_one_logit_is_of_class_one_against_class_zero():
    rows = torch.tensor([[-2.0], [0.0], [3.0]], dtype=torch.float64)
    assert class_logits(rows).tolist() == [[0.0, -2.0], [0.0, 0.0], [0.0, 3.0]]
    assert class_logits(rows).dtype == torch.float64
    two = rows.expand(3, 2)
    assert class_logits(two) is two
    # class 1 is predicted where z > 0
    assert errors_of(rows, [0, 0, 0], "y").tolist() == [False, False, True]
    assert errors_of(rows, [1, 1, 1], "y").tolist() == [True, True, False]
    with pytest.raises(LabelValueError, match="one or two logits stand for two classes, got 2 in "):
        errors_of(rows, [0, 1, 2], "y")
