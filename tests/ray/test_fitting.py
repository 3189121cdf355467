"""A field fitted on a cluster is that of all rows in one place, or near it."""

import numpy as np
import pyarrow as pa
import pytest

from qipf import QIPF, QIPFInputError
from qipf import ray as distributed
from tests.conftest import make_logits
from tests.ray.made import LABELS, LOGITS, ROWS, dataset, table

ray = pytest.importorskip("ray")
# Ray's own: it warns of options that it sets itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize(
    ("parameters", "labels"),
    [
        ({}, "auto"),
        ({"max_centers": 100, "random_state": 7, "contamination": 0.2}, "label"),
        ({"max_centers": 100, "bandwidth": "silverman", "orders": (1, 3)}, None),
    ],
)
def test_random_centres_are_those_of_a_local_fit(parameters, labels, monkeypatch):
    monkeypatch.setattr("qipf.field.reservoir.HELD_OUT", 500)  # so that rows leave the sample
    parameters = {**parameters, "reduction": "random"}
    found = distributed.fit(dataset(), QIPF(**parameters), labels=labels)
    local = QIPF(**parameters).fit(LOGITS, LABELS if labels else None)
    assert found.n_samples_seen_ == ROWS
    assert found.bandwidth_criterion_ == local.bandwidth_criterion_
    for name in ("centers_", "bandwidth_", "energies_", "offset_"):
        np.testing.assert_array_equal(getattr(found, name), getattr(local, name), err_msg=name)
    np.testing.assert_array_equal(found.uncertainty(LOGITS), local.uncertainty(LOGITS))


@pytest.mark.parametrize("kept", [np.float32, np.float64])
def test_near_errors_are_those_of_a_local_fit(kept, monkeypatch):
    monkeypatch.setattr("qipf.field.reservoir.HELD_OUT", 500)
    rows = ((8 * LOGITS).round() / 8).astype(kept)  # so that some leads are tied
    labels = rows.argmax(1)
    named = {f"logit_{k}": rows[:, k] for k in range(10)}
    given = QIPF(max_centers=100, reduction="random")
    found = distributed.fit(dataset(pa.table({**named, "label": labels})), given)
    local = given.fit(rows, labels)
    assert found.bandwidth_criterion_ == local.bandwidth_criterion_ == "errors and near errors"
    assert found.bandwidth_ == local.bandwidth_
    np.testing.assert_array_equal(found.uncertainty(rows), local.uncertainty(rows))


@pytest.mark.parametrize(("length", "condensed"), [(16, True), (17, False)])
def test_long_rows_are_not_condensed_unasked(length, condensed, monkeypatch):
    monkeypatch.setattr("qipf.field.reservoir.HELD_OUT", 50)
    rows = np.random.default_rng(0).normal(size=(200, length))
    lists = pa.FixedSizeListArray.from_arrays(rows.ravel(), length)
    given = QIPF(max_centers=20, bandwidth=5.0)
    found = distributed.fit(dataset(pa.table({"logits": lists})), given, columns="logits")
    assert (found.log_weights_ is not None) == condensed
    assert (given.fit(rows).log_weights_ is not None) == condensed


def test_a_field_may_go_on_learning_at_home():
    more = make_logits(400, seed=2).numpy()
    found = distributed.fit(dataset(), QIPF(max_centers=50), labels=None).partial_fit(more)
    local = QIPF(max_centers=50).fit(np.concatenate([LOGITS, more]))
    np.testing.assert_array_equal(found.uncertainty(more), local.uncertainty(more))


def test_merged_coresets_stand_for_all_rows(monkeypatch):
    monkeypatch.setattr("qipf.field.reservoir.HELD_OUT", 500)
    parameters = {"reduction": "coreset", "max_centers": 150, "random_state": 3}
    found = distributed.fit(dataset(), QIPF(**parameters))
    local = QIPF(**parameters).fit(LOGITS, LABELS)
    assert len(found.centers_) == 150
    weights = np.exp(found.log_weights_)
    # fitted to the field, not to the mean: close is all that it promises
    np.testing.assert_allclose(weights @ found.centers_, LOGITS.mean(0), rtol=0.05, atol=0.1)
    variance = weights @ ((found.centers_ - weights @ found.centers_) ** 2)
    total = variance.sum() + 10 * found.spread_**2
    assert total == pytest.approx(LOGITS.var(0).sum(), rel=0.05)
    # condensed twice, by shard and together, it stands for fewer rows when it is fitted
    assert found.bandwidth_ == pytest.approx(local.bandwidth_, rel=0.05)
    queries = make_logits(500, seed=5).numpy()

    def apart(one, two):
        return float(np.abs(one.log_density(queries) - two.log_density(queries)).mean())

    assert apart(found, local) < 0.05
    again = distributed.fit(dataset(), QIPF(**parameters))
    np.testing.assert_array_equal(again.centers_, found.centers_)


def test_bad_rows_are_told_by_the_workers_as_at_home(field):
    holes = LOGITS.copy()
    holes[1950, 3] = np.inf
    named = {f"logit_{k}": holes[:, k] for k in range(10)}
    with pytest.raises(QIPFInputError) as refused:
        distributed.fit(dataset(pa.table(named)))
    assert str(refused.value) == (
        "The dataset, row 50 of a block: logit_3 is inf. Drop rows with NaN or inf, or repair them."
    )
    with pytest.raises(QIPFInputError, match=r"row 0 of a block: the label is '10', but 10 logits"):
        distributed.fit(dataset(table(label=np.full(ROWS, 10))))


def test_rows_of_different_lengths_in_different_blocks_are_refused():
    import ray.data

    tables = [pa.table({"x": LOGITS[:20, :width].tolist()}) for width in (10, 9)]
    made = ray.data.from_arrow(tables)
    with pytest.raises(QIPFInputError) as refused:
        distributed.fit(made, columns="x")
    assert str(refused.value) == "The dataset has rows with different numbers of logits."
