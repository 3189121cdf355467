r"""Gathering rows into cells: weighted k-means with an eye on the outskirts.

Cells are started by rows drawn with chances :math:`w\,D^p`, :math:`D` the distance to the nearest
row drawn before; four steps of Lloyd's algorithm follow. A field far from most rows depends on the
few that are near, so :math:`p` is higher than the 2 of k-means++.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qipf.field.engines.base import blocks
from qipf.progress import progress_bar

#: p, of the chances to start a cell. On logits of trained networks, 2,000 cells for 60,000 rows:
#: the higher up to 8, the better the field agrees with that of all rows.
POWER = 8

#: Steps of "every row to the nearest centre, every centre to the mean of its rows".
STEPS = 4

#: Scores of rows against centres held at a time: 32 MB in float32.
SCORES_PER_BLOCK = 2**23

#: If some row is farther than this many typical distances from the mean, float64 is needed.
REACH = 30.0


class Cells(NamedTuple):
    """Where the cells are, how much they hold, and how far from their means."""

    means: Tensor  # (k, d) float64, k ≤ the number asked for: no cell is empty
    masses: Tensor  # (k,) float64
    spread: float  # root mean square distance to the means, per dimension


def gather(
    rows: Tensor,  # (n, d)
    weights: Tensor,  # (n,) float64, > 0
    size: int,
    random: np.random.RandomState,
    device: torch.device,
) -> Cells:
    """At most `size` cells for all rows.

    Distances are computed on `device`; sums in float64 on the CPU, where they come out the same
    each time.

    >>> rows = torch.tensor([[0.0], [0.2], [9.0], [9.2]])
    >>> cells = gather(rows, torch.ones(4).double(), 2, np.random.RandomState(0), rows.device)
    >>> cells.masses
    tensor([2., 2.], dtype=torch.float64)
    """
    masses = weights.cpu()
    shares = masses / masses.sum()
    unit = float(rows.abs().max()) or 1.0  # numbers near the end of their range have no squares
    offsets = rows.cpu().double() / unit
    mean = shares @ offsets
    offsets -= mean
    radius = float(offsets.abs().max()) or 1.0
    offsets /= radius
    squares = torch.linalg.vecdot(offsets, offsets)
    far = float(squares.max()) > REACH**2 * float(shares @ squares)
    scaled = offsets.to(device, torch.float64 if far else torch.float32)
    with progress_bar("gathering rows", total=size * (1 + STEPS), unit="cells") as bar:
        centers = scaled[_started(scaled, masses.numpy(), size, random, bar)]
        for _ in range(STEPS):
            nearest = torch.cat([part.argmax(1) for part in _scores(scaled, centers)]).cpu()
            means, sums, nearest = _means(offsets, masses, nearest)
            centers = means.to(scaled)
            bar.update(size)
    variance = shares @ (offsets - means[nearest]).square_().mean(1)
    return Cells((means * radius + mean) * unit, sums, math.sqrt(variance) * radius * unit)


def _started(
    rows: Tensor, masses: np.ndarray, size: int, random: np.random.RandomState, bar: Any
) -> Tensor:  # (k,)
    """Rows to start the cells with: a few at random, the rest by their distance to those before.

    In rounds that add half as many again, since one at a time would take a pass for each.
    """
    chosen = fresh = _drawn(masses, max(1, size // 16), random)
    squares = torch.linalg.vecdot(rows, rows)
    distances = torch.full_like(squares, math.inf)
    while chosen.size < size:
        best = torch.cat([part.amax(1) for part in _scores(rows, rows[torch.from_numpy(fresh)])])
        distances = torch.minimum(distances, (squares - 2 * best).clamp_(min=0))
        distances[torch.from_numpy(fresh)] = 0.0  # exactly, so that none is drawn twice
        bar.update(fresh.size)
        chances = distances.double().cpu().numpy()
        chances /= chances.max() or 1.0
        wanted = min(max(1, chosen.size // 2), size - chosen.size)
        fresh = _drawn(masses * chances ** (POWER // 2), wanted, random)
        if fresh.size == 0:  # every row lies on a chosen one
            break
        chosen = np.concatenate([chosen, fresh])
    return torch.from_numpy(chosen).to(rows.device)


def _drawn(chances: np.ndarray, wanted: int, random: np.random.RandomState) -> np.ndarray:
    """Up to `wanted` different indices by their chances: the first exponential clocks to ring."""
    possible = np.flatnonzero(chances > 0)
    clocks = random.exponential(size=chances.shape)[possible] / chances[possible]
    if possible.size > wanted:
        possible = possible[np.argpartition(clocks, wanted - 1)[:wanted]]
    return np.sort(possible)


def _scores(rows: Tensor, centers: Tensor) -> Iterator[Tensor]:  # blocks of (n, k)
    """x·c - |c|²/2 for blocks of rows: the largest belongs to the nearest centre."""
    half = -torch.linalg.vecdot(centers, centers) / 2
    columns = centers.T.contiguous()
    for part in blocks(rows.shape[0], max(1, SCORES_PER_BLOCK // centers.shape[0])):
        yield torch.addmm(half, rows[part], columns)


def _means(
    rows: Tensor, masses: Tensor, nearest: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # (k, d), (k,), (n,)
    """Means and masses of the cells that have rows, and each row's cell among them."""
    cells, nearest = torch.unique(nearest, return_inverse=True)
    sums = masses.new_zeros(cells.shape[0]).index_add_(0, nearest, masses)
    totals = rows.new_zeros(cells.shape[0], rows.shape[1])
    totals.index_add_(0, nearest, rows * masses[:, None])
    return totals / sums[:, None], sums, nearest
