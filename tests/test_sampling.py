import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qipf.sampling import Reservoir, TrainingRows


def drawn(stream, cuts, capacity, seed=0):
    reservoir = Reservoir(capacity, np.random.RandomState(seed))
    for part in torch.tensor_split(stream, sorted(cuts)):
        reservoir.add(part)
    return reservoir


@given(
    cuts=st.lists(st.integers(0, 200), max_size=12),
    capacity=st.integers(1, 250),
    count=st.integers(0, 200),
)
def test_the_sample_does_not_depend_on_the_cuts(cuts, capacity, count):
    stream = torch.arange(count)[:, None]
    cut, whole = drawn(stream, cuts, capacity), drawn(stream, [], capacity)
    assert cut.seen == whole.seen == count
    assert torch.equal(cut.rows, whole.rows)
    assert cut.rows.shape[0] == min(capacity, count)
    assert len(set(cut.rows.flatten().tolist())) == min(capacity, count)


@given(cuts=st.lists(st.integers(0, 200), max_size=12), capacity=st.integers(1, 250))
def test_every_row_stays_or_leaves_and_the_order_of_leaving_does_not_depend_on_the_cuts(
    cuts, capacity
):
    stream = torch.arange(200)[:, None]
    left = []
    for places in (sorted(cuts), []):
        reservoir = Reservoir(capacity, np.random.RandomState(0))
        parts = torch.tensor_split(stream, places)
        left.append(torch.cat([reservoir.add(part) for part in parts]).flatten().tolist())
        stayed = reservoir.rows.flatten().tolist()
        assert sorted(left[-1] + stayed) == list(range(200))
    assert left[0] == left[1]


@pytest.mark.parametrize("reduction", ["random", "coreset"])
def test_training_rows_are_split_without_overlap(reduction):
    rows = torch.arange(400.0)[:, None]
    seen = TrainingRows(30, reduction, np.random.RandomState(0))
    for part in rows.split(90):
        seen.add(part, part[:, 0].numpy() % 7 == 0)
    assert (seen.count, seen.varied, seen.labelled) == (400, True, True)
    held = seen.held_out()
    assert held == (370 if reduction == "random" else 80)
    sample = seen.sample[:, 0].numpy()
    np.testing.assert_array_equal(seen.sample_errors(), sample % 7 == 0)
    part = seen.condensed(held, torch.device("cpu"))
    assert part.centers.shape == (30, 1)
    others = np.setdiff1d(np.arange(400.0), sample[-held:])
    if reduction == "random":
        assert set(part.centers[:, 0].tolist()) == set(others)
        assert part.spread == 0.0
    else:
        assert part.count == len(others) == 320
        mean = float(part.weights @ part.centers[:, 0].double()) / 320
        assert mean == pytest.approx(others.mean(), rel=1e-6)
        assert seen.condensed(0, torch.device("cpu")).count == 400


def test_every_row_has_the_same_chance():
    stream = torch.arange(50)[:, None]
    hits = np.zeros(50)
    for seed in range(2000):
        hits[drawn(stream, [7, 31], 10, seed).rows.flatten().numpy()] += 1
    expected, deviation = 400, np.sqrt(2000 * 0.2 * 0.8)
    assert np.abs(hits - expected).max() < 4.5 * deviation


def test_rows_are_copied_out_of_the_batch():
    batch = torch.zeros(4, 2)
    reservoir = Reservoir(10, np.random.RandomState(0))
    reservoir.add(batch)
    batch += 1
    assert float(reservoir.rows.sum()) == 0.0
