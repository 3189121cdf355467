"""A field fitted on a cluster equals that of a local fit, or is close to it."""

import numpy as np
import pyarrow as pa
import pytest

from qipf import QIPF, QIPFInputError
from qipf import ray as distributed
from tests.conftest import make_logits
from tests.ray.shared import LABELS, LOGITS, RAY, ROWS, dataset, table

ray = pytest.importorskip("ray")
pytestmark = RAY


@pytest.fixture(autouse=True)
def small_sample(monkeypatch):
    monkeypatch.setattr("qipf.field.reservoir.HELD_OUT", 250)  # so that rows leave the sample


@pytest.mark.parametrize(
    ("parameters", "labels"),
    [
        ({"random_state": 7, "contamination": 0.2}, "auto"),
        ({"bandwidth": "silverman", "orders": (1, 3)}, None),
    ],
)
def test_random_centres_equal_those_of_a_local_fit(parameters, labels):
    given = QIPF(**parameters, max_centers=100, reduction="random")
    found = distributed.fit(dataset(), given, labels=labels)
    local = given.fit(LOGITS, LABELS if labels else None)
    assert found.n_samples_seen_ == ROWS
    assert found.bandwidth_criterion_ == local.bandwidth_criterion_
    for name in ("centers_", "bandwidth_", "energies_", "offset_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(local, name), err_msg=name)
    np.testing.assert_array_equal(found.uncertainty(LOGITS), local.uncertainty(LOGITS))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_near_errors_equal_those_of_a_local_fit(dtype):
    rows = ((8 * LOGITS).round() / 8).astype(dtype)  # with ties of the largest logits
    labels = rows.argmax(1)
    named = {f"logit_{k}": rows[:, k] for k in range(10)}
    given = QIPF(max_centers=100, reduction="random")
    found = distributed.fit(dataset(pa.table({**named, "label": labels})), given)
    local = given.fit(rows, labels)
    assert found.bandwidth_criterion_ == local.bandwidth_criterion_ == "errors and near errors"
    assert found.bandwidth_ == local.bandwidth_
    np.testing.assert_array_equal(found.uncertainty(rows), local.uncertainty(rows))


@pytest.mark.parametrize(("length", "condensed"), [(64, True), (65, False)])
def test_only_short_rows_are_condensed_by_default(length, condensed):
    rows = np.random.default_rng(0).normal(size=(ROWS, length))
    lists = pa.FixedSizeListArray.from_arrays(rows.ravel(), length)
    given = QIPF(max_centers=20, bandwidth=5.0)
    found = distributed.fit(dataset(pa.table({"logits": lists})), given, columns="logits")
    assert (found.log_weights_ is not None) == condensed


def test_partial_fit_continues_locally():
    more = make_logits(200, seed=2).numpy()
    given = QIPF(max_centers=50, bandwidth="silverman", reduction="random")
    found = distributed.fit(dataset(), given, labels=None).partial_fit(more)
    local = given.fit(np.concatenate([LOGITS, more]))
    np.testing.assert_array_equal(found.uncertainty(more), local.uncertainty(more))


def test_merged_coresets_represent_all_rows():
    rows = make_logits(2 * ROWS).numpy()
    made = dataset(pa.table({f"logit_{k}": rows[:, k] for k in range(10)}), scale=2)
    given = QIPF(reduction="coreset", max_centers=150, bandwidth=8.0, random_state=3)
    found = distributed.fit(made, given)
    again = distributed.fit(made, given)
    np.testing.assert_array_equal(again.centers_, found.centers_)
    local = given.fit(rows)
    assert len(found.centers_) == 150
    weights = np.exp(found.log_weights_)
    # fitted to the field, not to the mean, so only close to it
    np.testing.assert_allclose(weights @ found.centers_, rows.mean(0), rtol=0.05, atol=0.1)
    variance = weights @ ((found.centers_ - weights @ found.centers_) ** 2)
    total = variance.sum() + 10 * found.spread_**2
    assert total == pytest.approx(rows.var(0).sum(), rel=0.05)
    queries = make_logits(500, seed=5).numpy()
    difference = np.abs(found.log_density(queries) - local.log_density(queries)).mean()
    assert difference < 0.1


def test_bad_rows_are_rejected():
    import ray.data

    holes = LOGITS.copy()
    holes[1000, 3] = np.inf
    named = {f"logit_{k}": holes[:, k] for k in range(10)}
    uneven = [pa.table({"x": LOGITS[:20, :width].tolist()}) for width in (10, 9)]
    for made, columns, phrase in (
        (dataset(pa.table(named)), None, "row 50 of a block: logit_3 is inf"),
        (dataset(table(label=np.full(ROWS, 10))), None, "row 0 of a block: the label is '10'"),
        (ray.data.from_arrow(uneven), "x", "has rows with different numbers of logits"),
    ):
        with pytest.raises(QIPFInputError, match=phrase):
            distributed.fit(made, columns=columns)
