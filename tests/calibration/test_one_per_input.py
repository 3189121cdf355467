"""One prediction of each input: uniform, of known ones only, whatever the batches."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qipf.calibration.one_per_input import _uniform, one_per_input


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 50), st.integers(0, 99))
def test_the_draw_does_not_depend_on_the_batches(lengths, each, first):
    count = sum(lengths)
    whole = one_per_input((count, each), first)
    parts, start = [], 0
    for length in lengths:
        parts.append(start * each + one_per_input((length, each), first + start))
        start += length
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(whole // each, torch.arange(count))


def test_every_place_is_drawn_equally_often():
    drawn = one_per_input((20_000, 2, 5), 0).numpy() % 10
    counts = np.bincount(drawn, minlength=10)
    assert (np.abs(counts - 2000) < 5 * (20_000 * 0.09) ** 0.5).all()


def test_only_known_predictions_are_drawn_and_each_equally_often():
    known = torch.zeros(3000, 4, dtype=torch.bool)
    known[:, [1, 3]] = True
    known[::3] = False
    known[::3, 2] = True
    known[:10] = False
    index = one_per_input(known.shape, 0, known)
    assert len(index) == 2990
    assert known.flatten()[index].all()
    assert torch.equal(index // 4, torch.arange(10, 3000))
    free = index[(index // 4) % 3 != 0] % 4
    assert abs(int((free == 1).sum()) - len(free) / 2) < 5 * (len(free) / 4) ** 0.5
    everything = torch.ones(50, 7, dtype=torch.bool)
    assert torch.equal(one_per_input((50, 7), 3, everything), one_per_input((50, 7), 3))


def test_the_draws_are_those_of_splitmix64():
    """The first numbers of the published generator with the seed 0."""
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    expected = [(z >> 11) / 2**53 for z in first]
    assert _uniform(np.arange(4, dtype=np.uint64)).tolist() == expected
    assert one_per_input((4, 1000), 0).tolist() == [
        1000 * k + int(1000 * u) for k, u in enumerate(expected)
    ]
