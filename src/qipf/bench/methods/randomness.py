"""Random draws from a given seed that do not change the global random state."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def mixed_seed(*entropy: int) -> int:
    """One seed from several numbers; neighbouring numbers give unrelated seeds.

    >>> mixed_seed(0, 1) == mixed_seed(0, 1), mixed_seed(0, 1) == mixed_seed(1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def seeded(device: torch.device | str, *entropy: int) -> Iterator[None]:
    """Seed torch on the CPU and `device` within the context; restore its state afterwards.

    >>> with seeded("cpu", 3):
    ...     first = torch.rand(2)
    >>> with seeded("cpu", 3):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    device = torch.device(device)
    forked = [device] if device.type == "cuda" else []
    seed = mixed_seed(*entropy)
    with torch.random.fork_rng(devices=forked, device_type="cuda"):
        # torch.manual_seed would also reseed devices that are not forked here
        torch.default_generator.manual_seed(seed)
        if forked:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
