from __future__ import annotations

import torch

from qipf.bench.methods.randomness import mixed_seed, seeded


def test_draws_follow_the_seed_and_the_outside_goes_on_undisturbed():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    with seeded("cpu", 1, 2):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(4), expected)
    with seeded("cpu", 1, 2):
        assert torch.equal(torch.rand(3), inside)
    with seeded("cpu", 2, 1):
        assert not torch.equal(torch.rand(3), inside)


def test_the_outside_is_restored_after_an_error():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    try:
        with seeded("cpu", 7):
            torch.rand(1)
            raise RuntimeError
    except RuntimeError:
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_mixed_seeds_fit_a_generator_and_do_not_collide():
    seeds = {mixed_seed(a, b) for a in range(40) for b in range(40)}
    assert len(seeds) == 1600
    assert all(0 <= seed < 2**63 for seed in seeds)
