"""Coresets: few weighted centres whose field is close to that of many rows.

Rows are clustered by k-means; a cluster becomes one centre, the mean of its rows, with their number
as its weight, and a common spread (see `qipf.field.kernel`). Mean and total variance of the rows
are preserved exactly. Clusters are small where rows are sparse, because the uncertainty of unusual
predictions depends on the few outermost rows.

Where the kernel's width is known, the centres are then fitted to the field of all rows at that
width (see `qipf.field.coreset_fit`): several times more accurate there, less accurate at others.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from qipf.errors import QIPFInputError
from qipf.field.coreset_fit import fit_coreset
from qipf.field.engines.base import checked_bandwidth
from qipf.field.kernel import Coreset
from qipf.field.kmeans import kmeans
from qipf.validation.arrays import as_given, require_data, require_finite
from qipf.validation.parameters import require_positive_integer

#: A stream holds this many rows, or bytes of them, before it condenses them.
CHUNK_ROWS, CHUNK_BYTES = 2**16, 2**26


def coreset(
    points: Any,  # (n, d)
    size: int,
    *,
    weights: Any = None,  # (n,)
    bandwidth: float | None = None,
    random_state: Any = 0,
) -> Coreset:
    """At most `size` weighted centres that stand for all points.

    Parameters
    ----------
    points : (n, d); if there are at most `size`, they are the centres themselves.
    size : largest number of centres.
    weights : (n,) number of rows that each point stands for; 1 by default.
    bandwidth : kernel width to fit the centres to; None, or points of more than 16 numbers, return
        the k-means centres.
    random_state : seed of the initial centres and of the fit.

    >>> rows = np.array([[0.0], [0.2], [9.0], [9.2]])
    >>> small = coreset(rows, 2)
    >>> np.sort(small.centers.ravel()), small.weights, round(small.spread, 3)
    (array([0.1, 9.1]), array([2., 2.]), 0.1)
    """
    require_positive_integer(size, "size")
    rows = _checked_points(points)
    whole = Coreset.of_rows(rows)
    if weights is not None:
        counts = _checked_weights(weights, rows.shape[0]).to(rows.device)
        whole = Coreset(rows[counts > 0], counts[counts > 0])
    random = check_random_state(random_state)
    small = _reduced(whole, int(size), random, rows.device, bandwidth)
    centers, counts = as_given(small.centers, points), as_given(small.weights, points)
    return Coreset(centers, counts, small.spread)


class CoresetStream:
    """Coreset of a stream of rows, in bounded memory.

    Rows are held until there are `chunk` of them, then condensed to 2·`size` centres; pairs of
    condensed chunks are merged like the digits of a binary counter. Chunks depend only on row
    numbers, so the result is bit for bit the same however the stream is cut into batches. A stream
    no longer than a chunk gives what `coreset` gives for its rows.

    Parameters
    ----------
    size : largest number of centres in the result.
    random_state : seed of all random draws.
    chunk : rows held; by default 65,536, or 64 MB where rows are long, and never below 4·`size`.
    device : where distances are computed; rows are kept in main memory.

    >>> stream = CoresetStream(10, chunk=50)
    >>> for start in range(0, 200, 20):
    ...     stream.add(torch.arange(start, start + 20.0)[:, None])
    >>> stream.result().count, stream.result().centers.shape
    (200.0, torch.Size([10, 1]))
    """

    def __init__(
        self,
        size: int,
        *,
        random_state: Any = 0,
        chunk: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        require_positive_integer(size, "size")
        self.size = int(size)
        self.count = 0
        self.device = torch.device(device)
        self._seed = int(check_random_state(random_state).randint(2**31 - 1))
        self._chunk = chunk
        self._held: list[Tensor] = []
        self._condensed: list[Coreset | None] = []  # one place per power of two of chunks

    def add(self, points: Any) -> None:  # (n, d)
        """Add the next rows of the stream."""
        rows = _checked_points(points, fewest=0).cpu()
        if self._chunk is None:
            longest = CHUNK_BYTES // (rows.element_size() * rows.shape[1])
            self._chunk = max(4 * self.size, min(CHUNK_ROWS, longest))
        while rows.shape[0] > 0:
            room = self._chunk - sum(part.shape[0] for part in self._held)
            if room <= 0:
                full, self._held = Coreset.of_rows(torch.cat(self._held)), []
                self._push(full)
                continue
            self._held.append(rows[:room].clone())
            self.count += self._held[-1].shape[0]
            rows = rows[room:]

    def merge(self, part: Coreset) -> None:
        """Add rows that were condensed elsewhere, as one more condensed chunk.

        >>> stream = CoresetStream(4)
        >>> stream.add(torch.arange(8.0)[:, None])
        >>> stream.merge(coreset(100 + torch.arange(8.0)[:, None], 4))
        >>> stream.count, stream.result().count, len(stream.result().centers)
        (16, 16.0, 4)
        """
        centers = _checked_points(part.centers).cpu()
        known = [*self._held, *(chunk.centers for chunk in self._condensed if chunk is not None)]
        if known and known[0].shape[1] != centers.shape[1]:
            raise QIPFInputError(
                f"part has centres of dimension {centers.shape[1]}, but the stream has rows of "
                f"{known[0].shape[1]}."
            )
        weights = _checked_weights(part.weights, centers.shape[0]).cpu()
        self.count += round(float(weights.sum()))
        self._push(Coreset(centers, weights, part.spread))

    def result(self, more: Any = None, *, bandwidth: float | None = None) -> Coreset:
        """Coreset of all rows so far and of `more` rows (n, d), which are not added to the stream.

        With a `bandwidth`, fitted to the field of these rows at that width.
        """
        return self._condense(self.weighted_rows(more), self.size, bandwidth)

    def weighted_rows(self, more: Any = None) -> Coreset:
        """Held rows, `more` rows and condensed chunks together, without further reduction."""
        parts = [part for part in self._condensed if part is not None]
        held = [*self._held] if more is None else [*self._held, _checked_points(more, 0).cpu()]
        if any(part.shape[0] for part in held):
            parts.append(Coreset.of_rows(torch.cat(held)))
        if not parts:
            raise QIPFInputError("The stream is empty: add rows before asking for its coreset.")
        return _concatenate(parts)

    def _push(self, part: Coreset) -> None:
        part = self._condense(part, 2 * self.size)
        for place, waiting in enumerate(self._condensed):
            if waiting is None:
                self._condensed[place] = part
                return
            part = self._condense(_concatenate([waiting, part]), 2 * self.size)
            self._condensed[place] = None
        self._condensed.append(part)

    def _condense(self, whole: Coreset, size: int, bandwidth: float | None = None) -> Coreset:
        return _reduced(whole, size, np.random.RandomState(self._seed), self.device, bandwidth)


def _reduced(
    whole: Coreset,
    size: int,
    random: np.random.RandomState,
    device: torch.device,
    bandwidth: float | None,
) -> Coreset:
    """Coreset of tensors, from one of tensors."""
    width = None if bandwidth is None else checked_bandwidth(bandwidth)
    rows = whole.centers
    if rows.shape[0] <= size:
        return whole
    found = kmeans(rows, whole.weights, size, random, device)
    spread = math.hypot(whole.spread, found.spread)
    small = Coreset(found.centers.to(rows), found.weights.to(rows.device), spread)
    return small if width is None else fit_coreset(small, whole, width, random, device)


def _concatenate(parts: Sequence[Coreset]) -> Coreset:
    if len(parts) == 1:
        return parts[0]
    counts = np.array([part.count for part in parts])
    spreads = np.array([part.spread for part in parts])
    largest = float(spreads.max()) or 1.0
    spread = largest * math.sqrt(float(counts @ (spreads / largest) ** 2 / counts.sum()))
    centers = torch.cat([part.centers for part in parts])
    return Coreset(centers, torch.cat([part.weights for part in parts]), spread)


def _checked_points(points: Any, fewest: int = 1) -> Tensor:
    rows = points.detach() if isinstance(points, Tensor) else torch.as_tensor(np.asarray(points))
    require_data(rows, "points")
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.shape[0] < fewest:
        raise QIPFInputError(
            f"points must have shape (n, d) with n, d ≥ 1, got {tuple(rows.shape)}."
        )
    if rows.is_complex() or rows.dtype == torch.bool:
        raise QIPFInputError(f"points must hold real numbers, got {rows.dtype}.")
    if not rows.is_floating_point():
        rows = rows.double()
    require_finite(rows, "points")
    return rows


def _checked_weights(weights: Any, count: int) -> Tensor:
    counts = torch.as_tensor(weights).detach().double()
    if counts.shape != (count,):
        raise QIPFInputError(
            f"weights must have shape ({count},), one per point, got {tuple(counts.shape)}."
        )
    finite = bool(torch.isfinite(counts).all())
    if not finite or bool((counts < 0).any()) or not bool((counts > 0).any()):
        raise QIPFInputError("weights must be finite, ≥ 0 and not all zero.")
    return counts
