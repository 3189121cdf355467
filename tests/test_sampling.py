import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from qipf.sampling import Reservoir


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
