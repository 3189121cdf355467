"""Inputs by place: what is kept, in which order, and in how much memory."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from qipf.export.program import Example
from qipf.layered.kept_inputs import KeptInputs


def batch(places):
    numbers = torch.tensor(places)
    return Example(((numbers[:, None] * torch.ones(3)),), {"ids": numbers, "scale": torch.ones(())})


@given(st.integers(0, 2**32 - 1))
def test_what_was_not_removed_is_there_in_any_order(seed):
    rng = np.random.default_rng(seed)
    kept, alive, start = KeptInputs(), [], 0
    for _ in range(6):
        places = list(range(start, start + int(rng.integers(1, 9))))
        start = places[-1] + 1
        kept.add(places, batch(places))
        alive += places
        gone = [int(p) for p in rng.permutation(alive)[: rng.integers(0, len(alive))]]
        kept.remove(gone)
        alive = [place for place in alive if place not in gone]
    wanted = [int(place) for place in rng.permutation(alive)]
    found = kept.joined(wanted)
    assert found.inputs[0][:, 0].tolist() == wanted
    assert found.options["ids"].tolist() == wanted
    assert found.options["scale"].shape == ()
    rows = sum(own.rows for own in kept._batches.values())
    assert rows <= 2 * len(alive)


def test_shapes_are_those_of_a_row():
    kept = KeptInputs()
    kept.add([3], Example((torch.zeros(1, 2, 5),), {"mask": torch.ones(1, 5)}))
    assert kept.shapes(3) == ((2, 5), (5,))


def test_batches_without_examples_are_dropped():
    kept = KeptInputs()
    kept.add([0, 1], batch([0, 1]))
    kept.remove([1, 0])
    assert not kept._batches


def test_tensors_that_examples_share_stay_as_they_are():
    """Also if the first of them comes from a batch of one."""
    kept, places = KeptInputs(), torch.arange(8)[None]
    kept.add([0], Example((torch.zeros(1, 8),), {"places": places}))
    kept.add([1, 2], Example((torch.ones(2, 8),), {"places": places}))
    found = kept.joined([0, 2, 1])
    assert found.inputs[0][:, 0].tolist() == [0, 1, 1]
    assert torch.equal(found.options["places"], places)
