"""What the blocks of a dataset hold."""

import re

import numpy as np
import pyarrow as pa
import pytest

from qipf import QIPFInputError
from qipf.ray.blocks import known_width, logits_of
from tests.ray.made import LOGITS, dataset, table

ray = pytest.importorskip("ray")
# Ray's own: it warns of options that it sets itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_logits_stand_in_columns_of_their_own_or_in_one():
    import ray.data

    few = LOGITS[:20]
    tensors = ray.get(ray.data.from_numpy(few).to_arrow_refs())[0].rename_columns(["x"])
    lists = pa.table({"x": few.astype(np.float64).tolist()})
    fixed = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(few.ravel()), 10)})
    names = [f"logit_{k}" for k in range(10)]
    for block, columns, kind in (
        (table().slice(0, 20), names, np.float32),
        (tensors, ["x"], np.float32),
        (fixed, ["x"], np.float32),
        (lists, ["x"], np.float64),
    ):
        found = logits_of(block, columns)
        assert found.dtype == kind
        np.testing.assert_array_equal(found, few)
    np.testing.assert_array_equal(logits_of(table(), ["logit_3"]), LOGITS[:, 3:4])
    assert logits_of(lists.slice(0, 0), ["x"]).shape == (0, 0)
    for values, message in (
        ([[1.0], [1.0, 2.0]], "The dataset has rows with different numbers of logits."),
        (["a", "b"], "The dataset's logits must be numbers, one column each or all in one as a"),
        ([[[1.0]], [[2.0]]], "The dataset's logits must be numbers, one column each or all in"),
    ):
        with pytest.raises(QIPFInputError, match=f"^{re.escape(message)}"):
            logits_of(pa.table({"x": values}), ["x"])


def test_the_schema_tells_the_width_where_it_can():
    import ray.data

    few = LOGITS[:20]
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(few.ravel()), 10)
    for made, chosen, width in (
        (dataset(), ["logit_1", "logit_2"], 2),
        (dataset(), ["logit_1"], 1),
        (ray.data.from_numpy(few), ["data"], 10),
        (ray.data.from_arrow(pa.table({"x": fixed})), ["x"], 10),
        (ray.data.from_arrow(pa.table({"x": few.tolist()})), ["x"], None),
        (ray.data.from_numpy(few.reshape(20, 5, 2)), ["data"], None),
        (ray.data.from_items([{"x": np.zeros(3)}, {"x": np.zeros(2)}]), ["x"], None),
    ):
        assert known_width(made, chosen) == width
