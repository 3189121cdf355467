"""A small network, its data and its errors."""

import torch
from torch import nn

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


def inputs(seed, count=240, noise=1.0):
    """Inputs, and labels that the network misses more often the less its class leads."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=random)
    with torch.no_grad():
        top = NET(x).topk(2, 1)
    lead = top.values[:, 0] - top.values[:, 1]
    swap = torch.rand(count, generator=random) < 0.5 * torch.exp(-4 * lead / noise)
    return x, torch.where(swap, top.indices[:, 1], top.indices[:, 0])


def held_out(seed, **options):
    """Logits and labels."""
    x, labels = inputs(seed, **options)
    with torch.no_grad():
        return NET(x), labels


def batches(seed, **options):
    """The inputs and labels as batches."""
    x, labels = inputs(seed, **options)
    return list(zip(x.split(64), labels.split(64), strict=True))


def features(seed):
    """The hidden layer of the inputs."""
    with torch.no_grad():
        return {"hidden": NET[1](NET[0](inputs(seed)[0]))}


LOGITS, LABELS = held_out(0)
