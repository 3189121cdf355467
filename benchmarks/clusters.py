"""Logits to measure with: made up, and the same for the same seed."""

from __future__ import annotations

import torch
from torch import Tensor


def logits(count: int, dimension: int, seed: int) -> Tensor:  # (count, dimension)
    """Ten clusters with a spread of about seven, as a trained classifier's logits lie."""
    means = torch.randn(10, dimension, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, dimension, generator=generator)
    return 5.6 * means[chosen] + 4.2 * noise
