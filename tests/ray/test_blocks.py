"""Logits in the blocks of a dataset."""

import re

import numpy as np
import pyarrow as pa
import pytest

from qipf import QIPFInputError
from qipf.ray.blocks import read_block
from tests.ray.shared import LOGITS, RAY, table

ray = pytest.importorskip("ray")
pytestmark = RAY
FEW = LOGITS[:20]


def test_logits_in_one_column_each_or_all_in_one():
    import ray.data

    tensors = ray.get(ray.data.from_numpy(FEW).to_arrow_refs())[0].rename_columns(["x"])
    lists = pa.table({"x": FEW.astype(np.float64).tolist()})
    fixed = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(FEW.ravel()), 10)})
    for block, columns, kind in (
        (table().slice(0, 20), [f"logit_{k}" for k in range(10)], np.float32),
        (tensors, ["x"], np.float32),
        (fixed, ["x"], np.float32),
        (lists, ["x"], np.float64),
    ):
        found = read_block(block, columns).logits
        assert found.dtype == kind
        np.testing.assert_array_equal(found, FEW)
    np.testing.assert_array_equal(read_block(table(), ["logit_3"]).logits, LOGITS[:, 3:4])
    assert read_block(lists.slice(0, 0), ["x"]).logits.shape == (0, 0)


@pytest.mark.parametrize(
    ("values", "phrase"),
    [
        ([[1.0], [1.0, 2.0]], "has rows with different numbers of logits"),
        (["a", "b"], "logits must be numbers"),
        ([[[1.0]], [[2.0]]], "logits must be numbers"),
        ([[1.0, np.nan]], "row 0 of a block: x is nan"),
    ],
)
def test_other_values_are_rejected(values, phrase):
    with pytest.raises(QIPFInputError, match=re.escape(phrase)):
        read_block(pa.table({"x": values}), ["x"])
